"""Directories of shards and the files in them, on a file system or in object storage.

A directory in object storage is listed once. Its shards are then read by ranges, on the condition
that each is still the object that was listed.
"""

import functools
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

from largebatch.data.record_cache import RecordCache, key_of
from largebatch.data.sources import SourceOptions
from largebatch.errors import DataError
from largebatch.files import folders, user_cache
from largebatch.object_store import Bucket, Entry, url_of

S = TypeVar("S")
T = TypeVar("T")
Span = tuple[int, int, int]
"""Number of a record in its file, its first byte and its number of bytes."""

IN_FLIGHT = 256
"""Requests of a process to object storage at once. A thread that decodes takes some 200 photographs
at a time, 0.2 s of work, and waits for one latency of the store, not several. More in flight
would be refused: S3 answers 5,500 requests/s for a prefix, which 256 at 20 ms exceed already.
Threads cost as much processor time as coroutines: 0.4 ms a request, 0.5 ms by asyncio."""
_JOINED = 8 * 2**20  # bytes of neighbours that one request reads
_NEAR = 16 * 1024
_WINDOW = 2**20  # bytes that a scan reads at most
_LARGEST_TEXT = 2**28


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

    def open(self, path: str, scan: int = 0) -> "File":
        """Open a shard.

        Args:
            path: Path or URL of the shard.
            scan: Where its small parts are read in order, bytes of which many hold what the next
                reads want; 0: it is read at random.

        Raises:
            DataError: It cannot be opened.
        """
        ...


class File:
    """A file that is read by position, and closed when nothing refers to it.

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
        """Number of bytes."""
        return os.fstat(self._descriptor).st_size

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes.

        Raises:
            ValueError: The file ends before them.
            OSError, DataError: They cannot be read.
        """
        data = os.pread(self._descriptor, size, offset)
        if len(data) != size:
            raise ValueError(f"it ends at byte {offset + len(data):,}, expected {offset + size:,}")
        return data

    def read_spans(self, spans: Sequence[Span]) -> list[bytes]:
        """Return records; their positions ascend.

        Raises:
            ValueError, OSError, DataError: See `read`.
        """
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
        return File(path)


class ObjectStorage:
    """A folder of object storage, a `Storage`; it is listed once and opened by each process."""

    in_flight = IN_FLIGHT
    scanners = IN_FLIGHT // 2  # Python takes more time for a small request than the store

    def __init__(self, url: str, cache: RecordCache | None = None) -> None:
        """List the folder.

        Args:
            url: See `Bucket`.
            cache: Keeps records; None: every read is a request.

        Raises:
            ConfigError: The URL is malformed, or obstore is not installed.
            StorageError: The store cannot be reached.
        """
        self._bucket: Bucket | None = Bucket(url)
        self.path = self._bucket.url
        self._entries = self._bucket.entries()
        self._cache = cache
        if cache:
            cache.keep_only(map(self._key, self._entries))

    def __getstate__(self) -> dict:
        return self.__dict__ | {"_bucket": None}

    def names(self) -> list[str]:
        return list(self._entries)

    def exists(self) -> bool:
        return bool(self._entries)

    def holds(self, name: str) -> bool:
        return name in self._entries

    def text(self, name: str) -> bytes:
        size = self._entries[name].size
        if size > _LARGEST_TEXT:
            raise DataError(f"{self.path}/{name} has {size:,} bytes; restore the file")
        return self.read(name, 0, size) if size else b""

    def stamp(self, name: str) -> tuple[int, int]:
        if name not in self._entries:
            raise FileNotFoundError(None, "there is no such object")
        return self._entries[name].size, int(self._key(name)[-15:], 16)

    def open(self, path: str, scan: int = 0) -> File:
        name = path.rpartition("/")[2]
        if name not in self._entries:
            raise DataError(f"{path} is absent; restore the object")
        file = ObjectFile(self, name, self._entries[name].size, self._cache, self._key(name))
        return _Window(file, scan) if scan else file

    def read(self, name: str, offset: int, size: int) -> bytes:
        """Return bytes of an object, in one request.

        Raises:
            DataError: The object is no longer the one that was listed.
            StorageError: The store refuses the request.
        """
        if self._bucket is None:
            self._bucket = Bucket(self.path)
        data = self._bucket.read_range(name, offset, size, self._entries[name])
        if data is None:
            raise DataError(
                f"{self.path}/{name} was deleted or replaced after the dataset was opened; restore "
                "the object and start again: the same command resumes the run"
            )
        return data

    @contextmanager
    def copied(self, endings: tuple[str, ...]) -> Iterator[str]:
        """Yield a temporary directory with the files of these endings."""
        with tempfile.TemporaryDirectory(prefix="largebatch-") as directory:
            for name in self._entries:
                if name.endswith(endings):
                    Path(directory, name).write_bytes(self.text(name))
            yield directory

    def _key(self, name: str) -> str:
        entry: Entry = self._entries[name]
        return key_of(f"{self.path}/{name}", f"{entry.size} {entry.tag or entry.modified}")


class ObjectFile(File):
    """An object that is read by ranges; thread-safe."""

    def __init__(
        self, storage: ObjectStorage, name: str, size: int, cache: RecordCache | None, key: str
    ) -> None:
        self._storage = storage
        self._name = name
        self._size = size
        self._cache = cache
        self._key = key

    @property
    def size(self) -> int:
        return self._size

    def read(self, offset: int, size: int) -> bytes:
        if not 0 <= offset <= offset + size <= self._size:
            raise ValueError(f"it ends at byte {self._size:,}, expected {offset + size:,}")
        return self._storage.read(self._name, offset, size) if size else b""

    def read_spans(self, spans: Sequence[Span]) -> list[bytes]:
        found = {}
        for span in spans:
            if self._cache and (data := self._cache.get(self._key, *span)) is not None:
                found[span] = data
        for group in _joined([span for span in spans if span not in found]):
            start, end = group[0][1], group[-1][1] + group[-1][2]
            data = self.read(start, end - start)
            for row, offset, size in group:
                found[row, offset, size] = data[offset - start : offset - start + size]
                if self._cache:
                    self._cache.put(self._key, row, offset, found[row, offset, size])
        return [found[span] for span in spans]


class _Window(File):
    """Reads ahead for a scan: more while the reads are near each other."""

    def __init__(self, file: File, least: int) -> None:
        self._file = file
        self._start, self._data = 0, b""
        self._least = self._length = least

    @property
    def size(self) -> int:
        return self._file.size

    def read(self, offset: int, size: int) -> bytes:
        end = self._start + len(self._data)
        if not self._start <= offset <= offset + size <= end:
            near = 0 <= offset - end <= _NEAR
            self._length = min(4 * self._length, _WINDOW) if near else self._least
            length = min(max(size, self._length), max(size, self.size - offset))
            self._start, self._data = offset, self._file.read(offset, length)
        return self._data[offset - self._start : offset - self._start + size]


def absolute(path: str) -> str:
    """Return an absolute path, without `~`; a URL without a slash at its end."""
    return url_of(path).rstrip("/") or os.path.abspath(os.path.expanduser(path))


def storage_of(path: str, options: SourceOptions) -> Storage:
    """Return the directory of a path or URL.

    Args:
        path: See `absolute`.
        options: `cache_dir` and `cache_bytes` are the cache of objects.

    Raises:
        ConfigError, StorageError: See `ObjectStorage`.
    """
    if not url_of(path):
        return LocalStorage(path)
    cache = None
    if options.cache_bytes:
        directory = os.path.expanduser(options.cache_dir) or user_cache() / "records"
        cache = RecordCache(Path(directory), options.cache_bytes)
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


def at_once(function: Callable[[S], T], items: Iterable[S]) -> list[T]:
    """Return the results of a function that waits for object storage, in order."""
    return list(_threads().map(function, items))


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(IN_FLIGHT, thread_name_prefix="largebatch-objects")


def _joined(spans: Iterable[Span]) -> list[list[Span]]:
    """Divide ascending spans into groups of neighbours."""
    groups: list[list[Span]] = []
    for span in spans:
        _, offset, size = span
        if groups:
            start, end = groups[-1][0][1], groups[-1][-1][1] + groups[-1][-1][2]
            if 0 <= offset - end <= _NEAR and offset + size - start <= _JOINED:
                groups[-1].append(span)
                continue
        groups.append([span])
    return groups
