"""Directories of shards and the files in them, on a file system or in object storage."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from largebatch.data.object_files import ObjectStorage, Span
from largebatch.data.record_cache import open_cache
from largebatch.data.sources import SourceOptions
from largebatch.errors import DataError
from largebatch.files import folders, user_cache
from largebatch.object_store import Bucket
from largebatch.store_urls import url_of


class File(Protocol):
    """A file that is read by position, by several threads at once."""

    @property
    def size(self) -> int:
        """Number of bytes."""
        ...

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes.

        Raises:
            ValueError: The file ends before them.
            OSError, DataError, StorageError: They cannot be read.
        """
        ...

    def read_spans(self, spans: Sequence[Span]) -> list[bytes]:
        """Return records; their positions ascend.

        Raises:
            ValueError, OSError, DataError, StorageError: See `read`.
        """
        ...


class Storage(Protocol):
    """A directory of shards; it can be pickled into a worker process.

    Attributes:
        path: Absolute path or URL.
        in_flight: Records to be read at once; 1 where a read is a copy from memory.
        scanners: Files to be scanned at once.
    """

    path: str
    in_flight: int
    scanners: int

    def names(self) -> list[str]:
        """Return the names of all entries.

        Raises:
            OSError: The directory cannot be listed.
        """
        ...

    def exists(self) -> bool:
        """Return whether there is such a directory."""
        ...

    def holds(self, name: str) -> bool:
        """Return whether there is a file of a name."""
        ...

    def text(self, name: str) -> bytes:
        """Return the content of a small file, such as an index.

        Raises:
            OSError, DataError: It cannot be read.
        """
        ...

    def stamp(self, name: str) -> tuple[int, int]:
        """Return the size of a file and a number that changes with its content.

        Raises:
            OSError: It cannot be read.
        """
        ...

    def open(self, path: str, scan: int = 0) -> File:
        """Open a shard.

        Args:
            path: Path or URL of the shard.
            scan: Where its small parts are read in order, bytes of which many hold what the next
                reads want; 0: it is read at random.

        Raises:
            DataError: It cannot be opened.
        """
        ...


class LocalFile:
    """A `File` that is closed when nothing refers to it.

    Raises:
        DataError: It cannot be opened.
    """

    def __init__(self, path: str) -> None:
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise DataError(
                f"{path} cannot be read: {error.strerror}; restore the file or prepare the "
                "dataset again"
            ) from error
        if hasattr(os, "posix_fadvise"):  # no reading ahead of a record that is not wanted
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_RANDOM)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)

    @property
    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read(self, offset: int, size: int) -> bytes:
        data = os.pread(self._descriptor, size, offset)
        if len(data) != size:
            raise ValueError(f"it ends at byte {offset + len(data):,}, expected {offset + size:,}")
        return data

    def read_spans(self, spans: Sequence[Span]) -> list[bytes]:
        return [self.read(offset, size) for _, offset, size in spans]


class LocalStorage:
    """A directory of a file system, a `Storage`."""

    in_flight = 1
    scanners = 16  # for file systems on which a read waits

    def __init__(self, path: str) -> None:
        self.path = path

    def names(self) -> list[str]:
        return os.listdir(self.path)

    def exists(self) -> bool:
        return os.path.isdir(self.path)

    def holds(self, name: str) -> bool:
        return os.path.isfile(os.path.join(self.path, name))

    def text(self, name: str) -> bytes:
        return Path(self.path, name).read_bytes()

    def stamp(self, name: str) -> tuple[int, int]:
        status = os.stat(os.path.join(self.path, name))
        return status.st_size, status.st_mtime_ns

    def open(self, path: str, scan: int = 0) -> File:
        return LocalFile(path)


def absolute(path: str) -> str:
    """Return an absolute path, without `~`; a URL without a slash at its end."""
    return url_of(path).rstrip("/") or os.path.abspath(os.path.expanduser(path))


def storage_of(path: str, options: SourceOptions) -> Storage:
    """Return the directory of a path or URL.

    Args:
        path: See `absolute`.
        options: `cache_bytes` is the size of the cache of records.

    Raises:
        ConfigError, StorageError: See `ObjectStorage`.
    """
    if not url_of(path):
        return LocalStorage(path)
    cache = None
    if options.cache_bytes:
        cache = open_cache(user_cache() / "records", options.cache_bytes)
    return ObjectStorage(path, cache)


def subfolders(path: str) -> list[str]:
    """Return the names of the folders in a directory or below a URL; none if it is absent.

    Raises:
        StorageError: The store cannot be reached.
    """
    if url_of(path):
        return Bucket(path).folders()
    try:
        return folders(path)
    except OSError:
        return []
