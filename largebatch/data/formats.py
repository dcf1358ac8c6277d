"""Shards of labelled images: TFRecord files, tars in the form of WebDataset, ArrayRecord files.

Of TFRecord files and tars, a scan finds the range of bytes and the label of each image; `ranges`
reads them. ArrayRecord files are read by array_record's own library, from a disk only.
"""

import functools
import json
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from array_record.python.array_record_module import ArrayRecordReader
from google.protobuf.message import DecodeError
from tensorflow_datasets.proto import tf_example_pb2

from largebatch.data import shard_files
from largebatch.data.folder import SUFFIXES
from largebatch.data.index import rows_of
from largebatch.data.prefetch import in_threads
from largebatch.data.ranges import (
    Disk,
    FileSource,
    RangeSource,
    Storage,
    Window,
    most_open,
)
from largebatch.data.source import Source, SourceOptions, checked_labels, unreadable
from largebatch.data.tar import Member, members
from largebatch.environment import command_path
from largebatch.errors import DataError, counted, one_line
from largebatch.files import masked_crc32c

_WEBDATASET = shard_files.Form("WebDataset", r"\.tar$", "-0000.tar")


class Keys(NamedTuple):
    """Names of the two features of a `tf.train.Example` that are read."""

    image: str
    """A single bytes value, an encoded image."""
    label: str
    """A single int64 value."""


KEYS = (Keys("image", "label"), Keys("image/encoded", "image/class/label"))
"""The features of TFDS, and those of the scripts of TensorFlow's models."""


class Examples(NamedTuple):
    """Shards of `tf.train.Example`s, which are not opened yet."""

    form: str
    """`tfrecord` or `arrayrecord`."""
    found: shard_files.Found
    classes: tuple[str, ...]
    """Name of each label."""
    keys: Sequence[Keys] = KEYS
    """The features that are read; the first two that an example has."""
    lengths: Sequence[int] | None = None
    """Examples of each shard, if that is stated."""


def open_examples(spec: str, split: str, examples: Examples) -> Source:
    """Open shards of `tf.train.Example`s.

    Args:
        spec: The name of the result.
        split: `train` or `validation`.
        examples: The shards.

    Raises:
        DataError: A file is absent, incomplete or of a form that is not read.
    """
    form, found, classes, keys, lengths = examples
    if form == "arrayrecord":
        source = ArrayRecords(spec, split, classes, found, keys)
        there = source.lengths
    else:
        kind = " ".join(("tfrecord", *map(str, keys)))
        scan = functools.partial(scan_tf_record, keys)
        there, rows = rows_of(spec, kind, found.storage, found.names, scan)
        note = f"{found.note}, {counted(len(there), 'shard')}"
        source = RangeSource(spec, split, classes, found.storage, found.names, there, rows, note)
    for path, stated, length in zip(found.paths, lengths or there, there, strict=True):
        if length != stated:
            raise DataError(
                f"{path} holds {length:,} records, and dataset_info.json says {stated:,}; restore "
                "the file or prepare the dataset again"
            )
    return source


@contextmanager
def _complete(storage: Storage, name: str, what: str) -> Iterator[None]:
    """Turn an error of a scan into a DataError with the file."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or one_line(error)
        remedy = "" if ";" in reason else "; restore it or write it again"
        raise DataError(f"{storage.path}/{name} is no valid {what}: {reason}{remedy}") from error


# ---- TFRecord

_WORD = (1 << 64) - 1
_HEADER, _FRAME = 12, 16  # bytes: length and its checksum; both and the checksum of the data
_AROUND = 512  # bytes that hold what is between two images


def scan_tf_record(keys: Sequence[Keys], storage: Storage, name: str) -> np.ndarray:
    """Find the images of a TFRecord file; see `ranges.Scan`.

    A record is its length (uint64), the masked CRC-32C of the length, the data and the masked
    CRC-32C of the data, all little-endian (tensorflow/core/lib/io/record_writer.h). The images
    themselves are not read.

    Args:
        keys: The features that are read; the first two that an example has.
        storage: The directory.
        name: The file.

    Raises:
        DataError: It is not a complete TFRecord file of examples with these features.
    """
    with _complete(storage, name, "TFRecord file"):
        file = Window(storage, name, _AROUND)
        rows, at = [], 0
        while at < file.size:
            header = file.read(at, _HEADER)
            size, checksum = struct.unpack("<QI", header)
            if masked_crc32c(header[:8]) != checksum:
                raise ValueError(f"the length at byte {at:,} has another checksum")
            if at + _FRAME + size > file.size:
                raise ValueError(f"it ends at byte {file.size:,}, expected {at + _FRAME + size:,}")
            try:
                rows.append(_image_of_example(file, at + _HEADER, at + _HEADER + size, keys))
            except ValueError as error:
                raise ValueError(f"record {len(rows):,}: {error}") from error
            at += _FRAME + size
    return np.array(rows, np.int64).reshape(-1, 3)


def _image_of_example(
    file: Window, start: int, end: int, keys: Sequence[Keys]
) -> tuple[int, int, int]:
    """Return first byte and number of bytes of the image, and the label, of a serialized example.

    `Example.features` is field 1, a map (repeated entries, field 1) from names (field 1) to
    features (field 2), each with a list of bytes (field 1) or of int64 (field 3) of values (field
    1); tensorflow/core/example/feature.proto.
    """
    names = {name for pair in keys for name in pair}
    found: dict[str, tuple[list[tuple[int, int]], list[int]]] = {}
    for features in _fields(file, start, end, 1):
        for entry in _fields(file, *features, 1):
            for name_at in _fields(file, *entry, 1):
                name = file.read(name_at[0], name_at[1] - name_at[0]).decode(errors="replace")
                if name in names:
                    found[name] = _values(file, *next(_fields(file, *entry, 2), (0, 0)))
    for pair in keys:
        if pair.image in found and pair.label in found:
            break
    else:
        wanted = " or ".join(f"{pair.image!r} and {pair.label!r}" for pair in keys)
        raise ValueError(f"the example has not {wanted}")
    images, labels = found[pair.image][0], found[pair.label][1]
    if len(images) != 1 or len(labels) != 1:
        raise ValueError(
            f"the example has {len(images)} images as {pair.image!r} and {len(labels)} integers as "
            f"{pair.label!r}, not one of each"
        )
    (first, last), label = images[0], labels[0]
    return first, last - first, label - (1 << 64 if label >= 1 << 63 else 0)


def _values(file: Window, start: int, end: int) -> tuple[list[tuple[int, int]], list[int]]:
    """Return the ranges of the values of bytes of a feature, and its integers."""
    texts = [v for part in _fields(file, start, end, 1) for v in _fields(file, *part, 1)]
    numbers = [
        number
        for part in _fields(file, start, end, 3)
        for values in _fields(file, *part, 1)
        for number in _varints(file, *values)
    ]
    return texts, numbers


def _fields(file: Window, at: int, end: int, number: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of the values of one field of a message of protocol buffers."""
    while at < end:
        tag, at = _varint(file, at, end)
        start = at
        match tag & 7:
            case 0:
                at = _varint(file, at, end)[1]
            case 1 | 5 as fixed:
                at += 8 if fixed == 1 else 4
            case 2:
                size, start = _varint(file, at, end)
                at = start + size
            case _:
                raise ValueError("it is not a tf.train.Example")
        if at > end:
            raise ValueError("it is not a tf.train.Example")
        if tag >> 3 == number:
            yield start, at


def _varints(file: Window, at: int, end: int) -> Iterator[int]:
    while at < end:
        value, at = _varint(file, at, end)
        yield value


def _varint(file: Window, at: int, end: int) -> tuple[int, int]:
    """Return an integer of variable length and the position after it."""
    value = 0
    for number, byte in enumerate(file.read(at, min(10, end - at))):
        value |= (byte & 0x7F) << 7 * number
        if byte < 0x80:
            return value & _WORD, at + number + 1  # as protocol buffers do
    raise ValueError("it is not a tf.train.Example")


# ---- ArrayRecord

# array_record's grouped reads would take twice the processor time of reading each record alone.
_RANDOM_ACCESS = "readahead_buffer_size:0,max_parallelism:0"


class ArrayRecords(FileSource):
    """One split of `tf.train.Example`s in ArrayRecord files on a disk."""

    def __init__(
        self,
        name: str,
        split: str,
        classes: tuple[str, ...],
        found: shard_files.Found,
        keys: Sequence[Keys],
    ) -> None:
        """Open each file once; a file that is cut off cannot be opened.

        Raises:
            DataError: A file is absent or not complete, or is in object storage.
        """
        if not isinstance(found.storage, Disk):
            raise DataError(
                f"data.source={name}: ArrayRecord files have no byte ranges that can be read in "
                "object storage; copy the directory to a disk, or convert it: python "
                f"{command_path('scripts/prepare_imagenet.py')} --from '{name}' --out DIR"
            )
        self.files, self._names, self._keys = found.paths, found.names, keys
        # It reads by position and releases the interpreter lock. One that is dropped during another
        # thread's read stays open until that read returns.
        self._opened = functools.lru_cache(most_open())(open_array_record_file)
        lengths = in_threads(
            lambda path: open_array_record_file(path).num_records(),
            found.paths,
            found.storage.scanners,
        )
        note = f"{found.note}, {counted(len(found.paths), 'shard')}"
        super().__init__(name, split, classes, found.directory, list(lengths), note)

    def read(self, ids: np.ndarray) -> tuple[list[bytes], np.ndarray]:
        ids = np.asarray(ids)
        found = [self._read(example) for example in ids.tolist()]
        labels = np.array([label for _, label in found], np.int64)
        labels = checked_labels(labels, len(self.classes), lambda row: self.where(int(ids[row])))
        return [image for image, _ in found], labels

    def _read(self, example: int) -> tuple[bytes, int]:
        file = int(self._file_of(np.array(example)))
        try:
            record = self._opened(self.files[file]).read([example - int(self._starts[file])])[0]
            return parse_example(record, self._keys)
        except (OSError, RuntimeError, ValueError, IndexError) as error:
            raise unreadable(self.where(example), error) from error

    def marks(self) -> list[bytes]:
        """Return the names of the files and the numbers of their records."""
        files = zip(self._names, self.lengths, strict=True)
        return [os.fsencode(f"{name} {length}") for name, length in files]


def open_array_record_file(path: str) -> ArrayRecordReader:
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
        f"{path} is not a complete ArrayRecord file: {reason}; restore it or prepare the dataset "
        "again"
    )


def parse_example(record: bytes, keys: Sequence[Keys]) -> tuple[bytes, int]:
    """Return the encoded image and the label of a serialized `tf.train.Example`.

    Args:
        record: The example; 110 kB take 11 µs, mostly for two copies of the image.
        keys: The features that are read; the first two that it has.

    Raises:
        ValueError: The record is not an example, or has not one value for each key.
    """
    try:
        features = tf_example_pb2.Example.FromString(record).features.feature
    except DecodeError as error:
        raise ValueError(f"{len(record):,} bytes that are not a tf.train.Example") from error
    pair = next((p for p in keys if p.image in features and p.label in features), keys[0])
    # An absent key reads as a feature without values.
    images, labels = features[pair.image].bytes_list.value, features[pair.label].int64_list.value
    if len(images) != 1 or len(labels) != 1:
        raise ValueError(
            f"the example has {len(images)} images as {pair.image!r} and {len(labels)} integers "
            f"as {pair.label!r}, not one of each"
        )
    return images[0], labels[0]


# ---- WebDataset

_IMAGES = tuple(suffix.removeprefix(".") for suffix in SUFFIXES)
_LABELS = ("cls", "json")  # the first that a sample has is read
_JSON_KEYS = ("label", "cls", "class")
_SCANNED = 4096  # bytes that hold a label and the headers around it
_LONGEST = 1 << 20  # bytes of a label


def open_webdataset(spec: str, split: str, options: SourceOptions) -> RangeSource:
    """Open a split of tars in the form of WebDataset.

    A member `KEY.EXTENSION` belongs to the sample KEY, which ends at the first dot of the file's
    name; the members of a sample are next to each other (https://github.com/webdataset/webdataset).
    A sample has one image (jpg, png, webp, …) and its label, an integer: `KEY.cls`, or `label`,
    `cls` or `class` in `KEY.json`. Other members are left out. The order of the samples is that of
    the tars by name, and within each of its members. The files of a split are found by their names;
    see `shard_files.of_split`.

    Args:
        spec: `webdataset:PATH`, a directory of tars or a pattern of their names.
        split: `train` or `validation`.
        options: `classes` is the number of classes where no `labels.txt` beside the tars names
            them.

    Raises:
        DataError: Tars are absent or incomplete, or a sample is not of that form.
    """
    found = shard_files.of_split(spec, split, _WEBDATASET, options)
    lengths, rows = rows_of(spec, "webdataset", found.storage, found.names, scan_tar)
    classes = shard_files.class_names(found.storage, options.classes)
    note = f"{found.note}, {counted(len(lengths), 'tar')}"
    return RangeSource(spec, split, classes, found.storage, found.names, lengths, rows, note)


def scan_tar(storage: Storage, name: str) -> np.ndarray:
    """Find the samples of a tar; see `ranges.Scan`.

    Raises:
        DataError: It is not a complete tar of samples.
    """
    rows: list[tuple[int, int, int]] = []
    key: tuple[str, str] = ("", "")
    image: Member | None = None
    labels: dict[str, Member] = {}
    other = ""  # an image with a further dot in its name, such as KEY.left.jpg

    def finish() -> None:
        kind = next((kind for kind in _LABELS if kind in labels), None)
        if image and kind:
            rows.append((image.offset, image.size, _label(file, labels[kind], kind)))
        elif image or (kind == "cls" and not other):  # a json alone may describe the tar
            raise ValueError(
                f"sample {key[1]!r} has no {'label' if image else 'image'} next to it; write the "
                "tar with --sort=name, which keeps the members of a sample together"
            )
        elif other:
            raise ValueError(
                f"{other!r} has a dot before its extension, and a sample's name ends at the first "
                "dot; rename the members of such samples"
            )

    with _complete(storage, name, "tar of samples"):
        file = Window(storage, name, _SCANNED)
        for member in members(file):
            folder, _, base = member.name.rpartition("/")
            stem, _, extension = base.partition(".")
            extension = extension.lower()
            if not stem:  # hidden, such as ._A.jpg of macOS
                continue
            if (folder, stem) != key:
                finish()
                key, image, labels, other = (folder, stem), None, {}, ""
            if extension in _IMAGES:
                if image is not None:
                    raise ValueError(f"sample {stem!r} has two images")
                image = member
            elif extension in _LABELS:
                labels[extension] = member
            elif extension.endswith(SUFFIXES):
                other = other or member.name
        finish()
    return np.array(rows, np.int64).reshape(-1, 3)


def _label(file: Window, member: Member, extension: str) -> int:
    """Return the label in a member; raises a ValueError if it holds none."""
    if member.size > _LONGEST:
        raise ValueError(f"{member.name!r} has {member.size:,} bytes")
    data = file.read(member.offset, member.size)
    try:
        if extension == "cls":
            label = int(data)
        else:
            value = json.loads(data)
            stored = next(value[key] for key in _JSON_KEYS if key in value)
            if isinstance(stored, bool | float):
                raise TypeError
            label = int(stored)
        if not -(2**63) <= label < 2**63:
            raise ValueError
        return label
    except (ValueError, TypeError, StopIteration, RecursionError) as error:
        raise ValueError(f"{member.name!r} has no label, an integer: {data[:40]!r}") from error
