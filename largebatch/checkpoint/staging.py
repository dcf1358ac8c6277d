"""Local copies of runs in object stores, while a command trains, evaluates or reads them."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path, PurePosixPath

import jax

from largebatch.checkpoint import lease
from largebatch.checkpoint.remote_directory import CHECKPOINTS, RemoteDirectory
from largebatch.errors import CheckpointError
from largebatch.fault_tolerance import IDLE, Watchdog
from largebatch.object_store import Bucket, StorageError
from largebatch.parallel import processes
from largebatch.store_urls import url_of


@contextlib.contextmanager
def staged(
    url: str,
    *,
    trains: bool,
    fresh: bool = False,
    transfers: bool = True,
    watchdog: Watchdog = IDLE,
    note: Callable[[str], None],
    warn: Callable[[str], None],
) -> Iterator[RemoteDirectory]:
    """Keep a local copy of a run directory while the body runs; each process calls this.

    Args:
      url: the run directory in the store.
      trains: process 0 holds the lock and uploads everything while the body runs; otherwise, and
        by the other processes, new and changed files are uploaded at the end.
      fresh: download nothing, because an earlier run will be archived; nothing is uploaded before.
      transfers: False to transfer nothing at all, for a dry run.
      watchdog: uploads once more if it ends the process.
      note: prints a message for the user.
      warn: prints a warning of one line.

    Yields:
      The directory; ``local`` is where the run reads and writes.

    Raises:
      UserError: another run holds the lock.
      StorageError: the store cannot be reached; the local copy is kept if it was not uploaded.
    """
    first = jax.process_index() == 0
    local = _staging(url, shared=not trains)
    directory = RemoteDirectory(Bucket(url), local, deletes=trains and first)

    def lost(reason: str) -> None:
        directory.close()
        watchdog.end(reason)

    with contextlib.ExitStack() as stack:
        if trains:
            held = lease.hold(directory.bucket, note=note, lost=lost)
            processes.first_process_does(lambda: stack.enter_context(held))
            if first:
                watchdog.finally_do("lease", lambda *_: stack.close())
            processes.first_process_does(directory.clear)
        # Only with the lock: the local directory may be that of a living process of this host.
        shutil.rmtree(local, ignore_errors=True)
        try:
            local.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"{local} cannot be created ({error.strerror}); set TMPDIR to another folder"
            ) from error
        try:
            if not transfers:
                yield directory
                return
            if fresh and first:
                directory.hold_back()
            elif not fresh:
                directory.pull(newest_only=not trains, checkpoints=first)
            if trains and first:
                watchdog.finally_do("upload", lambda *_: directory.push(last=True))
            try:
                with directory.pushed(warn) if trains and first else contextlib.nullcontext():
                    yield directory
            except BaseException:
                try:
                    _finish(directory, watchdog)
                except StorageError as error:
                    warn(str(error))
                raise
            _finish(directory, watchdog)
        finally:
            shutil.rmtree(local, ignore_errors=True)


@contextlib.contextmanager
def downloaded(url: str, *, newest_only: bool = True, checkpoints: bool = True) -> Iterator[Path]:
    """Keep a copy of a run or of one checkpoint in an object store while the body runs.

    Args:
      url: the directory in the store.
      newest_only: leave out all checkpoints of a run but the newest.
      checkpoints: False for the logs alone.

    Yields:
      A local directory of the same name.

    Raises:
      CheckpointError: there is no run.
      StorageError: the store cannot be reached.
    """
    path, step = PurePosixPath(url), ""
    if path.parent.name == CHECKPOINTS:
        path, step = path.parent.parent, path.name
    with tempfile.TemporaryDirectory(prefix="largebatch-") as folder:
        directory = RemoteDirectory(Bucket(url_of(path)), Path(folder, path.name))
        directory.local.mkdir()
        directory.pull(newest_only=newest_only, checkpoints=checkpoints and not step)
        if step:
            directory.pull_checkpoint(int(step) if step.isdigit() else -1)
        found = directory.local / CHECKPOINTS / step if step else directory.local
        if not found.is_dir() or not any(found.iterdir()):
            raise CheckpointError(f"{url} holds no run; use the --workdir of a training")
        yield found


def _finish(directory: RemoteDirectory, watchdog: Watchdog) -> None:
    """Upload what is left.

    Raises:
      StorageError: the upload failed; the local copy was moved aside.
    """
    try:
        with watchdog.section("checkpoint"):
            directory.push(last=True)
            directory.close()  # the watchdog may still want to upload
    except StorageError as error:
        kept = Path(tempfile.mkdtemp(prefix="largebatch-not-uploaded-"))
        directory.close()
        directory.local.replace(kept)
        raise StorageError(f"{error}; the files of the run are in {kept}") from error


def _staging(url: str, *, shared: bool) -> Path:
    """Return a path for the local copy of a run in a store.

    A training has one by its URL, so that a killed one leaves no more than one behind.
    """
    if shared:
        return Path(tempfile.mkdtemp(prefix="largebatch-"))
    name = blake2b(f"{os.getuid()} {url}".encode(), digest_size=8).hexdigest()
    return Path(tempfile.gettempdir(), f"largebatch-{name}-{jax.process_index()}")
