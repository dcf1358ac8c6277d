"""Images that are ranges of bytes of files, on a disk or in object storage.

All forms that are read in place are such ranges; the modules of the forms find them.
"""

import functools
import hashlib
import os
import resource
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from largebatch.data.record_cache import RecordCache, key_of, open_cache
from largebatch.data.source import Source, checked_labels, unreadable
from largebatch.errors import DataError
from largebatch.files import printable
from largebatch.object_store import IN_FLIGHT, Bucket, Entry, Range
from largebatch.store_urls import url_of

WHOLE = -1
"""In place of a number of bytes: the whole file."""
_MOST_OPEN = 4096  # shards of a split; ImageNet has 1,024
_SHARE_OF_OPEN_FILES = 4  # two splits then hold half of the files that the process may open
_JOINED = 8 * 2**20  # bytes of neighbours that one request reads
_NEAR = 16 * 1024  # bytes between neighbours
_LARGEST_TEXT = 2**28
_WINDOW = 2**20  # bytes that a scan reads at most


class Span(NamedTuple):
    """A range of bytes of a file."""

    name: str
    """Path of the file below that of the storage."""
    offset: int
    size: int
    """Number of bytes, or `WHOLE`."""


class Storage(Protocol):
    """A directory of a file system, or a folder of object storage; thread-safe.

    Attributes:
        path: Absolute path or URL.
        scanners: Files to be scanned at once.
    """

    path: str
    scanners: int

    def listing(self, folder: str = "") -> tuple[list[str], list[str]]:
        """Return the names of the files and of the folders in a folder.

        Raises:
            OSError, StorageError: It cannot be listed.
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
            OSError, DataError, StorageError: It cannot be read.
        """
        ...

    def stamp(self, name: str) -> tuple[int, int]:
        """Return the size of a file and a number that changes with its content.

        Raises:
            OSError: It cannot be read.
        """
        ...

    def read(self, spans: Sequence[Span], *, keep: bool = False) -> list[bytes]:
        """Return ranges of files.

        Args:
            spans: The ranges.
            keep: Whether they may be kept on the local disk.

        Raises:
            ValueError: A file ends before a range.
            OSError, DataError, StorageError: One cannot be read.
            DataError: A file has changed since its `stamp` was taken.
        """
        ...


class Disk:
    """A directory of a file system, a `Storage`."""

    scanners = 16  # for file systems on which a read waits

    def __init__(self, path: str) -> None:
        self.path = path
        self._opened = functools.lru_cache(most_open())(_OpenFile)
        self._stamps: dict[str, tuple[int, int]] = {}

    def listing(self, folder: str = "") -> tuple[list[str], list[str]]:
        files, folders = [], []
        with os.scandir(os.path.join(self.path, folder)) as entries:
            for entry in entries:
                (folders if entry.is_dir() else files).append(entry.name)
        return files, folders

    def exists(self) -> bool:
        return os.path.isdir(self.path)

    def holds(self, name: str) -> bool:
        return os.path.isfile(os.path.join(self.path, name))

    def text(self, name: str) -> bytes:
        return Path(self.path, name).read_bytes()

    def stamp(self, name: str) -> tuple[int, int]:
        self._stamps[name] = _stamp(os.stat(os.path.join(self.path, name)))
        return self._stamps[name]

    def read(self, spans: Sequence[Span], *, keep: bool = False) -> list[bytes]:
        return [self._read(*span) for span in spans]

    def _read(self, name: str, offset: int, size: int) -> bytes:
        path = os.path.join(self.path, name)
        if size == WHOLE:
            with open(path, "rb", buffering=0) as file:
                return file.readall()
        return self._opened(path, self._stamps.get(name)).read(offset, size)


def _stamp(status: os.stat_result) -> tuple[int, int]:
    """Return the size of a file and the time at which it was changed."""
    return status.st_size, status.st_mtime_ns


class _OpenFile:
    """A file that is closed when nothing refers to it, so not during another thread's read."""

    def __init__(self, path: str, stamp: tuple[int, int] | None) -> None:
        """Open a file that has a stamp; None: whichever it has."""
        self._path, self._expected = path, stamp
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        if hasattr(os, "posix_fadvise"):  # no reading ahead of an image that is not wanted
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_RANDOM)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if hasattr(self, "_descriptor"):
            close(self._descriptor)

    def read(self, offset: int, size: int) -> bytes:
        if self._expected not in (None, _stamp(os.fstat(self._descriptor))):
            raise _changed(self._path)
        data = os.pread(self._descriptor, size, offset)
        if len(data) != size:
            raise ValueError(f"it ends at byte {offset + len(data):,}, expected {offset + size:,}")
        return data


class BucketFolder:
    """A folder of object storage, a `Storage`.

    Each folder is listed once. A range is read on the condition that its object is still the one
    that was listed.
    """

    scanners = IN_FLIGHT // 2  # Python takes more time for a small request than the store

    def __init__(self, url: str, cache: RecordCache | None = None) -> None:
        """List the folder.

        Args:
            url: See `object_store.Bucket`.
            cache: Keeps ranges; None: every read is a request.

        Raises:
            ConfigError: The URL is malformed, or obstore is not installed.
            StorageError: The store cannot be reached.
        """
        self._bucket = Bucket(url)
        self.path = self._bucket.url
        self._entries: dict[str, Entry] = {}
        self._listed: dict[str, tuple[list[str], list[str]]] = {}
        self.listing()
        self._cache = cache
        if cache:
            cache.keep_only(map(self._key, self._entries))

    def listing(self, folder: str = "") -> tuple[list[str], list[str]]:
        if folder not in self._listed:
            found, folders = self._bucket.listing(folder)
            self._entries |= found
            self._listed[folder] = [name.rpartition("/")[2] for name in found], folders
        return self._listed[folder]

    def exists(self) -> bool:
        return any(self.listing())

    def holds(self, name: str) -> bool:
        return name in self._entries

    def text(self, name: str) -> bytes:
        size = self._entries[name].size
        if size > _LARGEST_TEXT:
            raise DataError(f"{self.path}/{name} has {size:,} bytes; restore the file")
        return self.read([Span(name, 0, size)])[0]

    def stamp(self, name: str) -> tuple[int, int]:
        if name not in self._entries:
            raise FileNotFoundError(None, "there is no such object")
        return self._entries[name].size, int(self._key(name)[-15:], 16)

    def read(self, spans: Sequence[Span], *, keep: bool = False) -> list[bytes]:
        spans = [self._sized(span) for span in spans]
        found = {span: data for span in set(spans) if (data := self._kept(span)) is not None}
        groups = _joined(sorted(set(spans) - found.keys()))
        ranges = []
        for group in groups:
            name, start = group[0].name, group[0].offset
            ranges.append(Range(name, start, _end(group[-1]) - start, self._entries[name]))
        for group, data in zip(groups, self._bucket.read_ranges(ranges), strict=True):
            if data is None:
                raise _changed(f"{self.path}/{group[0].name}")
            for span in group:
                at = span.offset - group[0].offset
                found[span] = data[at : at + span.size]
                if self._cache and keep:
                    self._cache.put(self._key(span.name), span.offset, found[span])
        return [found[span] for span in spans]

    def _sized(self, span: Span) -> Span:
        """Return a range with its number of bytes; raise an error unless the object has it."""
        if span.name not in self._entries:
            raise DataError(f"{self.path}/{span.name} is absent; restore the object")
        size = self._entries[span.name].size
        if span.size == WHOLE:
            return span._replace(size=size)
        if _end(span) > size:
            raise ValueError(f"it ends at byte {size:,}, expected {_end(span):,}")
        return span

    def _kept(self, span: Span) -> bytes | None:
        """Return a range that needs no request."""
        if span.size == 0:
            return b""
        return self._cache.get(self._key(span.name), *span[1:]) if self._cache else None

    def _key(self, name: str) -> str:
        entry: Entry = self._entries[name]
        return key_of(f"{self.path}/{name}", f"{entry.size} {entry.tag or entry.modified}")


def _changed(path: str) -> DataError:
    return DataError(
        f"{path} was deleted or replaced after the dataset was opened; restore it and start again: "
        "the same command resumes the run"
    )


def storage_of(path: str, cache_bytes: int = 0) -> Storage:
    """Return the directory of a path or URL.

    Args:
        path: See `absolute`.
        cache_bytes: Bytes of object storage kept on the local disk.

    Raises:
        ConfigError, StorageError: See `BucketFolder`.
    """
    if not url_of(path):
        return Disk(path)
    return BucketFolder(path, open_cache(cache_bytes) if cache_bytes else None)


def absolute(path: str) -> str:
    """Return an absolute path, without `~`; a URL without a slash at its end."""
    return url_of(path).rstrip("/") or os.path.abspath(os.path.expanduser(path))


class Window:
    """A file that is scanned: small parts in order, of which one read has many.

    It reads more at a time while the parts are near each other.

    Attributes:
        size: Bytes of the file.
    """

    def __init__(self, storage: Storage, name: str, least: int) -> None:
        """Read nothing yet.

        Args:
            storage: The directory.
            name: The file.
            least: Bytes of which many hold what the next parts are.
        """
        self.size = storage.stamp(name)[0]
        self._storage = storage
        self._name = name
        self._start, self._data = 0, b""
        self._least = self._length = least

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes; a ValueError or those of `Storage.read` if there are fewer."""
        end = self._start + len(self._data)
        if not self._start <= offset <= offset + size <= end:
            if not 0 <= offset <= offset + size <= self.size:
                raise ValueError(f"it ends at byte {self.size:,}, expected {offset + size:,}")
            near = self._start <= offset <= end + _NEAR
            self._length = min(4 * self._length, _WINDOW) if near else self._least
            length = min(max(size, self._length), self.size - offset)
            (self._data,) = self._storage.read([Span(self._name, offset, length)])
            self._start = offset
        return self._data[offset - self._start : offset - self._start + size]


Scan = Callable[[Storage, str], np.ndarray]
"""Called as scan(storage, name); finds the images of a file: int64 (n, 3), first byte, number of
bytes and label of each. Raises a DataError or ValueError if the file is damaged."""


class FileSource(Source):
    """One split of images in files, several in each; a subclass has `read`.

    Attributes:
        files: Paths of the files, in order.
        lengths: int64, number of images of each file.
    """

    files: Sequence[str]

    def __init__(
        self,
        name: str,
        split: str,
        classes: tuple[str, ...],
        directory: str,
        lengths: Sequence[int],
        note: str,
    ) -> None:
        """Check that there are images.

        Args:
            name: The specification it was opened by.
            split: `train` or `validation`.
            classes: Name of each label.
            directory: That of the files.
            lengths: Number of images of each file.
            note: What was found where, for `describe`.

        Raises:
            DataError: There is no image.
        """
        self.name, self.classes = name, classes
        self._split, self._directory, self._note = split, directory, note
        self.lengths = np.asarray(lengths, np.int64)
        if not self.lengths.sum():
            raise DataError(f"{directory}: the {split} files hold no image; write them again")
        self._starts = np.cumsum(self.lengths) - self.lengths

    def __len__(self) -> int:
        return int(self.lengths.sum())

    def where(self, example: int) -> str:
        file = int(self._file_of(np.array([example]))[0])
        path = printable(os.path.join(self._directory, self.files[file]))
        return f"{path}, record {example - self._starts[file]} (counted from 0)"

    def describe(self) -> str:
        return (
            f"{self.name}: {len(self):,} {self._split} images, {len(self.classes):,} classes "
            f"({self._note})"
        )

    def _file_of(self, ids: np.ndarray) -> np.ndarray:
        """Return the number of the file of each example, int64 (b,)."""
        return np.searchsorted(self._starts, ids, side="right") - 1


class RangeSource(FileSource):
    """One split of images that are ranges of files."""

    def __init__(
        self,
        name: str,
        split: str,
        classes: tuple[str, ...],
        storage: Storage,
        files: Sequence[str],
        lengths: Sequence[int],
        rows: np.ndarray,
        note: str,
    ) -> None:
        """Read nothing yet; see `FileSource`.

        `files` are paths below the directory `storage`; `rows`, int64 (n, 3), is the result of
        `Scan` of all of them. `record_cache` needs 12 other bytes between two ranges of a file.

        Raises:
            DataError: There is no image, or a label is not of a class.
        """
        super().__init__(name, split, classes, storage.path, lengths, note)
        self._storage = storage
        self.files = _Names(files)
        self._offsets, self._sizes, labels = rows.T.copy()
        self.labels = checked_labels(labels, len(classes), self.where)

    def read(self, ids: np.ndarray) -> tuple[list[bytes], np.ndarray]:
        ids = np.asarray(ids, np.int64)
        spans = [
            Span(self.files[file], offset, size)
            for file, offset, size in zip(
                self._file_of(ids).tolist(),
                self._offsets[ids].tolist(),
                self._sizes[ids].tolist(),
                strict=True,
            )
        ]
        try:
            images = self._storage.read(spans, keep=True)
        except (OSError, ValueError):  # find the one that fails, to name it
            images = [self._read(i, s) for i, s in zip(ids.tolist(), spans, strict=True)]
        return images, self.labels[ids]

    def _read(self, example: int, span: Span) -> bytes:
        try:
            return self._storage.read([span], keep=True)[0]
        except (OSError, ValueError) as error:
            raise unreadable(self.where(example), error) from error

    def where(self, example: int) -> str:
        place = super().where(example)
        return place.partition(", record ")[0] if self._sizes[example] == WHOLE else place

    def marks(self) -> list[bytes]:
        """Return the names of the files, and hashes of the numbers of their images and ranges."""
        numbers = (self.files.ends, self._starts, self._offsets, self._sizes, self.labels)
        data = (np.ascontiguousarray(each, "<i8").tobytes() for each in numbers)
        hashes = (hashlib.blake2b(each, digest_size=8).digest() for each in data)
        return [os.fsencode(self.files.joined), *hashes]


class _Names:
    """A million file names in some 30 bytes each."""

    def __init__(self, names: Sequence[str]) -> None:
        self.joined = "".join(names)
        self.ends = np.cumsum([len(name) for name in names], dtype=np.int64)

    def __getitem__(self, index: int) -> str:
        start = self.ends[index - 1] if index else 0
        return self.joined[start : self.ends[index]]


def _end(span: Span) -> int:
    return span.offset + span.size


def _joined(spans: Iterable[Span]) -> list[list[Span]]:
    """Divide ascending spans into groups of neighbours, each read by one request."""
    groups: list[list[Span]] = []
    for span in spans:
        if groups and groups[-1][0].name == span.name:
            near = 0 <= span.offset - _end(groups[-1][-1]) <= _NEAR
            if near and _end(span) - groups[-1][0].offset <= _JOINED:
                groups[-1].append(span)
                continue
        groups.append([span])
    return groups


def most_open() -> int:
    """Return the shards of a split to keep open; raise the process's soft limit if too low.

    The soft limit is often 1,024 because of `select()`, and the hard limit far higher.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_OPEN * _SHARE_OF_OPEN_FILES
    if soft == resource.RLIM_INFINITY:
        return _MOST_OPEN
    if soft < wanted:
        higher = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(OSError, ValueError):  # the system may have another limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (higher, hard))
            soft = higher
    return max(1, min(_MOST_OPEN, soft // _SHARE_OF_OPEN_FILES))
