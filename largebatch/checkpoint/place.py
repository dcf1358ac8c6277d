"""A run directory: on a disk, or in an object store.

A file appears complete or not at all: on a disk by a rename, in a store because an object does.
"""

import contextlib
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Protocol

from largebatch.checkpoint import lock
from largebatch.errors import CheckpointError
from largebatch.files import no_folder_reason, replacing
from largebatch.object_store import Bucket, Range, StorageError
from largebatch.store_urls import url_of

_PART = re.compile(r"(?P<name>.+)\.part-(?P<offset>\d{15})")
_OWN = re.compile(
    r"checkpoints/(0|[1-9][0-9]{0,17})\.safetensors(\.corrupt(-\d+)?)?|config\.json|"
    r"evaluation\.json|(events|layers|metrics)\.jsonl|(profile|report|tensorboard|wandb)/.*|"
    r"result_\d+\.txt|saved\.json|stacks_\d+\.txt|summary\.json|trackers\.json|"
    r"unreadable_\d+\.jsonl"
)
"""Paths of the files that a run writes into its directory."""


def is_own(path: str) -> bool:
    """Return whether a path, relative to a run directory, is that of a file of a run."""
    return _OWN.fullmatch(_whole(path)) is not None


class Place(Protocol):
    """A run directory; paths of files are relative to it, with ``/``.

    Errors are `OSError` or `StorageError`.
    """

    url: str
    """The directory, for messages: a path or a URL."""
    logs: Path
    """Local folder into which the run writes its logs."""

    def create(self) -> None:
        """Create the directory, and remove what a killed process was writing.

        Raises:
          CheckpointError: it cannot be created or written to.
        """
        ...

    def files(self, folder: str = "") -> list[str]:
        """Return the names of the files directly in a folder, hidden ones left out."""
        ...

    def folders(self, folder: str = "") -> list[str]:
        """Return the names of the folders directly in a folder."""
        ...

    def read(self, path: str, size: int | None = None) -> bytes:
        """Return the first ``size`` bytes of a file; None: all.

        Raises:
          FileNotFoundError: there is no such file.
        """
        ...

    def write(self, path: str, content: bytes) -> None:
        """Create or replace a file atomically and durably."""
        ...

    def move(self, path: str, target: str) -> None:
        """Move a file, or a folder with all that is in it, to a path, which must be free."""
        ...

    def delete(self, path: str) -> None:
        """Delete a file."""
        ...

    def free_bytes(self) -> int | None:
        """Return the free space; None: not limited. The directory may not exist yet."""
        ...

    def lock(
        self, *, note: Callable[[str], None], lost: Callable[[str], None]
    ) -> contextlib.AbstractContextManager[None]:
        """Hold the lock of the directory while the body runs; a missing directory is created.

        Args:
          note: called with a message for the user.
          lost: called once, in a separate thread, if another process took the lock.

        Raises:
          UserError: another process holds the lock, or the directory cannot be written to.
        """
        ...

    def holder(self) -> str | None:
        """Return which process holds the lock, for messages; None if none does."""
        ...

    def fetch_logs(self, *, changes_only: bool = False) -> None:
        """Write the logs of the run into `logs`, if they are elsewhere.

        Args:
          changes_only: whether `keep_logs` keeps only what changes from now on.
        """
        ...

    def keep_logs(self, *, last: bool = False, patience_s: float = -1) -> None:
        """Make the logs written so far as durable as a checkpoint that follows.

        Args:
          last: no more logs follow.
          patience_s: seconds to wait for another thread that does so; below 0: any time.
        """
        ...


class LocalPlace:
    """A run directory on a disk."""

    def __init__(self, folder: Path) -> None:
        """Change nothing yet."""
        self.url, self.logs = str(folder), folder.absolute()

    def create(self) -> None:
        checkpoints = self.logs / "checkpoints"
        try:
            checkpoints.mkdir(parents=True, exist_ok=True)
            for left in checkpoints.glob(".*.tmp"):
                if is_own(f"checkpoints/{left.name[1:-4]}"):
                    left.unlink()
        except OSError as error:
            raise CheckpointError(
                f"--workdir={self.url} cannot be written to ({no_folder_reason(error)}); use "
                "another --workdir"
            ) from error

    def files(self, folder: str = "") -> list[str]:
        return self._names(folder, os.DirEntry.is_file)

    def folders(self, folder: str = "") -> list[str]:
        return self._names(folder, os.DirEntry.is_dir)

    def read(self, path: str, size: int | None = None) -> bytes:
        with (self.logs / path).open("rb") as stream:
            return stream.read(size)

    def write(self, path: str, content: bytes) -> None:
        target = self.logs / path
        target.parent.stat()  # a folder that was removed must not appear again
        with replacing(target) as stream:
            stream.write(content)
        descriptor = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def move(self, path: str, target: str) -> None:
        (self.logs / target).parent.mkdir(parents=True, exist_ok=True)
        (self.logs / path).rename(self.logs / target)

    def delete(self, path: str) -> None:
        (self.logs / path).unlink(missing_ok=True)

    def free_bytes(self) -> int | None:
        folders = (self.logs, *self.logs.parents)
        return shutil.disk_usage(next(each for each in folders if each.exists())).free

    @contextlib.contextmanager
    def lock(
        self, *, note: Callable[[str], None], lost: Callable[[str], None] = lambda _: None
    ) -> Iterator[None]:
        with remove_if_empty(self.logs / "checkpoints"), lock.hold(Path(self.url), note=note):
            yield

    def holder(self) -> str | None:
        return lock.holder(self.logs)

    def fetch_logs(self, *, changes_only: bool = False) -> None:
        """Do nothing: the logs are in the directory itself."""

    def keep_logs(self, *, last: bool = False, patience_s: float = -1) -> None:
        """Do nothing: the logs are written to the directory itself."""

    def _names(self, folder: str, wanted: Callable[[os.DirEntry], bool]) -> list[str]:
        try:
            with os.scandir(self.logs / folder) as found:
                return sorted(e.name for e in found if e.name[0] != "." and wanted(e))
        except (FileNotFoundError, NotADirectoryError):
            return []


class BucketPlace:
    """A run directory in an object store.

    Checkpoints are written to the store. The logs are written to a local folder; before each
    checkpoint, what they have grown by is uploaded as objects ``NAME.part-OFFSET``, because an
    object cannot be appended to. So the uploaded bytes grow with the run, and the newest checkpoint
    always has its rows. The first upload of an attempt and the last one replace the parts by the
    file.
    """

    def __init__(self, bucket: Bucket, logs: Path) -> None:
        """Transfer nothing yet.

        Args:
          bucket: the run directory.
          logs: an empty folder.
        """
        self.bucket, self.logs = bucket, logs
        self.url = bucket.url
        self._sent: dict[str, tuple[int, int]] = {}
        """For each log, its inode and the bytes that are in the store."""
        self._sending = threading.Lock()

    def create(self) -> None:
        """Do nothing: an object store has no folders."""

    def files(self, folder: str = "") -> list[str]:
        return sorted(path.rpartition("/")[2] for path in self.bucket.entries(folder))

    def folders(self, folder: str = "") -> list[str]:
        return self.bucket.folders(folder)

    def read(self, path: str, size: int | None = None) -> bytes:
        entry = self.bucket.entries(path.rpartition("/")[0]).get(path)
        if entry is None:
            raise FileNotFoundError(f"{self.url}/{path}")
        length = entry.size if size is None else min(size, entry.size)
        (found,) = self.bucket.read_ranges([Range(path, 0, length, entry)]) if length else (b"",)
        if found is None:
            raise FileNotFoundError(f"{self.url}/{path} was replaced while it was read")
        return found

    def write(self, path: str, content: bytes) -> None:
        self.bucket.write(path, content)

    def move(self, path: str, target: str) -> None:
        for each in self.bucket.objects(path) or (path,):
            self.bucket.copy(each, target + each.removeprefix(path))
            self.bucket.delete(each)

    def delete(self, path: str) -> None:
        self.bucket.delete(path)

    def free_bytes(self) -> int | None:
        return None

    def lock(
        self, *, note: Callable[[str], None], lost: Callable[[str], None]
    ) -> contextlib.AbstractContextManager[None]:
        return lock.lease(self.bucket, note=note, lost=lost)

    def holder(self) -> str | None:
        return lock.leaseholder(self.bucket)

    def fetch_logs(self, *, changes_only: bool = False) -> None:
        """Download the logs of the run; those in folders are left out.

        Args:
          changes_only: `keep_logs` uploads only those that are written afterwards.
        """
        found = self.bucket.entries()
        for name in sorted({_whole(path) for path in found if is_own(path)}):
            content, since = b"", 0
            if name in found and (stored := self.bucket.read(name)):
                content, since = stored[0], found[name].modified
            for part in sorted(path for path in found if _whole(path) == name != path):
                # Parts that a killed process did not delete are older than the file.
                valid = int(part[-15:]) == len(content) and found[part].modified >= since
                if valid and (stored := self.bucket.read(part)):
                    content += stored[0]
            (self.logs / name).write_bytes(content)
            if changes_only:
                self._sent[name] = (self.logs / name).stat().st_ino, len(content)

    def keep_logs(self, *, last: bool = False, patience_s: float = -1) -> None:
        """Upload what is new in the logs.

        Args:
          last: replace the parts by the files.
          patience_s: seconds to wait for another thread's upload; below 0: any time.

        Raises:
          StorageError: the store cannot be written to; the next call continues.
        """
        if not self._sending.acquire(timeout=patience_s):
            raise StorageError(f"{self.url}: another upload hangs")
        try:
            for path in self._own_logs():
                with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                    self._send(path, last=last)
        finally:
            self._sending.release()

    def _send(self, path: Path, *, last: bool) -> None:
        name, about = path.relative_to(self.logs).as_posix(), path.stat()
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
                    beside = self.bucket.entries(name.rpartition("/")[0])
                    self.bucket.delete(*(part for part in beside if _whole(part) == name != part))
        self._sent[name] = about.st_ino, sent + len(new)

    def _own_logs(self) -> Iterable[Path]:
        """Yield the local files of the run; temporary ones are hidden."""
        for parent, folders, names in os.walk(self.logs):
            folders[:] = [name for name in folders if not name.startswith(".")]
            for name in names:
                path = Path(parent, name)
                if is_own(path.relative_to(self.logs).as_posix()):
                    yield path


@contextlib.contextmanager
def opened(workdir: Path | str) -> Iterator[Place]:
    """Yield a run directory; the local copy of the logs of one in a store is deleted at the end.

    Args:
      workdir: a path or a URL; it may not exist.
    """
    if not (url := url_of(workdir)):
        yield LocalPlace(Path(workdir))
        return
    place = BucketPlace(Bucket(url), Path(tempfile.mkdtemp(prefix="largebatch-")))
    try:
        yield place
    finally:
        shutil.rmtree(place.logs, ignore_errors=True)


@contextlib.contextmanager
def remove_if_empty(path: Path) -> Iterator[None]:
    """Remove ``path`` and its parents after the body if it created them and left them empty."""
    absent = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        yield
    finally:
        for folder in absent:
            with contextlib.suppress(OSError):  # not created, or not empty
                folder.rmdir()


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


def _whole(path: str) -> str:
    """Return the path of the file that an object is, or is a part of."""
    match = _PART.fullmatch(path)
    return match["name"] if match else path
