"""Ranges of objects in object storage, kept on a local disk.

For each object there is a sparse file, in which the n bytes from byte b of the object lie at
b + 12, after 12 bytes: the CRC-32 of what follows, b modulo 2^32, and n. Between the images of a
TFRecord file or a tar there are always more than 12 other bytes. An entry that is absent, torn or
overwritten has another checksum, and is read from the object again. So nothing has to be locked,
flushed or indexed, and a crash needs no repair.

An entry stays until its object is replaced, and nothing is stored beyond the limit. In a random
order every image is read once an epoch. A cache of a share s of the dataset that drops the least
recently used image has dropped nearly every image before it is read again; one that keeps the first
ones answers the share s of all reads.
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
from largebatch.files import no_folder_reason, user_cache

_HEADER = struct.Struct("<III")
_PLACE = struct.Struct("<II")
_MASK = 0xFFFFFFFF
_BLOCK = 4096  # bytes that a disk allocates at a time
STEP = 32 * 2**20
"""Bytes that a process stores before it measures the cache again; n processes that store at once
exceed the limit by less than n times as much."""


class RecordCache:
    """A directory of entries, used by any number of threads, processes and runs at once."""

    def __init__(self, directory: Path, limit: int) -> None:
        """Create the directory; see `create`.

        Args:
            directory: Where the files are.
            limit: Bytes on the disk at which storing stops.
        """
        self._directory = directory
        self._limit = limit
        self._lock = threading.Lock()
        self.create()

    def create(self) -> None:
        """Create the directory where it is absent, and measure the cache again.

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

    def get(self, key: str, offset: int, size: int) -> bytes | None:
        """Return bytes of an object; None if they are not stored.

        Args:
            key: See `key_of`.
            offset: First byte in the object.
            size: Number of bytes.
        """
        try:
            descriptor = os.open(self._directory / key, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            entry = os.pread(descriptor, _HEADER.size + size, offset)
        except OSError:
            return None
        finally:
            os.close(descriptor)
        if entry[4 : _HEADER.size] != _PLACE.pack(offset & _MASK, size & _MASK):
            return None
        if zlib.crc32(memoryview(entry)[4:]) != int.from_bytes(entry[:4], "little"):
            return None
        return entry[_HEADER.size :]

    def put(self, key: str, offset: int, data: bytes) -> None:
        """Store bytes of an object if there is room; a disk that is full or fails is no error.

        Args:
            key: See `key_of`.
            offset: First byte in the object.
            data: The bytes.
        """
        if not self._reserved(len(data) + _HEADER.size):
            return
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
            descriptor = os.open(self._directory / key, flags, 0o644)
            try:
                place = _PLACE.pack(offset & _MASK, len(data) & _MASK)
                check = zlib.crc32(data, zlib.crc32(place)).to_bytes(4, "little")
                os.pwritev(descriptor, (check, place, data), offset)
            finally:
                os.close(descriptor)
        except OSError:
            self._full = True

    def keep_only(self, keys: Iterable[str]) -> None:
        """Remove the entries of other versions of these objects."""
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


def open_cache(limit: int) -> RecordCache:
    """Return the user's cache, which all datasets of this process share, and so its limit.

    Args:
        limit: Bytes on the disk at which storing stops.

    Raises:
        ConfigError: See `RecordCache`.
    """
    cache = _shared(user_cache() / "records", limit)
    cache.create()
    return cache


_shared = functools.cache(RecordCache)


def key_of(url: str, version: str) -> str:
    """Return the name of an object's file: hashes of its URL and of its version."""
    parts = (hashlib.blake2b(part.encode(), digest_size=12).hexdigest() for part in (url, version))
    return "-".join(parts)
