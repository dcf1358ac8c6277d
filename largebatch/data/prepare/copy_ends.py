"""Both ends of a copy of a dataset: a directory, or a folder of an object store."""

import os
import shutil
import stat
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import NamedTuple, Protocol

from largebatch import object_store
from largebatch.data.prepare import etags
from largebatch.data.prepare.metadata import work_of
from largebatch.errors import DataError
from largebatch.object_store import PART, Bucket

_REQUESTS = 16
"""Parts of large objects that are requested at a time; each takes 16 MiB of memory."""


class FileState(NamedTuple):
    """A file of a dataset: its size in bytes, and what changes when it is written."""

    size: int
    version: str


Listing = dict[str, FileState]


class Source(Protocol):
    """Where files come from."""

    place: str
    ended: threading.Event
    """Set when the copy has failed: `fetch` then ends."""

    def entries(self) -> Listing:
        """Return all files by name, without hidden ones.

        Raises:
            DataError: It cannot be listed.
        """

    def fetch(self, name: str, entry: FileState, scratch: Path) -> Path:
        """Return a local file with the content, which is written to ``scratch`` if necessary.

        Raises:
            DataError: The file has changed since it was listed.
        """


class Folder:
    """A directory of this machine; a version is a time of modification."""

    def __init__(self, path: Path) -> None:
        """Take the directory."""
        self.path, self.place = path, str(path.absolute())
        self.ended = threading.Event()

    def entries(self) -> Listing:
        """Return all files; see `Source.entries`."""
        return list_folder(self.path)

    def fetch(self, name: str, entry: FileState, scratch: Path) -> Path:
        """Return the file itself; the last listing finds changes."""
        return self.path / name


class Objects:
    """A folder of an object store; a version is an ETag."""

    def __init__(self, bucket: Bucket) -> None:
        """Take the folder; send no request yet."""
        self.bucket, self.place = bucket, bucket.url
        self.ended = threading.Event()
        self._listed: dict[str, object_store.Entry] = {}
        self._requests = ThreadPoolExecutor(_REQUESTS, "part")

    def entries(self) -> Listing:
        """Return all objects; see `Source.entries`."""
        self._listed = self.bucket.objects()
        found = {
            name: FileState(entry.size, entry.tag)
            for name, entry in self._listed.items()
            if _is_visible(name)
        }
        # Consoles of clouds create empty objects in place of folders.
        folders = {str(folder) for name in found for folder in PurePosixPath(name).parents}
        for name in folders & found.keys():
            if found.pop(name).size:
                raise DataError(
                    f"--copy: {self.place} has an object {name} and objects in a folder of this "
                    "name, which a directory cannot have; rename one"
                )
        # A listing names `empty` and `empty/` alike.
        for above in {name.rpartition("/")[0] for name, state in found.items() if not state.size}:
            for folder in self.bucket.folders(above):
                name = f"{above}/{folder}".lstrip("/")
                if name in found and not found[name].size:
                    del found[name]
        return found

    def fetch(self, name: str, entry: FileState, scratch: Path) -> Path:
        """Download an object, a large one by parts."""
        ended = threading.Event()

        def write(file: int, start: int) -> None:
            if ended.is_set() or self.ended.is_set():
                raise DataError(f"--copy: the copy of {self.place}/{name} was interrupted")
            size = min(PART, entry.size - start)
            content = self.bucket.read_range(name, start, size, self._listed[name])
            if content is None:
                raise changed(self.place, name)
            view = memoryview(content)
            while view:
                written = os.pwrite(file, view, start)
                view, start = view[written:], start + written

        with scratch.open("wb") as stream:
            starts = range(0, entry.size, PART)
            if len(starts) <= 1:
                for start in starts:
                    write(stream.fileno(), start)
            else:
                parts = [self._requests.submit(write, stream.fileno(), start) for start in starts]
                try:
                    for part in parts:
                        part.result()
                finally:  # the file is closed after its last part
                    ended.set()
                    for part in parts:
                        part.exception()
            os.fsync(stream.fileno())
        return scratch


def list_folder(path: Path, *, finished: bool = True) -> Listing:
    """Return all files below a directory by name, without hidden ones.

    Args:
        path: The directory.
        finished: Whether a set that is being written is an error.

    Raises:
        DataError: It is, or there is anything but files.
        OSError: A folder cannot be listed.
    """
    found = {}

    def failed(error: OSError) -> None:
        raise error

    for parent, folders, names in os.walk(path, followlinks=True, onerror=failed):
        work = work_of(Path(parent))
        if finished and work.name in folders:
            raise DataError(
                f"{parent} is unfinished ({work} exists); give the command that writes it again, "
                "then copy"
            )
        folders[:] = [name for name in folders if not name.startswith(".")]
        for file in (Path(parent, name) for name in names if not name.startswith(".")):
            status = file.stat()
            if not stat.S_ISREG(status.st_mode):
                raise DataError(f"{file} is not a file; remove it")
            found[file.relative_to(path).as_posix()] = FileState(
                status.st_size, str(status.st_mtime_ns)
            )
    return found


def changed(place: str, name: str) -> DataError:
    """Return the error for a file that has changed during the copy."""
    return DataError(
        f"--copy: {place}/{name} has changed during the copy; wait until nobody writes there, then "
        "give the same command again"
    )


def check_no_others(place: str, present: Iterable[str], wanted: Listing) -> None:
    """Raise a DataError if a target holds files that the source does not have."""
    if others := sorted(set(present) - set(wanted)):
        raise DataError(
            f"--copy: {place} holds {len(others):,} files that the source does not have, such as "
            f"{others[0]}; remove them or use another directory"
        )


def matching(path: Path, tag: str) -> str:
    """Return what an ETag proves of a file.

    Returns:
        ``md5`` if it is equal, ``size`` if it is no MD5, '' if it differs.
    """
    equal = etags.is_of(tag, path)
    return "size" if equal is None else "md5" if equal else ""


def copy_file(source: Path, target: Path) -> None:
    """Copy the content of a file to the disk."""
    with source.open("rb") as reading, target.open("wb") as writing:
        shutil.copyfileobj(reading, writing, PART)
        writing.flush()
        os.fsync(writing.fileno())


def _is_visible(name: str) -> bool:
    """Return whether the name of an object is a relative path without hidden or parent folders."""
    return not name.startswith("/") and not any(part[:1] in (".", "") for part in name.split("/"))
