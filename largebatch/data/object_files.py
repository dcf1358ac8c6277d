"""A folder of object storage, whose shards are read by ranges.

It is listed once. Each read is on the condition that the object is still the one that was listed.
"""

import concurrent.futures.thread  # noqa: F401  # its own wait at the end is then after ours
import functools
import itertools
import queue
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from largebatch.data.record_cache import RecordCache, key_of
from largebatch.errors import DataError
from largebatch.object_store import Bucket, Entry, StorageError

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
_LOOKING_S = 1.0  # between looks whether the process ends


# Set before the interpreter waits for threads, such as those of the feed, which wait for these.
_ending = threading.Event()
threading._register_atexit(_ending.set)  # type: ignore[attr-defined]


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

    def open(self, path: str, scan: int = 0) -> "ObjectFile":
        name = path.rpartition("/")[2]
        if name not in self._entries:
            raise DataError(f"{path} is absent; restore the object")
        arguments = (self, name, self._entries[name].size, self._cache, self._key(name))
        return _Window(scan, *arguments) if scan else ObjectFile(*arguments)

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


class ObjectFile:
    """An object that is read by ranges, a `File`; thread-safe."""

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


class _Window(ObjectFile):
    """Reads ahead for a scan by one thread: more while the reads are near each other."""

    def __init__(self, least: int, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._start, self._data = 0, b""
        self._least = self._length = least

    def read(self, offset: int, size: int) -> bytes:
        end = self._start + len(self._data)
        if not self._start <= offset <= offset + size <= end:
            near = 0 <= offset - end <= _NEAR
            self._length = min(4 * self._length, _WINDOW) if near else self._least
            length = min(max(size, self._length), max(size, self.size - offset))
            self._start, self._data = offset, super().read(offset, length)
        return self._data[offset - self._start : offset - self._start + size]


def at_once(function: Callable[[S], T], items: Iterable[S]) -> list[T]:
    """Return the results of a function that waits for object storage, in order.

    A store that does not answer does not keep the process from ending.

    Raises:
        StorageError: The process ends before the results are there.
    """
    return [_result(future) for future in [_threads().submit(function, item) for item in items]]


def _result(future: Future[T]) -> T:
    while True:
        try:
            return future.result(_LOOKING_S)
        except TimeoutError:
            if future.done():  # it is the function's own
                raise
            if _ending.is_set():  # the interpreter waits for this thread
                raise StorageError(
                    "object storage has not answered before the process ended; "
                    "check the network and the server"
                ) from None


class _DaemonThreads:
    """Threads for which the interpreter does not wait when the process ends."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._tasks: queue.SimpleQueue[tuple[Future, Callable, Any]] = queue.SimpleQueue()
        self._started = itertools.count()

    def submit(self, function: Callable[[S], T], item: S) -> Future[T]:
        future: Future[T] = Future()
        self._tasks.put((future, function, item))
        if (number := next(self._started)) < self._count:
            name = f"largebatch-objects-{number}"
            threading.Thread(target=self._work, name=name, daemon=True).start()
        return future

    def _work(self) -> None:
        while True:
            future, function, item = self._tasks.get()
            try:
                future.set_result(function(item))
            except BaseException as error:  # raised by `Future.result`
                future.set_exception(error)
            del future, function, item


@functools.cache
def _threads() -> _DaemonThreads:
    return _DaemonThreads(IN_FLIGHT)


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
