"""Records of object storage, kept on a local disk.

For each object there is a sparse file, in which record r of n bytes from byte b lies at 16·r + b,
after 16 bytes: the CRC-32 of what follows, r and b modulo 2^32, and n. A record that is absent,
torn or overwritten has another checksum and is read from the object again. So nothing has to be
locked, flushed or indexed, and a crash needs no repair.

A record stays until its object is replaced, and nothing is stored beyond the limit. In a random
order every record is read once an epoch. A cache of a share s of the dataset that drops the least
recently used record has dropped nearly every record before it is read again; one that keeps the
first ones answers the share s of all reads.
"""

import contextlib
import functools
import hashlib
import os
import struct
import threading
import zlib
from collections.abc import Iterable
from pathlib import Path

from largebatch.errors import ConfigError
from largebatch.files import no_folder_reason

_HEADER = struct.Struct("<IIII")
_PLACE = struct.Struct("<III")
_MASK = 0xFFFFFFFF
_BLOCK = 4096  # bytes that a disk allocates at a time
STEP = 32 * 2**20
"""Bytes that a process stores before it measures the cache again; n processes that store at once
exceed the limit by less than n times as much."""


class RecordCache:
    """A directory of records, used by any number of threads, processes and runs at once."""

    def __init__(self, directory: Path, limit: int) -> None:
        """Create the directory.

        Args:
            directory: Where the files are.
            limit: Bytes on the disk at which storing stops.

        Raises:
            ConfigError: See `create`.
        """
        self._directory = directory
        self._limit = limit
        self._lock = threading.Lock()
        self.create()

    def create(self) -> None:
        """Create the directory where it is absent, and measure it again.

        Raises:
            ConfigError: The directory cannot be created, listed or written.
        """
        with self._lock:
            self._left = 0  # bytes until the cache is measured again
            self._full = False
        directory = self._directory
        try:
            directory.mkdir(parents=True, exist_ok=True)
            if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
                raise PermissionError(None, "no permission")
        except OSError as error:
            raise ConfigError(
                f"data.cache_gb: expected a directory {directory} that can be read and written "
                f"({no_folder_reason(error)}); set $XDG_CACHE_HOME to another one, or "
                "data.cache_gb=0"
            ) from error

    def __reduce__(self) -> tuple:
        return open_cache, (self._directory, self._limit)

    def get(self, key: str, row: int, offset: int, size: int) -> bytes | None:
        """Return a record; None if it is not stored.

        Args:
            key: See `key_of`.
            row: Number of the record in its object.
            offset: Its first byte in the object.
            size: Number of its bytes.
        """
        try:
            descriptor = os.open(self._directory / key, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            entry = os.pread(descriptor, _HEADER.size + size, _HEADER.size * row + offset)
        except OSError:
            return None
        finally:
            os.close(descriptor)
        if len(entry) != _HEADER.size + size:
            return None
        if entry[4 : _HEADER.size] != _place(row, offset, size):
            return None
        if zlib.crc32(memoryview(entry)[4:]) != int.from_bytes(entry[:4], "little"):
            return None
        return entry[_HEADER.size :]

    def put(self, key: str, row: int, offset: int, data: bytes) -> None:
        """Store a record if there is room; a disk that is full or fails is no error.

        Args:
            key: See `key_of`.
            row: As of `get`.
            offset: As of `get`.
            data: The record.
        """
        if not self._reserved(len(data) + _HEADER.size):
            return
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
            descriptor = os.open(self._directory / key, flags, 0o644)
            try:
                place = _place(row, offset, len(data))
                check = zlib.crc32(data, zlib.crc32(place)).to_bytes(4, "little")
                os.pwritev(descriptor, (check, place, data), _HEADER.size * row + offset)
            finally:
                os.close(descriptor)
        except OSError:
            self._full = True

    def keep_only(self, keys: Iterable[str]) -> None:
        """Remove the records of other versions of these objects."""
        current = {key.partition("-")[0]: key for key in keys}
        for name in os.listdir(self._directory):
            if current.get(name.partition("-")[0], name) != name:
                with contextlib.suppress(OSError):  # another process removes it, too
                    os.unlink(self._directory / name)

    def used(self) -> int:
        """Return the bytes that the files occupy on the disk."""
        total = 0
        with os.scandir(self._directory) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    total += entry.stat().st_blocks * 512
        return total

    def _reserved(self, size: int) -> bool:
        """Return whether bytes may be stored."""
        size = -(-size // _BLOCK) * _BLOCK + _BLOCK
        with self._lock:
            if self._full:
                return False
            if self._left < size:
                try:
                    self._left = min(STEP, self._limit - self.used())
                except OSError:
                    self._left = 0
                self._full = self._left < size
            self._left -= size
            return not self._full


def open_cache(directory: Path, limit: int) -> RecordCache:
    """Return the cache that all datasets of this process share, so that they share its limit.

    Raises:
        ConfigError: See `RecordCache`.
    """
    cache = _shared(directory, limit)
    cache.create()
    return cache


_shared = functools.cache(RecordCache)


def key_of(url: str, version: str) -> str:
    """Return the name of an object's file: hashes of its URL and of its version."""
    parts = (hashlib.blake2b(part.encode(), digest_size=12).hexdigest() for part in (url, version))
    return "-".join(parts)


def _place(row: int, offset: int, size: int) -> bytes:
    """Return the header without its checksum."""
    return _PLACE.pack(row & _MASK, offset & _MASK, size & _MASK)
