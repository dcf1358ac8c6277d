"""A run directory in an object store (``--workdir=gs://…``), with a local folder for its logs."""

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

import jax

from largebatch.checkpoint import lease
from largebatch.checkpoint.place import BucketPlace
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
    watchdog: Watchdog = IDLE,
    note: Callable[[str], None],
    warn: Callable[[str], None],
) -> Iterator[BucketPlace]:
    """Keep a local copy of a run's logs while the body runs; each process calls this.

    Args:
      url: the run directory in the store.
      trains: process 0 holds the lock.
      watchdog: uploads once more if it ends the process.
      note: prints a message for the user.
      warn: prints a warning of one line.

    Yields:
      The run directory. Process 0 uploads what the logs lack at the end.

    Raises:
      UserError: another run holds the lock.
      StorageError: the store cannot be reached; the local copy is kept if it was not uploaded.
    """
    first = jax.process_index() == 0
    place = BucketPlace(Bucket(url), Path(tempfile.mkdtemp(prefix="largebatch-")))
    try:
        with contextlib.ExitStack() as stack:
            if trains:
                held = lease.hold(place.bucket, note=note, lost=watchdog.end)
                processes.first_process_does(lambda: stack.enter_context(held))
                if first:
                    watchdog.finally_do("lease", lambda *_: stack.close())
                    # The main thread may hang in an upload, and this process must end.
                    watchdog.finally_do("upload", lambda *_: _upload(place, watchdog, patience_s=5))
            place.fetch_logs(changes_only=not trains)
            try:
                yield place
            except BaseException:
                if first:
                    try:
                        _finish(place, watchdog, trains)
                    except StorageError as error:
                        warn(str(error))
                raise
            if first:
                _finish(place, watchdog, trains)
    finally:
        shutil.rmtree(place.logs, ignore_errors=True)


@contextlib.contextmanager
def downloaded(url: str) -> Iterator[BucketPlace]:
    """Keep a copy of the logs of a run in an object store while the body runs.

    Args:
      url: the run directory in the store.

    Yields:
      The run directory; its local folder has the same name.

    Raises:
      CheckpointError: there is no run.
      StorageError: the store cannot be reached.
    """
    with tempfile.TemporaryDirectory(prefix="largebatch-") as folder:
        place = BucketPlace(Bucket(url_of(url)), Path(folder, PurePosixPath(url).name))
        place.logs.mkdir()
        place.fetch_logs()
        if not any(place.logs.iterdir()):
            raise CheckpointError(f"{url} holds no run; use the --workdir of a training")
        yield place


def _upload(place: BucketPlace, watchdog: Watchdog, patience_s: float = -1) -> None:
    """Upload the logs at the end, unless another run has the directory now."""
    if not watchdog.lost:
        place.send_logs(last=True, patience_s=patience_s)


def _finish(place: BucketPlace, watchdog: Watchdog, trains: bool) -> None:
    """Upload what is left; only a training replaces the parts of the logs that it wrote.

    Raises:
      StorageError: the upload failed; the local copy was moved aside.
    """
    try:
        with watchdog.section("checkpoint"):
            if trains:
                _upload(place, watchdog)
            else:
                place.send_logs()
    except StorageError as error:
        kept = Path(tempfile.mkdtemp(prefix="largebatch-not-uploaded-"))
        place.logs.replace(kept)
        raise StorageError(f"{error}; the files of the run are in {kept}") from error
