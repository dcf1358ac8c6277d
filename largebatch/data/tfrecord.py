"""TFRecord files, read at random by the positions of their records.

A record is its length (uint64), the masked CRC-32C of the length, the data and the masked CRC-32C
of the data, all little-endian (tensorflow/core/lib/io/record_writer.h). The file has no index: a
scan reads the length of each record.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from largebatch.data.examples import Keys, parse
from largebatch.data.index import IndexedShards
from largebatch.data.storage import File, Storage
from largebatch.errors import DataError
from largebatch.files import masked_crc32c

_HEADER, _FRAME = 12, 16  # bytes: length and its checksum; both and the checksum of the data
_SCANNED = 64  # bytes at a header; most records are larger than a request is worth


@dataclass(frozen=True, eq=False)
class TFRecordShards(IndexedShards):
    """Shards in TFRecord format; `rows` has offset and bytes of each record's data.

    Attributes:
        keys: The features that are read.
        check: Whether the checksum of each record that is read is checked: 1 ms for 110 kB.
    """

    keys: Keys
    check: bool = False

    def open(self, shard: int) -> "_TFRecord":
        file = self.storage.open(self.paths[shard])
        return _TFRecord(file, self.rows[shard], self.keys, self.check)


class _TFRecord:
    """An open TFRecord file; reading releases the interpreter lock."""

    def __init__(self, file: File, rows: np.ndarray, keys: Keys, check: bool) -> None:
        self._file = file
        self._rows = rows
        self._keys = keys
        self._check = check

    def read(self, row: int) -> tuple[bytes, int]:
        return self.read_rows([row])[0]

    def read_rows(self, rows: Sequence[int]) -> list[tuple[bytes, int]]:
        after = 4 if self._check else 0
        spans = [(row, offset, size + after) for row in rows for offset, size in [self._at(row)]]
        return [self._parsed(data) for data in self._file.read_spans(spans)]

    def _at(self, row: int) -> tuple[int, int]:
        offset, size = self._rows[row].tolist()
        return offset, size

    def _parsed(self, data: bytes) -> tuple[bytes, int]:
        if self._check:
            (stored,) = struct.unpack("<I", data[-4:])
            data = data[:-4]
            if masked_crc32c(data) != stored:
                raise ValueError("its checksum is wrong")
        return parse(data, self._keys)


def scan(path: str, storage: Storage) -> np.ndarray:
    """Return offset and bytes of the data of each record of a file, int64 (n, 2).

    Raises:
        DataError: It is not a complete TFRecord file.
    """
    file = storage.open(path, scan=_SCANNED)
    end = file.size
    rows: list[tuple[int, int]] = []
    at = 0
    reason = ""
    try:
        while at < end and not reason:
            header = file.read(at, _HEADER)
            size, stored = struct.unpack_from("<QI", header)
            if masked_crc32c(header[:8]) != stored:
                reason = f"the length at byte {at:,} has another checksum"
            rows.append((at + _HEADER, size))
            at += _FRAME + size
        reason = reason or ("" if at == end else f"it ends at byte {end:,}, expected {at:,}")
    except (OSError, ValueError) as error:
        reason = str(error)
    if reason:
        raise DataError(
            f"{path} is not a complete TFRecord file: {reason}; restore it or prepare the dataset "
            "again"
        )
    return np.array(rows, np.int64).reshape(-1, 2)
