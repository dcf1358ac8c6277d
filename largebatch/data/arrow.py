"""Labelled images in Arrow streams and Parquet files, read by pyarrow.

An image is a struct of `bytes` and `path`; the label is an integer. Arrow files are memory-mapped.
A Parquet file is read by row groups: a random example costs the reading of its group.
"""

import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from largebatch.data.shard_readers import Shards, check_length
from largebatch.errors import DataError, one_line

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_END = b"\xff\xff\xff\xff\0\0\0\0"  # of an Arrow stream


@dataclass(frozen=True)
class Columns:
    """Names of the two columns that are read.

    Attributes:
        image: A struct with `bytes`.
        label: An integer.
    """

    image: str = "image"
    label: str = "label"


@dataclass(frozen=True)
class ArrowShards(Shards):
    """Files of `datasets.save_to_disk`: Arrow streams.

    Attributes:
        columns: The columns that are read.
    """

    columns: Columns

    def open(self, shard: int) -> "_Arrow":
        path = self.paths[shard]
        table = open_stream(path)
        check_length(path, len(table), self.lengths[shard])
        return _Arrow(table, self.columns)

    def mark(self, shard: int) -> bytes:
        return super().mark(shard) + b" %d" % os.path.getsize(self.paths[shard])


class _Arrow:
    """A memory-mapped Arrow table."""

    def __init__(self, table: "pa.Table", columns: Columns) -> None:
        self._images = [part.field("bytes") for part in table.column(columns.image).chunks]
        self._labels = table.column(columns.label).chunks
        self._ends = np.cumsum([len(part) for part in self._images])

    def read(self, row: int) -> tuple[bytes, int]:
        part = int(np.searchsorted(self._ends, row, side="right"))
        at = row - (int(self._ends[part - 1]) if part else 0)
        return _example(self._images[part][at], self._labels[part][at])


@dataclass(frozen=True)
class ParquetShards(Shards):
    """Parquet files.

    Attributes:
        columns: The columns that are read.
        sequential: Whether the examples are read in order, so that few files need to be open.
    """

    columns: Columns
    sequential: bool = False

    @property
    def open_at_once(self) -> int:
        # An open file keeps a row group, of any size where the examples are read in order.
        return 1 if self.sequential else 0

    def open(self, shard: int) -> "_Parquet":
        path = self.paths[shard]
        file = open_parquet_file(path)
        check_length(path, file.metadata.num_rows, self.lengths[shard])
        return _Parquet(file, self.columns)

    def mark(self, shard: int) -> bytes:
        return super().mark(shard) + b" %d" % os.path.getsize(self.paths[shard])


class _Parquet:
    """An open Parquet file, which keeps the row group read last, up to the group's last row."""

    def __init__(self, file: "pq.ParquetFile", columns: Columns) -> None:
        self._file = file
        self._columns = columns
        metadata = file.metadata
        sizes = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        self._ends = np.cumsum(sizes)
        self._last: tuple[int, _Arrow] | None = None
        self._lock = threading.Lock()

    def read(self, row: int) -> tuple[bytes, int]:
        group = int(np.searchsorted(self._ends, row, side="right"))
        at = row - (int(self._ends[group - 1]) if group else 0)
        with self._lock:  # the file has one position
            if self._last is None or self._last[0] != group:
                names = [f"{self._columns.image}.bytes", self._columns.label]
                table = self._file.read_row_group(group, columns=names, use_threads=False)
                self._last = group, _Arrow(table, self._columns)
            table = self._last[1]
            if row + 1 == self._ends[group]:
                self._last = None
        return table.read(at)


def _example(image: "pa.Scalar", label: "pa.Scalar") -> tuple[bytes, int]:
    if not image.is_valid:
        raise ValueError("its image has no bytes, only a path; embed the images in the set")
    if not label.is_valid:
        raise ValueError("it has no label")
    return image.as_buffer().to_pybytes(), label.as_py()


def check_installed() -> None:
    """Raise a DataError if pyarrow is not installed."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise DataError(
            "data.source: huggingface and parquet need pyarrow, which is not installed; run "
            "pip install -e '.[huggingface]'"
        ) from error


def open_stream(path: str) -> "pa.Table":
    """Map an Arrow stream into memory.

    Raises:
        DataError: It is absent or not complete.
    """
    import pyarrow as pa

    try:
        source = pa.memory_map(path)
        if source.size() < len(_END) or source.read_at(len(_END), source.size() - 8) != _END:
            raise ValueError("it lacks the mark of its end")
        source.seek(0)
        return pa.ipc.open_stream(source).read_all()
    except (OSError, ValueError) as error:  # pa.ArrowInvalid is a ValueError
        raise DataError(
            f"{path} is not a complete Arrow file: {one_line(error)}; restore it or save the set "
            "again"
        ) from error


def open_parquet_file(path: str) -> "pq.ParquetFile":
    """Open a Parquet file; raises a DataError if it is absent or not complete."""
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path, pre_buffer=False)
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path} is not a complete Parquet file: {one_line(error)}; get it again"
        ) from error
