"""Labelled images as `tf.train.Example`s in ArrayRecord shards, for `tfds:` and `arrayrecord:`.

Each record is read alone: the records of a batch are in as many shards, and array_record's grouped
reads would take twice the processor time.
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
        image: A single bytes value, an encoded image.
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
    """One split of labelled images in ArrayRecord shards, a `Records`."""

    def __init__(
        self,
        name: str,
        split: str,
        shards: Shards,
        keys: Keys,
        classes: tuple[str, ...],
        found: str,
    ) -> None:
        """Open no file yet.

        Args:
            name: The specification it was opened by.
            split: `train` or `validation`.
            shards: The files.
            keys: The features that are read.
            classes: Name of each label.
            found: Directory and split, for `describe`.
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
        """See `Records.read`.

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
                    "restore the file or prepare the dataset again"
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
        shards, rows = self._places(np.array([example]))
        return self._place(int(shards[0]), int(rows[0]))

    def marks(self) -> tuple[bytes, ...]:
        """Return names and lengths of the shards."""
        shards = zip(self._shards.paths, self._shards.lengths, strict=True)
        return tuple(os.fsencode(f"{os.path.basename(path)} {n}") for path, n in shards)

    def describe(self) -> str:
        files, most = len(self._shards.paths), self._readers.most
        limited = f", {most:,} open at once: raise `ulimit -n`" if most < files else ""
        return (
            f"{self.name}: {len(self):,} {self._split} images, {len(self.classes):,} classes "
            f"({self._found}, {files:,} shards{limited})"
        )

    def _places(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the shard of each id and its row within it, int64 (b,) each."""
        shards = np.searchsorted(self._ends, ids, side="right")
        return shards, ids - self._starts[shards]

    def _place(self, shard: int, row: int) -> str:
        return f"{self._shards.paths[shard]}, record {row} (counted from 0)"


class _Readers:
    """A cache of open shards, the most recently used ones; thread-safe.

    Threads share a reader, which reads by position and releases the interpreter lock. A reader that
    is dropped during another thread's read stays open until that read returns.

    Attributes:
        most: Greatest number of open shards.
    """

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._lock = threading.Lock()
        self._opened: OrderedDict[int, ArrayRecordReader] = OrderedDict()
        self.most = _most_open(len(shards.paths))

    def __reduce__(self) -> tuple[type, tuple[Shards]]:
        return _Readers, (self._shards,)  # another process opens its own

    def of(self, shard: int) -> ArrayRecordReader:
        """Return the reader of a shard.

        Raises:
            DataError: The file cannot be opened or has another number of records.
        """
        with self._lock:
            reader = self._opened.get(shard)
            if reader is not None:
                self._opened.move_to_end(shard)
                return reader
        path, length = self._shards.paths[shard], self._shards.lengths[shard]
        reader = open_shard(path)  # outside the lock: slow on a network file system
        if reader.num_records() != length:
            raise DataError(
                f"{path} holds {reader.num_records():,} records, not {length:,}; "
                "restore the file or prepare the dataset again"
            )
        with self._lock:
            reader = self._opened.setdefault(
                shard, reader
            )  # another thread may have opened it, too
            self._opened.move_to_end(shard)
            if len(self._opened) > self.most:
                self._opened.popitem(last=False)
            return reader


def open_shard(path: str) -> ArrayRecordReader:
    """Open a file for random access: 0.15 ms where the file is cached.

    Raises:
        DataError: The file is absent or no complete ArrayRecord file.
    """
    try:
        reader = ArrayRecordReader(path, _RANDOM_ACCESS)
        if reader.ok():
            return reader
        reader.read([0])  # raises the error, except for some truncations
        reason = "it ends before its index"
    except RuntimeError as error:
        reason = one_line(error)
    raise DataError(
        f"{path} is not a complete ArrayRecord file: {reason}; "
        "restore it or prepare the dataset again"
    )


def lengths_of(paths: Sequence[str]) -> tuple[int, ...]:
    """Return the number of records of each file; files that are cut off cannot be opened.

    Raises:
        DataError: See `open_shard`.
    """
    with ThreadPoolExecutor(_OPENERS) as threads:
        return tuple(threads.map(lambda path: open_shard(path).num_records(), paths))


def parse(record: bytes, keys: Keys) -> tuple[bytes, int]:
    """Return the image and the label of a serialized `tf.train.Example`.

    Args:
        record: The example; 110 kB take 11 µs, mostly for two copies of the image.
        keys: Names of the features.

    Returns:
        The encoded image, and the label.

    Raises:
        ValueError: The record is not an example, or has not one value for each key.
    """
    try:
        features = tf_example_pb2.Example.FromString(record).features.feature
    except DecodeError as error:
        raise ValueError(f"{len(record):,} bytes that are not a tf.train.Example") from error
    # An absent key reads as a feature without values.
    images = features[keys.image].bytes_list.value
    labels = features[keys.label].int64_list.value
    if len(images) != 1 or len(labels) != 1:
        raise ValueError(
            f"the example has {len(images)} images as {keys.image!r} and {len(labels)} integers "
            f"as {keys.label!r}, not one of each"
        )
    return images[0], labels[0]


def check_present(directory: str, names: list[str]) -> None:
    """Raise a DataError with the first of the files that a directory lacks."""
    missing = sorted(set(names) - set(os.listdir(directory)))
    if missing:
        raise DataError(
            f"{directory} lacks {missing[0]}"
            + (f" and {len(missing) - 1:,} more" if len(missing) > 1 else "")
            + f" of {len(names):,} shards; restore the files or prepare the dataset again"
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
