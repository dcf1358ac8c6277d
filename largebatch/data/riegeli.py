"""ArrayRecord files read by ranges; array_record's own reader opens local paths only.

An ArrayRecord file is a file of Riegeli chunks (riegeli_records_file_format.md). Every 64 KiB there
is a block header, which interrupts the chunk. A chunk has a header and a buffer of the sizes of its
records and one of their contents, each compressed. The last chunk but one, the footer, has the
offset and the number of records of each chunk; the last one, the postscript, fills the last block
and has the offset of the footer (array_record/cpp/layout.proto).

The chunks' HighwayHash is not verified, because no maintained package computes it. What is verified
are the lengths of chunks, buffers and records, the index and the form of the compressed data.
"""

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from largebatch.data.examples import Keys, parse
from largebatch.data.index import IndexedShards
from largebatch.data.storage import File, Storage
from largebatch.environment import command_path
from largebatch.errors import ConfigError, DataError, one_line

_BLOCK, _BLOCK_HEADER = 65536, 24
_CHUNK_HEADER = struct.Struct("<8xQ8xQQ")  # after and between them are hashes
_SIMPLE, _TRANSPOSED = b"rt"
_NO_COMPRESSION, _ZSTD = 0, ord("z")
_MAGIC = 0x71930E704FDAE05E
_LARGEST = 2**31  # bytes of a chunk's contents; the limit of protobuf for an example


@dataclass(frozen=True, eq=False)
class RiegeliShards(IndexedShards):
    """Shards in ArrayRecord format, each record in a chunk of its own.

    The marks are those of the same files on a disk, without positions.

    Attributes:
        keys: The features that are read.
    """

    keys: Keys

    located = False

    def open(self, shard: int) -> "_Chunks":
        path = self.paths[shard]
        return _Chunks(path, self.storage.open(path), self.rows[shard], self.keys)


class _Chunks:
    """An open ArrayRecord file."""

    def __init__(self, path: str, file: File, rows: np.ndarray, keys: Keys) -> None:
        self._path = path
        self._file = file
        self._rows = rows
        self._keys = keys

    def read(self, row: int) -> tuple[bytes, int]:
        return self.read_rows([row])[0]

    def read_rows(self, rows: Sequence[int]) -> list[tuple[bytes, int]]:
        found = self._rows[list(rows)].tolist()
        spans = [(row, offset, size) for row, (offset, size) in zip(rows, found, strict=True)]
        read = self._file.read_spans(spans)
        return [
            parse(record(self._path, data, offset), self._keys)
            for data, (offset, _) in zip(read, found, strict=True)
        ]


def record(path: str, data: bytes, offset: int) -> bytes:
    """Return the record of a chunk.

    Args:
        path: The file, for messages.
        data: The chunk and what follows it, with the block headers.
        offset: Position of the data in the file.

    Raises:
        ValueError: The chunk is damaged.
        DataError: The chunk is of a form that is not read.
        ConfigError: It is compressed, and zstandard is not installed.
    """
    chunk = _chunk(path, data, offset)
    if chunk.records != 1:
        raise ValueError(f"the chunk has {chunk.records:,} records, expected 1")
    return chunk.contents


def scan(path: str, storage: Storage) -> np.ndarray:
    """Return offset and bytes of the chunk of each record of a file, int64 (n, 2).

    This takes two requests, and a third one where the footer is not within one block.

    Raises:
        DataError: It is not a complete ArrayRecord file, or of a form that is not read.
        ConfigError: It is compressed, and zstandard is not installed.
    """
    file = storage.open(path)
    try:
        rows = _rows(path, file)
        if len(rows):
            offset, size = rows[0].tolist()
            largest_header = _CHUNK_HEADER.size + _BLOCK_HEADER
            _header(path, file.read(offset, min(size, largest_header)), offset)
        return rows
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path} is not a complete ArrayRecord file: {one_line(error)}; "
            "restore it or prepare the dataset again"
        ) from error


def _rows(path: str, file: File) -> np.ndarray:
    """Return offset and bytes of each chunk, from the footer; see `scan`."""
    end = file.size - _BLOCK  # of the footer
    start = end - _BLOCK
    if start < 0 or file.size % _BLOCK:
        raise ValueError(f"it has {file.size:,} bytes, expected two or more blocks of {_BLOCK:,}")
    tail = file.read(start, 2 * _BLOCK)
    postscript = _varints(_chunk(path, tail[_BLOCK:], end).contents)[:4].tolist()
    if len(postscript) < 4 or postscript[::2] != [8, 16] or postscript[3] != _MAGIC:
        raise ValueError("its last block is not the end of an ArrayRecord file")
    at = postscript[1]
    if not 0 < at < end:
        raise ValueError(f"its index is at byte {at:,}, expected one before byte {end:,}")
    data = tail[at - start : _BLOCK] if at >= start else file.read(at, end - at)
    footer = _chunk(path, data, at)
    sizes = _varints(_decompressed(path, footer.compression, footer.sizes, 9 * footer.records))
    if len(sizes) != footer.records or not len(sizes) or sizes.sum() != len(footer.contents):
        raise ValueError("the sizes in its index are damaged")
    entries = _varints(footer.contents[sizes[0] :])
    # chunk_offset = 1, decoded_data_size = 2, num_records = 3, each a varint
    if len(entries) != 6 * (len(sizes) - 1):
        raise ValueError("its index is of another form")
    entries = entries.reshape(-1, 6)
    if (entries[:, ::2] != (8, 16, 24)).any():
        raise ValueError("its index is of another form")
    if (entries[:, 5] != 1).any():
        raise _unsupported(path, f"{entries[:, 5].max():,} records in a chunk")
    offsets = entries[:, 1]
    rows = np.stack([offsets, np.diff(offsets, append=at)], axis=1)
    if (rows <= 0).any():
        raise ValueError("the positions in its index do not ascend")
    return rows


class _Chunk(NamedTuple):
    """A chunk of records."""

    records: int
    """Their number."""
    compression: int
    """Compression of the sizes."""
    sizes: memoryview
    """The size of each as a varint, compressed."""
    contents: bytes
    """The records, one after the other, decompressed."""


def _chunk(path: str, data: bytes, offset: int) -> _Chunk:
    """Return the chunk at the beginning of data that are at an offset of a file; see `record`."""
    size, records, length = _header(path, data, offset)
    body = memoryview(_without_block_headers(data, offset))[_CHUNK_HEADER.size :]
    if not 2 <= size <= len(body):
        raise ValueError(f"the chunk at byte {offset:,} has {len(body):,} bytes, expected {size:,}")
    body = body[:size]
    middle, start = _varint(body, 1)
    if middle > len(body) - start:
        raise ValueError(f"the sizes of the chunk at byte {offset:,} end behind it")
    contents = _decompressed(path, body[0], body[start + middle :], min(length, _LARGEST))
    if len(contents) != length:
        raise ValueError(
            f"the chunk at byte {offset:,} holds {len(contents):,} bytes, expected {length:,}"
        )
    return _Chunk(records, body[0], body[start : start + middle], contents)


def _header(path: str, data: bytes, offset: int) -> tuple[int, int, int]:
    """Return the bytes of a chunk, its number of records and the bytes of these."""
    plain = _without_block_headers(data[: _CHUNK_HEADER.size + _BLOCK_HEADER], offset)
    if len(plain) < _CHUNK_HEADER.size:
        raise ValueError(f"the chunk at byte {offset:,} ends within its header")
    size, kind_and_records, length = _CHUNK_HEADER.unpack_from(plain)
    kind, records = kind_and_records & 0xFF, kind_and_records >> 8
    if kind == _TRANSPOSED:
        raise _unsupported(path, "transposed chunks")
    if kind != _SIMPLE:
        raise ValueError(f"at byte {offset:,} there is no chunk of records")
    return size, records, length


def _without_block_headers(data: bytes, offset: int) -> bytes:
    """Return data that are at an offset of a file, without the block headers."""
    first = -offset % _BLOCK
    view = memoryview(data)
    starts = range(first, len(data), _BLOCK)
    pieces = [view[at + _BLOCK_HEADER : at + _BLOCK] for at in starts]
    return b"".join([view[:first], *pieces])


def _decompressed(path: str, compression: int, data: memoryview, most: int) -> bytes:
    """Return a buffer of a chunk; if it is compressed, its size is in front.

    Args:
        path: The file, for messages.
        compression: The first byte of the chunk's buffers.
        data: The buffer.
        most: Bytes that the result may have; no memory is allocated for more.
    """
    if compression == _NO_COMPRESSION:
        return bytes(data)
    if compression != _ZSTD:
        names = {ord("b"): "Brotli", ord("s"): "Snappy"}
        raise _unsupported(path, f"compression by {names.get(compression, hex(compression))}")
    try:
        import zstandard
    except ImportError:
        raise ConfigError(
            f"{path}: ArrayRecord files in object storage need the package zstandard; use pip "
            "install 'largebatch[storage]'"
        ) from None
    size, start = _varint(data, 0)
    if size > most:
        raise ValueError(f"a chunk states {size:,} bytes, expected at most {most:,}")
    try:
        if zstandard.frame_content_size(data[start:]) not in (size, -1):
            raise ValueError("the sizes of compressed data differ")
        return zstandard.ZstdDecompressor().decompress(data[start:], max_output_size=size)
    except zstandard.ZstdError as error:
        raise ValueError(one_line(error)) from error


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """Return the varint at a position, and the position after it."""
    value = 0
    for shift in range(0, 63, 7):
        if at >= len(data):
            break
        byte, at = data[at], at + 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number is damaged")


def _varints(data: bytes) -> np.ndarray:
    """Return the values of varints that follow each other, int64 (n,)."""
    found = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(found < 0x80) + 1
    starts = np.concatenate([[0], ends[:-1]])[: len(ends)]
    lengths = ends - starts
    if lengths.sum() != len(found) or (lengths > 9).any():
        raise ValueError("numbers of a chunk are damaged")
    if not len(found):
        return np.zeros(0, np.int64)
    shifts = 7 * (np.arange(len(found)) - np.repeat(starts, lengths))
    return np.add.reduceat((found & 0x7F).astype(np.int64) << shifts, starts)


def _unsupported(path: str, found: str) -> DataError:
    return DataError(
        f"data.source: {path}: expected one record in a chunk (group_size:1), uncompressed or "
        f"compressed by zstd, to read ArrayRecord in object storage, got {found}; copy the files: "
        f"python {command_path('scripts/prepare_imagenet.py')} --copy {os.path.dirname(path)} DIR"
    )
