"""Datasets of other forms: any `data.source`, Parquet files, and ArrayRecord files in a bucket.

Parquet files and files in a bucket become a shard each. The latter are downloaded one at a time and
deleted when they have been read.
"""

import contextlib
import functools
import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from largebatch.data import shard_files
from largebatch.data.prepare import records
from largebatch.data.prepare.inputs import Example, Input, Split, shard_ranges
from largebatch.data.source import (
    SPLITS,
    Source,
    SourceOptions,
    check_class_names,
    differing,
    identity,
    open_source,
)
from largebatch.data.unfinished import check_finished
from largebatch.errors import ConfigError, DataError, one_line
from largebatch.object_store import Bucket
from largebatch.store_urls import url_of

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_SAMPLE = 256  # images of a split by which its bytes are estimated
_AT_ONCE = 16  # images
_FORMS = {
    "parquet": shard_files.Form("parquet", "Parquet", r"\.parquet$", "-00000-of-00004.parquet"),
    "arrayrecord": shard_files.Form(
        "arrayrecord", "ArrayRecord", "array_?record", ".array_record-00000-of-00004"
    ),
}


def find(spec: str, *, classes: int = 0, shards: int = 0) -> Input:
    """Find the splits of a dataset.

    Args:
        spec: As `data.source`; or `parquet:PATH` and `arrayrecord:URL`, where PATH may be a URL and
            both may be patterns.
        classes: Number of classes where nothing names them; 0: there are names.
        shards: Number of shards of each split; 0 chooses it by the bytes, as TFDS does.

    Raises:
        ConfigError: An option does not fit the dataset.
        DataError: It is absent, incomplete or of another form, or its splits differ in classes.
    """
    scheme, _, place = spec.partition(":")
    is_files = scheme == "parquet" or (scheme == "arrayrecord" and url_of(place))
    if is_files and shards:
        raise ConfigError(
            f"--shards does not apply to {spec}, whose files are shards; leave it out"
        )
    _open.cache_clear()  # the dataset may have changed since an earlier call
    found = {
        split: _find_files(spec, split, classes)
        if is_files
        else _find_source(spec, split, classes, shards)
        for split in SPLITS
    }
    (train, train_classes), (validation, validation_classes) = found.values()
    if train_classes != validation_classes:
        raise DataError(
            f"--from={spec}: training and validation have "
            f"{differing(train_classes, validation_classes)}; use splits of the same classes"
        )
    check_class_names(f"--from={spec}", train_classes)
    if classes not in (0, len(train_classes)):
        raise ConfigError(
            f"--classes: expected 0 or {len(train_classes)} for {spec}, got {classes}; leave it out"
        )
    return Input("images", train_classes, (train, validation))


# ---- what training reads


@functools.lru_cache(maxsize=2)
def _open(spec: str, split: str, classes: int) -> Source:
    """Open a split once per process."""
    return open_source(spec, split, SourceOptions(classes=classes))


def _find_source(spec: str, split: str, classes: int, shards: int) -> tuple[Split, tuple[str, ...]]:
    source = _open(spec, split, classes)
    count = len(source)
    sample = np.unique(np.linspace(0, count - 1, _SAMPLE).astype(np.int64))
    images, _ = source.read(sample)
    if not all(isinstance(image, bytes) for image in images):
        raise DataError(f"--from={spec} has no encoded images; use a source of image files")
    size = sum(map(len, images)) * count // len(sample)
    ranges = shard_ranges(split, count, size, shards)
    parts = [_Range(spec, split, classes, *ends) for ends in ranges]
    return Split(split, parts, size, identity(source)), tuple(source.classes)


@dataclass(frozen=True)
class _Range:
    """Examples [first, last) of a split of a `data.source`."""

    spec: str
    split: str
    classes: int
    first: int
    last: int

    def __iter__(self) -> Iterator[Example]:
        source = _open(self.spec, self.split, self.classes)
        for first in range(self.first, self.last, _AT_ONCE):
            ids = np.arange(first, min(first + _AT_ONCE, self.last))
            for example, image, label in zip(ids.tolist(), *source.read(ids), strict=True):
                yield Example(f"{example:08}", image, int(label), source.where(example))


# ---- Parquet files, and ArrayRecord files in a bucket: each becomes a shard


class _Columns(NamedTuple):
    """Where a form keeps image and label."""

    image: str = "image"
    label: str = "label"
    classes: tuple[str, ...] = ()
    """Name of each label, if the files say so."""


@dataclass(frozen=True)
class _File:
    """The examples of a file.

    Attributes:
        path: Path or URL.
        read: Reads a local file: (path, columns) → image and label of each record.
        columns: Those of the first file of the split.
    """

    path: str
    read: Callable[[str, _Columns], Iterator[tuple[bytes, int]]]
    columns: _Columns

    def __iter__(self) -> Iterator[Example]:
        with _local(self.path) as local:
            try:
                for row, (image, label) in enumerate(self.read(local, self.columns)):
                    key = f"{Path(self.path).stem}-{row:06}"
                    yield Example(key, image, label, f"{self.path}, record {row} (from 0)")
            except (RuntimeError, ValueError, TypeError) as error:
                raise DataError(
                    f"{self.path} cannot be read: {one_line(error)}; get it again"
                ) from error


@contextlib.contextmanager
def _local(path: str) -> Iterator[str]:
    """Yield the path of a local copy of a file, which is deleted after the body."""
    if not url_of(path):
        yield path
        return
    folder, _, name = path.rpartition("/")
    with tempfile.TemporaryDirectory(prefix="largebatch-") as directory:
        Bucket(folder).download(name, Path(directory, name))
        yield str(Path(directory, name))


def _find_files(spec: str, split: str, classes: int) -> tuple[Split, tuple[str, ...]]:
    """Find the files of a split by their names."""
    scheme, _, place = spec.partition(":")
    check_finished(place)
    found = shard_files.of_split(spec, split, _FORMS[scheme], SourceOptions(classes=classes))
    if scheme == "parquet":
        read = _read_parquet
        with _local(found.paths[0]) as first:
            columns = _parquet_columns(first)
    else:
        read, columns = _read_array_records, _array_record_columns(found.directory)
    names = columns.classes or shard_files.class_names(found.storage, classes)
    if url_of(found.directory):
        entries = Bucket(found.directory).entries()
        marks = [(name, *entries[name]) for name in found.names]
    else:
        marks = [(Path(path).name, Path(path).stat().st_size) for path in found.paths]
    parts = [_File(path, read, columns) for path in found.paths]
    size = sum(mark[1] for mark in marks)
    digest = hashlib.sha256(repr((marks, columns)).encode()).hexdigest()[:16]
    return Split(split, parts, size, digest), names


def _parquet_columns(path: str) -> _Columns:
    """Return the columns of a Parquet file.

    They are those that Hugging Face's `datasets` describes as `Image` and `ClassLabel`; if there
    are none or several, `image` and `label`.
    """
    import pyarrow as pa

    schema = _open_parquet(path).schema_arrow
    try:
        stored = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        features = {k: dict(v) for k, v in stored.get("info", {}).get("features", {}).items()}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{path}: its description of the features cannot be read ({one_line(error)}); get it "
            "again"
        ) from error
    columns = []
    for name, kind in (("image", "Image"), ("label", "ClassLabel")):
        own = [column for column, feature in features.items() if feature.get("_type") == kind]
        columns.append(own[0] if len(own) == 1 else name)
        if columns[-1] not in schema.names:
            raise DataError(f"{path} has no column {columns[-1]!r}; use another dataset")
    image, label = (schema.field(column).type for column in columns)
    is_image = pa.types.is_struct(image) and image.get_field_index("bytes") >= 0
    if not is_image or not pa.types.is_integer(label):
        raise DataError(
            f"{path}: expected images with bytes and integer labels, got {image} and {label}; use "
            "another dataset"
        )
    names = features.get(columns[1], {}).get("names") or ()
    return _Columns(columns[0], columns[1], tuple(map(str, names)))


def _open_parquet(path: str) -> "pq.ParquetFile":
    try:
        import pyarrow.parquet as pq
    except ImportError as error:
        raise DataError(
            "--from: parquet needs pyarrow, which is not installed; run pip install -e "
            "'.[huggingface]'"
        ) from error
    try:
        return pq.ParquetFile(path, pre_buffer=False)
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path} is not a complete Parquet file: {one_line(error)}; get it again"
        ) from error


def _read_parquet(path: str, columns: _Columns) -> Iterator[tuple[bytes, int]]:
    if _parquet_columns(path) != columns:
        raise ValueError("its columns or class names are not those of the first file")
    with _open_parquet(path) as file:
        for group in range(file.metadata.num_row_groups):
            wanted = [f"{columns.image}.bytes", columns.label]
            table = file.read_row_group(group, columns=wanted, use_threads=False)
            images = table.column(columns.image).combine_chunks().field("bytes")
            for image, label in zip(images, table.column(columns.label).to_pylist(), strict=True):
                if not image.is_valid or label is None:
                    raise ValueError("an image has no bytes, only a path, or no label")
                yield image.as_buffer().to_pybytes(), label


def _array_record_columns(url: str) -> _Columns:
    """Return the features of image and label, by TFDS's metadata if they are in the bucket."""
    import tensorflow_datasets as tfds

    from largebatch.data.tfds import key_of_kind, read_metadata

    bucket = Bucket(url)
    texts = [name for name in bucket.entries() if name.endswith((".json", ".txt"))]
    if records.INFO not in texts:
        return _Columns()
    with tempfile.TemporaryDirectory(prefix="largebatch-") as directory:
        for name in texts:
            bucket.download(name, Path(directory, name))
        info, _ = read_metadata(url, directory)
    image = key_of_kind(url, info.features, "image", tfds.features.Image)
    label = key_of_kind(url, info.features, "label", tfds.features.ClassLabel)
    return _Columns(image, label, tuple(info.features[label].names))


def _read_array_records(path: str, columns: _Columns) -> Iterator[tuple[bytes, int]]:
    from array_record.python.array_record_module import ArrayRecordReader

    reader = ArrayRecordReader(path)
    for _ in range(reader.num_records()):
        _, label, image = records.parse(reader.read(), columns.image, columns.label)
        yield image, label
