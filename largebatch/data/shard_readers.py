"""Shards of one split in one format, and a cache of those that are open."""

import os
import resource
import threading
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from largebatch.errors import DataError

# Two splits then hold half of the files that the process may open.
_SHARE_OF_OPEN_FILES = 4


class Reader(Protocol):
    """An open shard, read by several threads at once."""

    def read(self, row: int) -> tuple[bytes, int]:
        """Return the encoded image and the label of a record.

        Raises:
            OSError, RuntimeError, ValueError: The record cannot be read.
        """
        ...


class RowsReader(Reader, Protocol):
    """An open shard that reads neighbours together."""

    def read_rows(self, rows: Sequence[int]) -> list[tuple[bytes, int]]:
        """Return what `read` does of each record, in ascending order.

        Raises:
            OSError, RuntimeError, ValueError, DataError: A record cannot be read.
        """
        ...


@dataclass(frozen=True)
class Shards:
    """The files of one split in one format, which a subclass opens; it can be pickled.

    Attributes:
        paths: In the order of the examples.
        lengths: Records of each.
    """

    paths: tuple[str, ...]
    lengths: tuple[int, ...]

    def open(self, shard: int) -> Reader:
        """Open a file.

        Raises:
            DataError: It cannot be opened or has another number of records.
        """
        raise NotImplementedError

    @property
    def open_at_once(self) -> int:
        """Greatest number of open files; 0: as many as the process may open."""
        return 0

    @property
    def in_flight(self) -> int:
        """Reads at once; if more than 1, `open` returns a `RowsReader`."""
        return 1

    def mark(self, shard: int) -> bytes:
        """Return what distinguishes a shard from another, such as its name and its length."""
        return os.fsencode(f"{os.path.basename(self.paths[shard])} {self.lengths[shard]}")


class Readers:
    """A cache of open shards, the most recently used ones; thread-safe.

    Threads share a reader, which reads by position and releases the interpreter lock. A reader that
    is dropped during another thread's read stays open until that read returns.

    Attributes:
        most: Greatest number of open shards.
    """

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._lock = threading.Lock()
        self._opened: OrderedDict[int, Reader] = OrderedDict()
        self.most = shards.open_at_once or _most_open(len(shards.paths))

    def __reduce__(self) -> tuple[type, tuple[Shards]]:
        return Readers, (self._shards,)  # another process opens its own

    def of(self, shard: int) -> Reader:
        """Return the reader of a shard.

        Raises:
            DataError: See `Shards.open`.
        """
        with self._lock:
            reader = self._opened.get(shard)
            if reader is not None:
                self._opened.move_to_end(shard)
                return reader
        reader = self._shards.open(shard)  # outside the lock: slow on a network file system
        with self._lock:
            reader = self._opened.setdefault(
                shard, reader
            )  # another thread may have opened it, too
            self._opened.move_to_end(shard)
            if len(self._opened) > self.most:
                self._opened.popitem(last=False)
            return reader


def check_length(path: str, found: int, length: int) -> None:
    """Raise a DataError unless a file has the expected number of records."""
    if found != length:
        raise DataError(
            f"{path} holds {found:,} records, not {length:,}; "
            "restore the file or prepare the dataset again"
        )


def _most_open(files: int) -> int:
    """Return the number of files to keep open; raise the process's soft limit if too low.

    The soft limit is often 1,024 because of `select()`, and the hard limit far higher.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = files * _SHARE_OF_OPEN_FILES
    if soft == resource.RLIM_INFINITY:
        return files
    if soft < wanted:
        higher = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(OSError, ValueError):  # the system may have another limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (higher, hard))
            soft = higher
    return max(1, min(files, soft // _SHARE_OF_OPEN_FILES))
