"""Labelled images in shards of any format, with shared errors.

Each record is read alone: the records of a batch are in as many shards.
"""

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, cast

import numpy as np

from largebatch.data.object_files import at_once
from largebatch.data.shard_readers import Readers, RowsReader, Shards
from largebatch.errors import DataError, one_line
from largebatch.files import printable

_ROWS_AT_ONCE = 32  # neighbours that one request may read
_OPENERS = 16  # threads, for file systems on which opening waits
T = TypeVar("T")


class ShardedRecords:
    """One split of labelled images in shards, a `Records`."""

    def __init__(
        self, name: str, split: str, shards: Shards, classes: tuple[str, ...], found: str
    ) -> None:
        """Open no file yet.

        Args:
            name: The specification it was opened by.
            split: `train` or `validation`.
            shards: The files.
            classes: Name of each label.
            found: Directory and split, for `describe`.
        """
        self.name = name
        self.classes = classes
        self._split = split
        self._shards = shards
        self._found = found
        lengths = np.array(shards.lengths, np.int64)
        self._ends = np.cumsum(lengths)
        self._starts = self._ends - lengths
        self._readers = Readers(shards)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def read(self, ids: np.ndarray) -> tuple[list[bytes], np.ndarray]:
        """See `Records.read`.

        Raises:
            DataError: A shard or a record is missing or corrupt, or a label is not of a class.
        """
        shards, rows = self._places(ids)
        images = []
        labels = []
        places = list(zip(shards.tolist(), rows.tolist(), strict=True))
        together = self._shards.in_flight > 1
        found = self._read_at_once(places) if together else itertools.starmap(self._read, places)
        for (shard, row), (image, label) in zip(places, found, strict=True):
            if not 0 <= label < len(self.classes):
                raise DataError(
                    f"{self._place(shard, row)} has label {label}, not one of the "
                    f"{len(self.classes):,} classes from 0; use a labelled split, or name every "
                    "label, 0 too if they count from 1"
                )
            images.append(image)
            labels.append(label)
        return images, np.array(labels, np.int32)

    def _read(self, shard: int, row: int) -> tuple[bytes, int]:
        """Return the image and the label of a record."""
        reader = self._readers.of(shard)
        try:
            return reader.read(row)
        except (OSError, RuntimeError, ValueError) as error:
            raise DataError(
                f"{self._place(shard, row)} cannot be read: {one_line(error)}; "
                "restore the file or prepare the dataset again"
            ) from error

    def _read_at_once(self, places: Sequence[tuple[int, int]]) -> Iterator[tuple[bytes, int]]:
        """Return images and labels, read by many threads; neighbours are read together."""

        def read(run: Sequence[tuple[int, int]]) -> list[tuple[bytes, int]]:
            shard, rows = run[0][0], [row for _, row in run]
            try:
                return cast(RowsReader, self._readers.of(shard)).read_rows(rows)
            except (OSError, RuntimeError, ValueError):
                return [self._read(shard, row) for row in rows]  # names the one that fails

        runs: list[list[tuple[int, int]]] = []
        for shard, row in sorted(set(places)):
            if runs and runs[-1][-1] == (shard, row - 1) and len(runs[-1]) < _ROWS_AT_ONCE:
                runs[-1].append((shard, row))
            else:
                runs.append([(shard, row)])
        read_runs = zip(runs, at_once(read, runs), strict=True)
        found = {
            place: item for run, items in read_runs for place, item in zip(run, items, strict=True)
        }
        return map(found.__getitem__, places)

    def where(self, example: int) -> str:
        shards, rows = self._places(np.array([example]))
        return self._place(int(shards[0]), int(rows[0]))

    def marks(self) -> tuple[bytes, ...]:
        """Return the marks of the shards."""
        return tuple(map(self._shards.mark, range(len(self._shards.paths))))

    def names(self) -> list[str]:
        """Return the name and the number of records of each shard."""
        shards = self._shards
        return [
            f"{os.path.basename(path)} ({length:,} records)"
            for path, length in zip(shards.paths, shards.lengths, strict=True)
        ]

    def describe(self) -> str:
        files, most = len(self._shards.paths), self._readers.most
        short = most < files and not self._shards.open_at_once
        limited = f", {most:,} open at once: raise `ulimit -n`" if short else ""
        return (
            f"{self.name}: {len(self):,} {self._split} images, {len(self.classes):,} classes "
            f"({self._found}, {files:,} shards{limited})"
        )

    def _places(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the shard of each id and its row within it, int64 (b,) each."""
        shards = np.searchsorted(self._ends, ids, side="right")
        return shards, ids - self._starts[shards]

    def _place(self, shard: int, row: int) -> str:
        return f"{printable(self._shards.paths[shard])}, record {row} (counted from 0)"


def in_threads(function: Callable[[str], T], paths: Iterable[str]) -> list[T]:
    """Return the result of a function for each file, in order; the files are opened in parallel."""
    with ThreadPoolExecutor(_OPENERS) as threads:
        return list(threads.map(function, paths))


def check_present(
    directory: str, names: Sequence[str], present: Iterable[str] | None = None
) -> None:
    """Raise a DataError with the first of the files that a directory lacks.

    Args:
        directory: Its path.
        names: The files.
        present: All files of the directory; None lists it.
    """
    missing = sorted(set(names).difference(os.listdir(directory) if present is None else present))
    if missing:
        raise DataError(
            f"{directory} lacks {missing[0]}"
            + (f" and {len(missing) - 1:,} more" if len(missing) > 1 else "")
            + f" of {len(names):,} shards; restore the files or prepare the dataset again"
        )
