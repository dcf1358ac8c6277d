"""Labelled pictures as `tf.train.Example`s in ArrayRecord shards: the reading of two sources.

The shards are read by array_record itself: the records of one slice of ids lie in as many shards,
and one read per record costs half the processor time of its grouped reads.
"""

import os
import resource
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from array_record.python.array_record_module import ArrayRecordReader
from google.protobuf.message import DecodeError
from tensorflow_datasets.proto import tf_example_pb2

from largebatch.errors import DataError, one_line

_RANDOM_ACCESS = "readahead_buffer_size:0,max_parallelism:0"
# Two splits then hold half of the files that the process may open.
_SHARE_OF_OPEN_FILES = 4
_OPENERS = 16  # threads, for file systems on which opening waits


@dataclass(frozen=True)
class Keys:
    """Names of the two features of an example that are read.

    Attributes:
        image: A single bytes value, an encoded picture.
        label: A single int64 value.
    """

    image: str
    label: str


@dataclass(frozen=True)
class Shards:
    """The files of one split.

    Attributes:
        paths: In the order of the examples.
        lengths: Records of each.
    """

    paths: tuple[str, ...]
    lengths: tuple[int, ...]


class ExampleRecords:
    """One split of labelled pictures in ArrayRecord shards, a `Records`."""

    def __init__(
        self,
        name: str,
        split: str,
        shards: Shards,
        keys: Keys,
        classes: tuple[str, ...],
        found: str,
    ) -> None:
        """Opens no file yet.

        Args:
            name: The specification it was opened by.
            split: `train` or `validation`.
            shards: Where the examples are.
            keys: Which of their features are read.
            classes: Name of each label.
            found: Where the split was found, for `describe`.
        """
        self.name = name
        self.classes = classes
        self._split = split
        self._shards = shards
        self._keys = keys
        self._found = found
        lengths = np.array(shards.lengths, np.int64)
        self._ends = np.cumsum(lengths)
        self._starts = self._ends - lengths
        self._readers = _Readers(shards)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def read(self, ids: np.ndarray) -> tuple[list[bytes], np.ndarray]:
        """As of `Records.read`.

        Raises:
            DataError: A shard or a record is missing or corrupt, or a label is not of a class.
        """
        shards, rows = self._places(ids)
        images = []
        labels = []
        for shard, row in zip(shards.tolist(), rows.tolist(), strict=True):
            try:
                record = self._readers.of(shard).read([row])[0]
                image, label = parse(record, self._keys)
            except (RuntimeError, ValueError) as error:  # array_record raises RuntimeError
                raise DataError(
                    f"{self._place(shard, row)} cannot be read: {one_line(error)}; "
                    "restore the file or prepare the data set anew"
                ) from error
            if not 0 <= label < len(self.classes):
                raise DataError(
                    f"{self._place(shard, row)} has label {label}, not one of the "
                    f"{len(self.classes):,} classes from 0; use a labelled split, or name every "
                    "label, 0 too if they count from 1"
                )
            images.append(image)
            labels.append(label)
        return images, np.array(labels, np.int32)

    def where(self, example: int) -> str:
        """As of `Records.where`."""
        shards, rows = self._places(np.array([example]))
        return self._place(int(shards[0]), int(rows[0]))

    def marks(self) -> tuple[bytes, ...]:
        """As of `Records.marks`: names and lengths of the shards."""
        shards = zip(self._shards.paths, self._shards.lengths, strict=True)
        return tuple(os.fsencode(f"{os.path.basename(path)} {n}") for path, n in shards)

    def describe(self) -> str:
        """As of `Records.describe`."""
        files, most = len(self._shards.paths), self._readers.most
        limited = f", {most:,} open at once: raise `ulimit -n`" if most < files else ""
        return (
            f"{self.name}: {len(self):,} {self._split} images, {len(self.classes):,} classes "
            f"({self._found}, {files:,} shards{limited})"
        )

    def _places(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The shard and the row within it of each id, int64 (b,) each."""
        shards = np.searchsorted(self._ends, ids, side="right")
        return shards, ids - self._starts[shards]

    def _place(self, shard: int, row: int) -> str:
        return f"{self._shards.paths[shard]}, record {row} (counted from 0)"


class _Readers:
    """Readers of shards, opened when first asked for and closed when long unused; thread-safe.

    A reader is shared by threads: it reads by position and frees the interpreter lock. One that is
    dropped while another thread reads from it stays open until that thread is done.

    Attributes:
        most: How many are kept open.
    """

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._lock = threading.Lock()
        self._opened: OrderedDict[int, ArrayRecordReader] = OrderedDict()
        self.most = _most_open(len(shards.paths))

    def __reduce__(self) -> tuple[type, tuple[Shards]]:
        return _Readers, (self._shards,)  # another process opens its own

    def of(self, shard: int) -> ArrayRecordReader:
        """The reader of a shard.

        Raises:
            DataError: The file cannot be opened or has another number of records.
        """
        with self._lock:
            reader = self._opened.get(shard)
            if reader is not None:
                self._opened.move_to_end(shard)
                return reader
        path, length = self._shards.paths[shard], self._shards.lengths[shard]
        reader = open_shard(path)  # outside the lock: a network file system takes its time
        if reader.num_records() != length:
            raise DataError(
                f"{path} holds {reader.num_records():,} records, not {length:,}; "
                "restore the file or prepare the data set anew"
            )
        with self._lock:
            reader = self._opened.setdefault(shard, reader)  # another thread may have been faster
            self._opened.move_to_end(shard)
            if len(self._opened) > self.most:
                self._opened.popitem(last=False)
            return reader


def open_shard(path: str) -> ArrayRecordReader:
    """Opens a file for random access, 0.15 ms where the file is cached.

    Raises:
        DataError: The file is absent or no complete ArrayRecord file.
    """
    try:
        reader = ArrayRecordReader(path, _RANDOM_ACCESS)
        if reader.ok():
            return reader
        reader.read([0])  # raises what the constructor kept to itself, but not for every truncation
        reason = "it ends before its index"
    except RuntimeError as error:
        reason = one_line(error)
    raise DataError(
        f"{path} cannot be opened as an ArrayRecord file: {reason}; "
        "restore it or prepare the data set anew"
    )


def lengths_of(paths: Sequence[str]) -> tuple[int, ...]:
    """Records of each file; opening them finds those that are cut off.

    Raises:
        DataError: As of `open_shard`.
    """
    with ThreadPoolExecutor(_OPENERS) as threads:
        return tuple(threads.map(lambda path: open_shard(path).num_records(), paths))


def parse(record: bytes, keys: Keys) -> tuple[bytes, int]:
    """Takes the picture and the label out of a serialized `tf.train.Example`.

    Args:
        record: The example; 11 µs where it holds 110 kB, of which 10 copy the picture twice.
        keys: Which features.

    Returns:
        The encoded picture and its label.

    Raises:
        ValueError: The record is no example, or has no single value under a key.
    """
    try:
        features = tf_example_pb2.Example.FromString(record).features.feature
    except DecodeError as error:
        raise ValueError(f"{len(record):,} bytes that are no tf.train.Example") from error
    # An absent key reads as a feature without values.
    images = features[keys.image].bytes_list.value
    labels = features[keys.label].int64_list.value
    if len(images) != 1 or len(labels) != 1:
        raise ValueError(
            f"the example has {len(images)} pictures as {keys.image!r} and {len(labels)} integers "
            f"as {keys.label!r}, not one of each"
        )
    return images[0], labels[0]


def check_present(directory: str, names: list[str]) -> None:
    """Raises a DataError that names the first of the files that a directory lacks."""
    missing = sorted(set(names) - set(os.listdir(directory)))
    if missing:
        raise DataError(
            f"{directory} lacks {missing[0]}"
            + (f" and {len(missing) - 1:,} more" if len(missing) > 1 else "")
            + f" of {len(names):,} shards; restore the files or prepare the data set anew"
        )


def _most_open(files: int) -> int:
    """How many of `files` to keep open; raises the process's soft limit if that is too low for all.

    The soft limit is often 1,024, for the sake of `select()`, and the hard one far higher.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = files * _SHARE_OF_OPEN_FILES
    if soft == resource.RLIM_INFINITY:
        return files
    if soft < wanted:
        higher = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(OSError, ValueError):  # a system may have a bound that it does not tell
            resource.setrlimit(resource.RLIMIT_NOFILE, (higher, hard))
            soft = higher
    return max(1, min(files, soft // _SHARE_OF_OPEN_FILES))
