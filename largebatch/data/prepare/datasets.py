"""Datasets of other forms: any `data.source`, Parquet files, and ArrayRecord files in a bucket.

Parquet files and files in a bucket become a shard each. The latter are downloaded one at a time and
deleted when they have been read.
"""

import contextlib
import functools
import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from largebatch.data import shard_files
from largebatch.data.formats import Keys, open_array_record_file, parse_example
from largebatch.data.huggingface import Columns, check_columns, check_installed, columns_of
from largebatch.data.prepare.inputs import Example, Input, Split, shard_ranges
from largebatch.data.ranges import Storage, storage_of
from largebatch.data.source import (
    SPLITS,
    Source,
    SourceOptions,
    check_class_names,
    check_finished,
    differing,
    identity,
    open_source,
)
from largebatch.data.tfds import find_examples
from largebatch.errors import ConfigError, DataError, one_line
from largebatch.object_store import Bucket
from largebatch.store_urls import url_of

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_SAMPLE = 256  # images of a split by which its bytes are estimated
_AT_ONCE = 16  # images
_PARQUET = shard_files.Form("Parquet", r"\.parquet$", "-00000-of-00004.parquet")


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


@dataclass(frozen=True)
class _File:
    """The examples of a file.

    Attributes:
        path: Path or URL.
        read: Yields image and label of each record of a local file.
    """

    path: str
    read: Callable[[str], Iterator[tuple[bytes, int]]]

    def __iter__(self) -> Iterator[Example]:
        with _local(self.path) as local:
            try:
                for row, (image, label) in enumerate(self.read(local)):
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
    """Find the files of a split by their names, or by TFDS's metadata."""
    check_finished(spec.partition(":")[2])
    options = SourceOptions(classes=classes)
    if spec.startswith("parquet:"):
        check_installed()
        found = shard_files.of_split(spec, split, _PARQUET, options)
        with _local(found.paths[0]) as first:
            columns, names = _parquet_columns(first, found.storage, classes)
        read = functools.partial(
            _read_parquet, columns=columns, names=names, place=found.storage.path
        )
    else:
        _, found, names, columns, _ = find_examples(spec, split, options)
        read = functools.partial(_read_array_records, keys=columns)
    marks = [(name, *found.storage.stamp(name)) for name in found.names]
    parts = [_File(path, read) for path in found.paths]
    digest = hashlib.sha256(repr((marks, columns, names)).encode()).hexdigest()[:16]
    return Split(split, parts, sum(size for _, size, _ in marks), digest), names


def _parquet_columns(path: str, storage: Storage, classes: int) -> tuple[Columns, tuple[str, ...]]:
    """Return the columns of a Parquet file, as `datasets` describes them, and the class names."""
    schema = _open_parquet(path).schema_arrow
    try:
        stored = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        features = dict(stored.get("info", {}).get("features", {}))
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{path}: its description of the features cannot be read ({one_line(error)}); get it "
            "again"
        ) from error
    columns, names = columns_of(storage, features, classes)
    check_columns(path, schema, columns)
    return columns, names


def _open_parquet(path: str) -> "pq.ParquetFile":
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path, pre_buffer=False)
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path} is not a complete Parquet file: {one_line(error)}; get it again"
        ) from error


def _read_parquet(
    path: str, columns: Columns, names: tuple[str, ...], place: str
) -> Iterator[tuple[bytes, int]]:
    if _parquet_columns(path, storage_of(place), len(names)) != (columns, names):
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


def _read_array_records(path: str, keys: Sequence[Keys]) -> Iterator[tuple[bytes, int]]:
    reader = open_array_record_file(path)
    for row in range(reader.num_records()):
        yield parse_example(reader.read([row])[0], keys)
