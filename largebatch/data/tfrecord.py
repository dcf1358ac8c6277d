"""TFRecord files, read at random by the positions of their records.

A record is its length (uint64), the masked CRC-32C of the length, the data and the masked CRC-32C
of the data, all little-endian (tensorflow/core/lib/io/record_writer.h). The file has no index: a
scan reads the length of each record.
"""

import os
import struct
from dataclasses import dataclass

import numpy as np

from largebatch.data.crc32c import crc32c, crc32c_rows, masked
from largebatch.data.examples import Keys, parse
from largebatch.data.index import digest, positions
from largebatch.data.sharded import Shards
from largebatch.errors import DataError

_HEADER, _FRAME = 12, 16  # bytes: length and its checksum; both and the checksum of the data
_CHECKED_AT_ONCE = 4096  # headers


@dataclass(frozen=True, eq=False)
class TFRecordShards(Shards):
    """Shards in TFRecord format.

    Attributes:
        keys: The features that are read.
        rows: For each shard, offset and bytes of each record's data, int64 (n, 2).
        check: Whether the checksum of each record that is read is checked: 1 ms for 110 kB.
    """

    keys: Keys
    rows: tuple[np.ndarray, ...]
    check: bool = False

    def open(self, shard: int) -> "_TFRecord":
        return _TFRecord(File(self.paths[shard]), self.rows[shard], self.keys, self.check)

    def mark(self, shard: int) -> bytes:
        return super().mark(shard) + digest(self.rows[shard])


class File:
    """A file that is read by position, and closed when nothing refers to it.

    Raises:
        DataError: It cannot be opened.
    """

    def __init__(self, path: str) -> None:
        try:
            self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise DataError(
                f"{path} cannot be read: {error.strerror}; restore the file or prepare the "
                "dataset again"
            ) from error
        if hasattr(os, "posix_fadvise"):  # no reading ahead of a record that is not wanted
            os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_RANDOM)

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes.

        Raises:
            ValueError: The file ends before them.
            OSError: They cannot be read.
        """
        data = os.pread(self.descriptor, size, offset)
        if len(data) != size:
            raise ValueError(f"it ends at byte {offset + len(data):,}, expected {offset + size:,}")
        return data


class _TFRecord:
    """An open TFRecord file; reading releases the interpreter lock."""

    def __init__(self, file: File, rows: np.ndarray, keys: Keys, check: bool) -> None:
        self._file = file
        self._rows = rows
        self._keys = keys
        self._check = check

    def read(self, row: int) -> tuple[bytes, int]:
        offset, size = self._rows[row].tolist()
        if self._check:
            data = self._file.read(offset, size + 4)
            (stored,) = struct.unpack("<I", data[size:])
            data = data[:size]
            if masked(crc32c(data)) != stored:
                raise ValueError("its checksum is wrong")
        else:
            data = self._file.read(offset, size)
        return parse(data, self._keys)


def positions_of(name: str, paths: tuple[str, ...]) -> tuple[np.ndarray, ...]:
    """Return offset and bytes of the records of each file, from the index or by a scan.

    Args:
        name: What is indexed, for the progress.
        paths: The files, in one directory.

    Raises:
        DataError: See `scan`.
    """
    return tuple(positions(name, "tfrecord", paths, scan))


def record(path: str, row: np.ndarray) -> bytes:
    """Return the data of one record.

    Args:
        path: The file.
        row: Offset and bytes of the data, int64 (2,).

    Raises:
        DataError: It cannot be read.
    """
    try:
        return File(path).read(*row.tolist())
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}; restore the file") from error


def scan(path: str) -> np.ndarray:
    """Return offset and bytes of the data of each record of a file, int64 (n, 2).

    Raises:
        DataError: It is not a complete TFRecord file.
    """
    file = File(path)
    end = os.fstat(file.descriptor).st_size
    rows: list[tuple[int, int]] = []
    headers: list[bytes] = []
    at = 0
    reason = ""
    try:
        while at < end and not reason:
            header = file.read(at, _HEADER)
            (size,) = struct.unpack_from("<Q", header)
            rows.append((at + _HEADER, size))
            headers.append(header)
            at += _FRAME + size
            if len(headers) == _CHECKED_AT_ONCE or at >= end:
                reason = _damaged(headers, rows[-len(headers) :])
                headers.clear()
        reason = reason or ("" if at == end else f"it ends at byte {end:,}, expected {at:,}")
    except (OSError, ValueError) as error:
        reason = str(error)
    if reason:
        raise DataError(
            f"{path} is not a complete TFRecord file: {reason}; restore it or prepare the dataset "
            "again"
        )
    return np.array(rows, np.int64).reshape(-1, 2)


def _damaged(headers: list[bytes], rows: list[tuple[int, int]]) -> str:
    """Return what is wrong with the first header whose checksum differs, or an empty text."""
    found = np.frombuffer(b"".join(headers), np.uint8).reshape(-1, _HEADER)
    stored = np.ascontiguousarray(found[:, 8:]).view("<u4")[:, 0]
    wrong = np.flatnonzero(masked(crc32c_rows(found[:, :8])) != stored)
    if not len(wrong):
        return ""
    return f"the length at byte {rows[wrong[0]][0] - _HEADER:,} has another checksum"
