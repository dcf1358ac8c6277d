"""`huggingface:PATH`: a dataset that Hugging Face's `datasets` saved by `save_to_disk`.

Its files are Arrow streams, in which the content of each image is a range of bytes.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from largebatch.data import shard_files
from largebatch.data.prefetch import in_threads
from largebatch.data.ranges import Disk, RangeSource, Storage, absolute
from largebatch.data.source import SPLITS, SourceOptions, own_name, unreadable
from largebatch.errors import DataError, counted, did_you_mean, one_line
from largebatch.files import holds, read_json
from largebatch.store_urls import url_of

if TYPE_CHECKING:
    import pyarrow as pa

_END = b"\xff\xff\xff\xff\0\0\0\0"  # of an Arrow stream


class Columns(NamedTuple):
    """Names of the two columns that are read."""

    image: str = "image"
    """A struct with `bytes`."""
    label: str = "label"
    """An integer."""


def open_huggingface(spec: str, split: str, options: SourceOptions) -> RangeSource:
    """Open a split of a saved `DatasetDict`.

    Args:
        spec: `huggingface:PATH`, the directory with `dataset_dict.json`.
        split: `train`; or `validation`: see `SPLITS`.
        options: `classes` is the number of classes where the label is not a `ClassLabel`.

    Raises:
        DataError: The directory is absent, incomplete or not of that form.
    """
    check_installed()
    root = absolute(spec.partition(":")[2])
    if url_of(root):
        raise DataError(
            f"data.source={spec}: Arrow files are read from a disk only; copy the directory "
            "(gcloud storage rsync -r, aws s3 sync, rclone copy)"
        )
    dictionary = os.path.join(root, "dataset_dict.json")
    if not os.path.isfile(dictionary):
        raise DataError(
            f"data.source: {spec}: no dataset_dict.json in {root}, which {holds(root)}; save a "
            "DatasetDict by save_to_disk, or correct the path"
        )
    splits = _json(dictionary).get("splits")
    splits = [str(name) for name in splits] if isinstance(splits, list) else []
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
    disk = Disk(directory)
    shard_files.check_present(directory, names, disk.listing()[0])
    for name in names:
        disk.stamp(name)
    info = _json(os.path.join(directory, "dataset_info.json"))
    columns, classes = columns_of(disk, info.get("features") or {}, options.classes)
    paths = [os.path.join(directory, name) for name in names]
    rows = list(in_threads(lambda path: _scan(path, columns), paths, disk.scanners))
    note = f"{root}, split {own}, {counted(len(names), 'file')}"
    lengths = [len(part) for part in rows]
    return RangeSource(spec, split, classes, disk, names, lengths, np.concatenate(rows), note)


def _scan(path: str, columns: Columns) -> np.ndarray:
    """Find the images of an Arrow stream: int64 (n, 3), first byte, number of bytes and label.

    The content of the images of a batch is one buffer, mapped from the file, and their bounds in it
    are another: the position of an image is a difference of addresses.

    Raises:
        DataError: The file is absent, not complete, or has not these columns.
    """
    import pyarrow as pa

    try:
        mapped = pa.memory_map(path)
        if mapped.size() < len(_END) or mapped.read_at(len(_END), mapped.size() - 8) != _END:
            raise ValueError("it lacks the mark of its end")
        start = mapped.read_buffer(mapped.size()).address if mapped.seek(0) == 0 else 0
        mapped.seek(0)
        table = pa.ipc.open_stream(mapped).read_all()
        check_columns(path, table.schema, columns)
        parts = []
        for image, label in zip(
            table.column(columns.image).chunks, table.column(columns.label).chunks, strict=True
        ):
            contents = image.field("bytes")
            if image.null_count or contents.null_count:
                raise ValueError("an image has no bytes, only a path")
            if label.null_count:
                raise ValueError("an image has no label")
            if not len(label):
                continue
            wide = pa.types.is_large_binary(contents.type)
            _, ends, data = contents.buffers()
            bounds = np.frombuffer(ends, np.int64 if wide else np.int32)
            at = image.offset + contents.offset
            bounds = bounds[at : at + len(label) + 1].astype(np.int64) + data.address - start
            if bounds[0] < 0 or bounds[-1] > mapped.size():
                raise ValueError("its images are compressed")
            labels = label.to_numpy(zero_copy_only=False)
            parts.append(np.column_stack([bounds[:-1], np.diff(bounds), labels]))
    except (OSError, ValueError) as error:  # pa.ArrowInvalid is a ValueError
        raise DataError(f"{path}: {one_line(error)}; restore it or save the set again") from error
    return np.concatenate(parts or [np.empty((0, 3), np.int64)]).astype(np.int64)


def check_installed() -> None:
    """Raise a DataError if pyarrow is not installed."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise DataError(
            "data.source: Arrow and Parquet files need pyarrow, which is not installed; run "
            "pip install -e '.[huggingface]'"
        ) from error


def _json(path: str) -> dict[str, Any]:
    try:
        return read_json(Path(path))
    except (OSError, ValueError) as error:
        raise unreadable(path, error, "save the set again") from error


def columns_of(
    storage: Storage, features: Mapping[str, Any], count: int
) -> tuple[Columns, tuple[str, ...]]:
    """Return the columns of image and label, and the names of the classes.

    Args:
        storage: The directory of the dataset, where a `labels.txt` may be.
        features: The description of the columns, as `datasets` writes it.
        count: `data.classes`.

    Raises:
        DataError: Several columns could be meant, or nothing names the classes.
    """
    kinds = {
        name: feature.get("_type")
        for name, feature in features.items()
        if isinstance(feature, dict)
    }
    image, label = (
        _column(storage.path, name, [own for own, of in kinds.items() if of == kind])
        for name, kind in (("image", "Image"), ("label", "ClassLabel"))
    )
    names = features.get(label, {}).get("names") if label in kinds else None
    if names and isinstance(names, list):
        return Columns(image, label), tuple(map(str, names))
    return Columns(image, label), shard_files.class_names(storage, count)


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


def check_columns(path: str, schema: "pa.Schema", columns: Columns) -> None:
    """Raise a DataError unless the columns are a struct with `bytes` and integers."""
    import pyarrow as pa

    for name in columns:
        if name not in schema.names:
            raise DataError(f"{path} has no column {name!r}; {did_you_mean(name, schema.names)}")
    image, label = schema.field(columns.image).type, schema.field(columns.label).type
    is_image = pa.types.is_struct(image) and image.get_field_index("bytes") >= 0
    if is_image:
        contents = image.field("bytes").type
        is_image = pa.types.is_binary(contents) or pa.types.is_large_binary(contents)
    if not is_image or not pa.types.is_integer(label):
        raise DataError(
            f"{path}: expected images with bytes and integer labels, got {image} and {label}; "
            "use another set"
        )
