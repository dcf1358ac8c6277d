"""Tars, which are not trusted: they are read in place and never unpacked."""

import bz2
import contextlib
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from largebatch.data.tar import UNKNOWN, Member, members
from largebatch.errors import DataError, one_line

_OPENERS: dict[bytes, Callable[[Path], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\0": lzma.open,
}


def is_compressed(path: Path) -> bool:
    """Return whether a file is compressed."""
    return _opener(path) is not None


def _opener(path: Path) -> Callable[[Path], Any] | None:
    """Return what opens a compressed file, by its first bytes; None if it is not compressed."""
    with path.open("rb") as file:
        start = file.read(6)
    return next((opener for magic, opener in _OPENERS.items() if start.startswith(magic)), None)


class Content:
    """The content of a tar, compressed or not, or of a part of it."""

    def __init__(self, path: Path, begin: int = 0, size: int | None = None) -> None:
        """Open the file.

        Args:
            path: The file.
            begin: First byte of the part.
            size: Bytes of the part; None is all of the file.
        """
        opener = _opener(path)
        whole = UNKNOWN if opener else path.stat().st_size
        self.size = whole if size is None else size
        self.stream: BinaryIO = opener(path) if opener else path.open("rb", buffering=0)
        self._path, self._begin = path, begin

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes. A compressed tar is read up to them, from its start if it is beyond.

        Raises:
            DataError: They cannot be read.
        """
        with self._undamaged():
            self.stream.seek(self._begin + offset)
            data = self.stream.read(size)
        if len(data) != size:
            raise DataError(
                f"{self._path} ends early, expected byte {offset + size:,}; get it again"
            )
        return data

    def check_rest(self) -> None:
        """Check a compressed tar by its checksum, which is at its end.

        Raises:
            DataError: It is damaged.
        """
        with self._undamaged():
            while self.size == UNKNOWN and self.stream.read(1 << 20):
                pass

    @contextlib.contextmanager
    def _undamaged(self) -> Iterator[None]:
        try:
            yield
        except (gzip.BadGzipFile, EOFError, zlib.error, lzma.LZMAError) as error:
            raise DataError(f"{self._path} is damaged ({one_line(error)}); get it again") from error


def listed(path: Path, where: str, begin: int = 0, size: int | None = None) -> list[Member]:
    """Return the files of a tar, without those that begin with a dot.

    Args:
        path: The file.
        where: The tar for messages.
        begin: As for `Content`.
        size: As for `Content`.

    Raises:
        DataError: It is damaged or ends early.
    """
    content = Content(path, begin, size)
    with content.stream:
        try:
            found = [m._replace(offset=begin + m.offset) for m in members(content)]
            content.check_rest()
        except ValueError as error:
            raise DataError(
                f"{where} is not a complete tar ({one_line(error)}); get it again, or use a folder"
            ) from error
    return [m for m in found if not m.name.rpartition("/")[2].startswith(".")]
