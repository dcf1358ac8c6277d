"""Local copies of runs in object stores, while a command trains, evaluates or reads them."""

import contextlib
import os
import shutil
import stat
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
    local = _staging(url)
    directory = RemoteDirectory(Bucket(url), local, deletes=trains and first)

    def lost(reason: str) -> None:
        directory.close()
        watchdog.end(reason)

    try:
        with contextlib.ExitStack() as stack:
            if trains:
                held = lease.hold(directory.bucket, note=note, lost=lost)
                processes.first_process_does(lambda: stack.enter_context(held))
                if first:
                    watchdog.finally_do("lease", lambda *_: stack.close())
                processes.first_process_does(directory.clear)
                # Only with the lock: they may be those of a living process of this host.
                _remove_left_behind(local)
            if not transfers:
                yield directory
                return
            if fresh and first:
                directory.hold_back()
            elif not fresh:
                directory.pull(newest_only=not trains, checkpoints=first)
            if trains and first:
                # The main thread may hang in an upload, and this process must end.
                watchdog.finally_do("upload", lambda *_: directory.push(last=True, patience_s=5))
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


def _staging(url: str) -> Path:
    """Create an empty directory of this user for the local copy of a run in a store.

    The temporary directory may be shared, so the end of the name cannot be guessed.
    """
    name = blake2b(f"{os.getuid()} {url}".encode(), digest_size=8).hexdigest()
    try:
        return Path(tempfile.mkdtemp(prefix=f"largebatch-{name}-{jax.process_index()}-"))
    except OSError as error:
        raise StorageError(
            f"{tempfile.gettempdir()}: no folder can be created ({error.strerror}); set TMPDIR to "
            "another folder"
        ) from error


def _remove_left_behind(local: Path) -> None:
    """Remove the copies of killed processes of the same run, which have this user's directories."""
    for path in local.parent.glob(f"{local.name.rpartition('-')[0]}-*"):
        with contextlib.suppress(OSError):
            about = path.lstat()
            if path != local and stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid():
                shutil.rmtree(path, ignore_errors=True)
