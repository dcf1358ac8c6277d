"""`huggingface:PATH` and `parquet:PATTERN`: sets of Hugging Face's `datasets`.

A random example of a Parquet file costs the reading of its row group, 0.05 ms of one core for each
image of ImageNet in it, beside 1 ms to decode an image. Groups of several images with more than
`LARGEST_GROUP` bytes in the mean are refused in training; those of the hub have 100 images.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from largebatch.data import shard_files
from largebatch.data.arrow import (
    ArrowShards,
    Columns,
    ParquetShards,
    check_installed,
    open_parquet_file,
    open_stream,
)
from largebatch.data.sharded import ShardedRecords, check_present, in_threads
from largebatch.data.sources import SPLITS, SourceOptions, own_name
from largebatch.data.storage import LocalStorage
from largebatch.environment import command_path
from largebatch.errors import DataError, did_you_mean, one_line
from largebatch.files import holds, read_json

if TYPE_CHECKING:
    import pyarrow as pa

LARGEST_GROUP = 1 << 20
"""Bytes of a row group up to which a Parquet file is read in place: some 9 images of ImageNet."""
_PARQUET = shard_files.Form("parquet", "Parquet", r"\.parquet$", "-00000-of-00004.parquet")


def open_huggingface(spec: str, split: str, options: SourceOptions) -> ShardedRecords:
    """Open a split of a dataset that `datasets` has saved by `save_to_disk`.

    Args:
        spec: `huggingface:PATH`, the directory with `dataset_dict.json`.
        split: `train`; or `validation`: see `SPLITS`.
        options: `classes` is the number of classes where the label is not a `ClassLabel`.

    Returns:
        The split.

    Raises:
        DataError: The directory is absent, incomplete or not of that form.
    """
    check_installed()
    path = spec.partition(":")[2]
    if not path:
        raise DataError(f"data.source: {spec!r} has no directory; write huggingface:PATH")
    root = os.path.abspath(os.path.expanduser(path))
    dictionary = os.path.join(root, "dataset_dict.json")
    if not os.path.isfile(dictionary):
        raise DataError(
            f"data.source: {spec}: no dataset_dict.json in {root}, which {holds(root)}; save a "
            "DatasetDict by save_to_disk, or correct the path"
        )
    splits = [str(name) for name in _json(dictionary).get("splits", ())]
    own = own_name(splits, split, root)
    if own is None:
        raise DataError(
            f"{root} has no split for {split}: it has {', '.join(splits) or 'none'}; save "
            f"{' or '.join(SPLITS[split])}"
        )
    directory = os.path.join(root, own)
    state = _json(os.path.join(directory, "state.json"))
    try:
        names = [os.path.basename(file["filename"]) for file in state["_data_files"]]
    except (KeyError, TypeError) as error:
        raise DataError(f"{directory}/state.json names no files; save the set again") from error
    if not names or state.get("_indices_data_files"):
        raise DataError(
            f"{directory} has {'a mapping of indices' if names else 'no files'}; save the set again"
        )
    check_present(directory, names)
    paths = tuple(os.path.join(directory, name) for name in names)
    info = _json(os.path.join(directory, "dataset_info.json"))
    lengths = tuple(in_threads(lambda path: len(open_stream(path)), paths))
    if not sum(lengths):
        raise DataError(f"{directory}: the files of {own} hold no record; save the set again")
    columns, classes = _features(directory, info.get("features") or {}, options.classes)
    _check_columns(paths[0], open_stream(paths[0]).schema, columns)
    return ShardedRecords(
        spec, split, ArrowShards(paths, lengths, columns), classes, f"{root}, split {own}"
    )


def open_parquet(spec: str, split: str, options: SourceOptions) -> ShardedRecords:
    """Open a split of Parquet files such as those of Hugging Face's hub.

    The files of a split are found by their names; see `shard_files.of_split`.

    Args:
        spec: `parquet:PATH`, a directory or a pattern.
        split: `train` or `validation`.
        options: `classes` is the number of classes where neither the files nor a `labels.txt`
            names them; `sequential` accepts large row groups.

    Returns:
        The split.

    Raises:
        DataError: Files are absent, incomplete, not of that form or in large row groups.
    """
    check_installed()
    found = shard_files.of_split(spec, split, _PARQUET, options)
    metadata = in_threads(lambda path: open_parquet_file(path).metadata, found.paths)
    schema = open_parquet_file(found.paths[0]).schema_arrow
    try:
        stored = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        features = dict(stored.get("info", {}).get("features", {}))
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{found.paths[0]}: its description of the features cannot be read "
            f"({one_line(error)}); write the files again"
        ) from error
    columns, classes = _features(found.directory, features, options.classes)
    _check_columns(found.paths[0], schema, columns)
    groups = (file.row_group(i) for file in metadata for i in range(file.num_row_groups))
    sizes = [group.total_byte_size for group in groups if group.num_rows > 1]
    size = sum(sizes) / max(len(sizes), 1)
    if size > LARGEST_GROUP and not options.sequential:
        raise DataError(
            f"{found.directory} has row groups of {size / 1e6:,.1f} MB, and a random image would "
            f"read a whole one (at most {LARGEST_GROUP / 1e6:,.1f} MB are accepted); convert the "
            f"set: python {command_path('scripts/prepare_imagenet.py')} --from '{spec}' --to "
            "arrayrecord --out DIR"
        )
    lengths = tuple(file.num_rows for file in metadata)
    if not sum(lengths):
        raise DataError(
            f"{found.directory}: the files of {found.own} hold no record; get them again"
        )
    return ShardedRecords(
        spec,
        split,
        ParquetShards(found.paths, lengths, columns, options.sequential),
        classes,
        f"{found.directory}, split {found.own}",
    )


def _json(path: str) -> dict[str, Any]:
    try:
        return read_json(Path(path))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({one_line(error)}); save the set again") from error


def _features(
    directory: str, features: Mapping[str, Any], count: int
) -> tuple[Columns, tuple[str, ...]]:
    """Return the columns of image and label, and the names of the classes."""
    kinds = {
        name: feature.get("_type")
        for name, feature in features.items()
        if isinstance(feature, dict)
    }
    image = _column(directory, "image", [name for name, kind in kinds.items() if kind == "Image"])
    label = _column(
        directory, "label", [name for name, kind in kinds.items() if kind == "ClassLabel"]
    )
    names = features.get(label, {}).get("names") if label in kinds else None
    if names:
        return Columns(image, label), tuple(map(str, names))
    return Columns(image, label), shard_files.class_names(LocalStorage(directory), count)


def _column(directory: str, name: str, found: Sequence[str]) -> str:
    """Return the column of a kind: the one with this name, or else the only one."""
    if not found or name in found:
        return name
    if len(found) > 1:
        raise DataError(
            f"{directory} has {len(found)} columns for the {name}, {', '.join(found)}; rename one "
            f"to {name!r}"
        )
    return found[0]


def _check_columns(path: str, schema: "pa.Schema", columns: Columns) -> None:
    """Raise a DataError unless the columns are a struct with `bytes` and integers."""
    import pyarrow as pa

    for name in (columns.image, columns.label):
        if name not in schema.names:
            raise DataError(f"{path} has no column {name!r}; {did_you_mean(name, schema.names)}")
    image, label = schema.field(columns.image).type, schema.field(columns.label).type
    is_image = pa.types.is_struct(image) and image.get_field_index("bytes") >= 0
    if not is_image or not pa.types.is_integer(label):
        raise DataError(
            f"{path}: expected images with bytes and integer labels, got {image} and {label}; "
            "use another set"
        )
