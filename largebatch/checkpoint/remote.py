"""The logs of a run in an object store (``--workdir=gs://…``), and its local copy.

The run writes its logs to a local folder as always, and its checkpoints to the store. Before each
checkpoint, process 0 uploads what the logs have grown by, as objects ``NAME.part-OFFSET``, because
an object cannot be appended to; so the uploaded bytes grow with the run, and the newest checkpoint
always has its rows. The first upload of an attempt and the last one replace the parts by the file.
"""

import contextlib
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath

import jax

from largebatch.checkpoint import lease
from largebatch.checkpoint.run_directory import PREVIOUS, is_own, own_names
from largebatch.errors import CheckpointError
from largebatch.fault_tolerance import IDLE, Watchdog
from largebatch.object_store import Bucket, StorageError
from largebatch.parallel import processes
from largebatch.store_urls import url_of

_PART = re.compile(r"(?P<name>.+)\.part-(?P<offset>\d{15})")


class Logs:
    """The files of a run but its checkpoints, in a store and in a local folder."""

    def __init__(self, bucket: Bucket, local: Path) -> None:
        """Transfer nothing yet.

        Args:
          bucket: the run directory in the store.
          local: an empty folder.
        """
        self.bucket, self.local = bucket, local
        self._sent: dict[str, tuple[int, int]] = {}
        """For each file, its inode and the bytes that are in the store."""
        self._pushing = threading.Lock()

    def pull(self) -> None:
        """Download the files of the run, those in folders left out.

        Raises:
          StorageError: the store cannot be read.
        """
        found = self.bucket.entries()
        parts = sorted(name for name in found if _PART.fullmatch(name))
        for name in own_names({_whole(name) for name in found}):
            content = b""
            if name in found and (stored := self.bucket.read(name)):
                content = stored[0]
            for part in (part for part in parts if _whole(part) == name):
                offset = int(part.rpartition("-")[2])
                if offset == len(content) and (stored := self.bucket.read(part)):
                    content += stored[0]
            (self.local / name).write_bytes(content)

    def push(self, *, last: bool = False, patience_s: float = -1) -> None:
        """Upload what is new in the local files.

        Args:
          last: replace the parts by the files.
          patience_s: seconds to wait for another thread's upload; below 0: any time.

        Raises:
          StorageError: the store cannot be written to; the next call continues.
        """
        if not self._pushing.acquire(timeout=patience_s):
            raise StorageError(f"{self.bucket.url}: another upload hangs")
        try:
            for path in self._files():
                with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                    self._push(path, last=last)
        finally:
            self._pushing.release()

    def archive(self) -> str | None:
        """Copy an earlier run to ``previous/N/`` and delete the originals.

        Only objects with the names of this program's files are touched.

        Returns:
          The URL of the archive; None if there is no earlier run.
        """
        old = [name for name in self.bucket.objects() if is_own(name)]
        if not own_names({_whole(name).split("/")[0] for name in old}):
            return None
        numbers = [int(name) for name in self.bucket.folders(PREVIOUS) if name.isdigit()]
        target = f"{PREVIOUS}/{1 + max(numbers, default=0)}"
        for name in old:
            self.bucket.copy(name, f"{target}/{name}")
        self.bucket.delete(*old)
        return f"{self.bucket.url}/{target}"

    def _push(self, path: Path, *, last: bool) -> None:
        name = path.relative_to(self.local).as_posix()
        about = path.stat()
        inode, sent = self._sent.get(name, (0, 0))
        grows = name.endswith(".jsonl") or ".tfevents." in name
        if (inode, sent) == (about.st_ino, about.st_size) and not (last and grows):
            return
        with path.open("rb") as stream:
            if grows and not last and inode == about.st_ino and 0 < sent <= about.st_size:
                stream.seek(sent)
                new = stream.read()
                self.bucket.write(f"{name}.part-{sent:015d}", new)
            else:
                new, sent = stream.read(), 0
                self.bucket.write(name, new)
                if grows:
                    folder = name.rpartition("/")[0]
                    parts = self.bucket.objects(folder) if folder else self.bucket.entries()
                    self.bucket.delete(*(part for part in parts if _whole(part) == name != part))
        self._sent[name] = about.st_ino, sent + len(new)

    def _files(self) -> Iterable[Path]:
        """Yield the local files of the run; temporary ones are hidden."""
        for parent, folders, names in os.walk(self.local):
            folders[:] = [name for name in folders if not name.startswith(".")]
            for name in names:
                path = Path(parent, name)
                if is_own(path.relative_to(self.local).as_posix()):
                    yield path


@contextlib.contextmanager
def staged(
    url: str,
    *,
    trains: bool,
    watchdog: Watchdog = IDLE,
    note: Callable[[str], None],
    warn: Callable[[str], None],
) -> Iterator[Logs]:
    """Keep a local copy of a run's logs while the body runs; each process calls this.

    Args:
      url: the run directory in the store.
      trains: process 0 holds the lock; it uploads the logs at the end, `Logs.push` before.
      watchdog: uploads once more if it ends the process.
      note: prints a message for the user.
      warn: prints a warning of one line.

    Yields:
      The logs; ``local`` is where the run writes.

    Raises:
      UserError: another run holds the lock.
      StorageError: the store cannot be reached; the local copy is kept if it was not uploaded.
    """
    first = jax.process_index() == 0
    logs = Logs(Bucket(url), Path(tempfile.mkdtemp(prefix="largebatch-")))
    try:
        with contextlib.ExitStack() as stack:
            if trains:
                held = lease.hold(logs.bucket, note=note, lost=watchdog.end)
                processes.first_process_does(lambda: stack.enter_context(held))
                if first:
                    watchdog.finally_do("lease", lambda *_: stack.close())
                    # The main thread may hang in an upload, and this process must end.
                    watchdog.finally_do("upload", lambda *_: logs.push(last=True, patience_s=5))
            logs.pull()
            try:
                yield logs
            except BaseException:
                if first:
                    try:
                        _finish(logs, watchdog)
                    except StorageError as error:
                        warn(str(error))
                raise
            if first:
                _finish(logs, watchdog)
    finally:
        shutil.rmtree(logs.local, ignore_errors=True)


@contextlib.contextmanager
def downloaded(url: str) -> Iterator[Path]:
    """Keep a copy of the logs of a run in an object store while the body runs.

    Args:
      url: the run directory in the store.

    Yields:
      A local folder of the same name.

    Raises:
      CheckpointError: there is no run.
      StorageError: the store cannot be reached.
    """
    with tempfile.TemporaryDirectory(prefix="largebatch-") as folder:
        logs = Logs(Bucket(url_of(url)), Path(folder, PurePosixPath(url).name))
        logs.local.mkdir()
        logs.pull()
        if not any(logs.local.iterdir()):
            raise CheckpointError(f"{url} holds no run; use the --workdir of a training")
        yield logs.local


def _finish(logs: Logs, watchdog: Watchdog) -> None:
    """Upload what is left.

    Raises:
      StorageError: the upload failed; the local copy was moved aside.
    """
    try:
        with watchdog.section("checkpoint"):
            logs.push(last=True)
    except StorageError as error:
        kept = Path(tempfile.mkdtemp(prefix="largebatch-not-uploaded-"))
        logs.local.replace(kept)
        raise StorageError(f"{error}; the files of the run are in {kept}") from error


def _whole(name: str) -> str:
    """Return the name of the file that an object is, or is a part of."""
    match = _PART.fullmatch(name)
    return match["name"] if match else name
