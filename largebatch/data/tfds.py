"""`tfds:NAME`: a dataset that TensorFlow Datasets prepared in ArrayRecord or TFRecord format.

TFDS reads only the metadata (0.3 s to import, 10 ms to open and 0.15 ms for each shard), without
TensorFlow.
"""

import contextlib
import os
import re
from fnmatch import fnmatchcase

import tensorflow_datasets as tfds

from largebatch.config.facts import KNOWN_SETS
from largebatch.data.example_shards import open_shards
from largebatch.data.examples import Keys
from largebatch.data.object_files import ObjectStorage
from largebatch.data.sharded import ShardedRecords, check_present
from largebatch.data.sources import SourceOptions, differing
from largebatch.data.storage import Storage, absolute, storage_of, subfolders
from largebatch.data.tfds_metadata import ELSEWHERE, key_of_kind, read_metadata
from largebatch.data.unfinished import check_finished
from largebatch.environment import command_path
from largebatch.errors import DataError, did_you_mean
from largebatch.files import folder_within, holds
from largebatch.store_urls import url_of

_VERSION = re.compile(r"(\d+|\*)\.(\d+|\*)\.(\d+|\*)")
_SPLITS = {"train": ("train",), "validation": ("validation", "test")}
_INFO = "dataset_info.json"
_METADATA = (".json", ".txt")


def open_tfds(spec: str, split: str, options: SourceOptions) -> ShardedRecords:
    """Open a prepared dataset of images and class labels; nothing is downloaded or prepared.

    Args:
        spec: `tfds:NAME`, then optionally `:CONFIG` or `/CONFIG`, then optionally `:VERSION` or
            `/VERSION`. A dataset with one configuration needs none; the newest matching version is
            used, where `*` stands for any number.
        split: `train`; or `validation`, which is TFDS' `test` where there is no `validation`.
        options: `data_dir` is the directory of TFDS's datasets; empty is $TFDS_DATA_DIR, or else
            ~/tensorflow_datasets.

    Returns:
        The split.

    Raises:
        DataError: The dataset is absent, in another format, incomplete or of another kind.
    """
    parts = re.split("[:/]", spec)[1:]
    version = parts.pop() if len(parts) > 1 and _VERSION.fullmatch(parts[-1]) else ""
    if not 1 <= len(parts) <= 2 or not all(parts):
        raise DataError(f"data.source: expected tfds:NAME[:CONFIG][:VERSION], got {spec!r}")
    root = root_of(options.data_dir)
    if url_of(root) and not subfolders(root):
        raise DataError(f"data.data_dir={root}: expected datasets, got no folder; correct the URL")
    directory = _find(spec, root, *parts, version=version)
    storage = storage_of(directory, options)
    if not is_prepared(storage):
        raise DataError(f"{directory} has no dataset_info.json; TFDS did not finish: prepare it")
    check_finished(directory)
    return open_prepared(spec, split, storage, options)


def root_of(data_dir: str) -> str:
    """Return TFDS's directory, absolute; empty is $TFDS_DATA_DIR, or ~/tensorflow_datasets."""
    root = data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    return absolute(root)


def is_prepared(storage: Storage) -> bool:
    """Return whether a directory holds TFDS's metadata."""
    return storage.holds(_INFO)


def open_prepared(
    spec: str, split: str, storage: Storage, options: SourceOptions
) -> ShardedRecords:
    """Open a dataset by the directory of one of its versions.

    Args:
        spec: The name of the result.
        split: As for `open_tfds`.
        storage: Its directory, with dataset_info.json, features.json and the shards.
        options: As for `open_tfds`; `examples` accepts a part of a public dataset.

    Returns:
        The split.

    Raises:
        DataError: As for `open_tfds`.
    """
    directory = storage.path
    copied = storage.copied(_METADATA) if isinstance(storage, ObjectStorage) else None
    with copied or contextlib.nullcontext(directory) as local:
        info, form = read_metadata(directory, local)
    own = next((name for name in _SPLITS[split] if name in info.splits), None)
    if own is None or not info.splits[own].num_examples:
        raise DataError(
            f"{directory} has no examples to use for {split}: it has "
            + (", ".join(f"{k} ({v.num_examples:,})" for k, v in info.splits.items()) or "no split")
            + f", and {' or '.join(_SPLITS[split])} is needed; prepare it"
        )
    files = info.splits[own].file_instructions
    names = [os.path.basename(file.filename) for file in files]
    check_present(directory, names, storage.names())
    keys = Keys(
        image=key_of_kind(directory, info.features, "image", tfds.features.Image),
        label=key_of_kind(directory, info.features, "label", tfds.features.ClassLabel),
    )
    if info.features[keys.image].np_dtype.kind == "f":
        raise DataError(
            f"{directory}: {keys.image!r} holds floats, expected uint8; use another dataset"
        )
    classes = tuple(info.features[keys.label].names)
    _check_known(directory, info, split, own, classes, options)
    paths = tuple(os.path.join(directory, name) for name in names)
    lengths = tuple(file.examples_in_shard for file in files)
    shards = open_shards(spec, form, paths, storage, keys, options.sequential)
    for path, stated, there in zip(paths, lengths, shards.lengths, strict=True):
        if there != stated:
            raise DataError(
                f"{path} holds {there:,} records, and dataset_info.json says {stated:,}; restore "
                "the file or prepare the dataset again"
            )
    return ShardedRecords(spec, split, shards, classes, f"{directory}, split {own}")


def _check_known(
    directory: str,
    info: tfds.core.DatasetInfo,
    split: str,
    own: str,
    classes: tuple[str, ...],
    options: SourceOptions,
) -> None:
    """Raise a DataError if a public dataset differs from what is published.

    `data.examples` accepts a part of it (`scripts/prepare_imagenet.py --allow-partial`).
    """
    name = f"tfds:{info.name}" + (f"/{info.config_name}" if info.config_name else "")
    known = KNOWN_SETS.get(name)
    if known is None:
        return
    expected = known.train if split == "train" else known.validation
    found = info.splits[own].num_examples
    if found != expected and not options.examples:
        part = info.splits["train"].num_examples if "train" in info.splits else 0
        raise DataError(
            f"{directory} has {found:,} {split} examples, and {name.partition(':')[2]} has "
            f"{expected:,}; finish its preparation"
            + (f", or set data.examples={part} if a part of it is meant" if part else "")
        )
    if info.name == "imagenet2012":
        from largebatch.data.imagenet import classes as ordered

        if classes != ordered():
            raise DataError(
                f"{directory} and imagenet2012 as published have {differing(classes, ordered())}; "
                "restore label.labels.txt or prepare the dataset again"
            )


def _find(spec: str, root: str, name: str, config: str = "", *, version: str) -> str:
    """Return the directory of the version that is wanted."""
    base = os.path.join(root, name)
    if not (name in subfolders(root) if url_of(root) else os.path.isdir(base)):
        found = subfolders(root)
        there = did_you_mean(name, found) if found else f"which {holds(root)}"
        local = None if url_of(root) else root
        inner = local and folder_within(local, lambda path: _versions(os.path.join(path, name)))
        raise DataError(
            f"data.source: {spec}: no {name!r} in {root}, {there}; "
            + (
                f"use data.data_dir={inner}"
                if inner
                else f"set data.data_dir to the folder that holds {name}/, or {_remedy(name, root)}"
            )
        )
    if not config and not _versions(base):
        configs = [folder for folder in subfolders(base) if _versions(os.path.join(base, folder))]
        if len(configs) != 1:
            raise DataError(
                f"data.source: {spec}: {base} has no version but "
                f"{', '.join(configs or subfolders(base)) or 'nothing'}; "
                + (
                    f"choose a configuration: tfds:{name}:{configs[0]}"
                    if configs
                    else _remedy(name, root)
                )
            )
        config = configs[0]
    base = os.path.join(base, config) if config else base
    matching = [found for found in _versions(base) if fnmatchcase(found, version or "*")]
    if not matching:
        raise DataError(
            f"data.source: {spec}: {base} has "
            f"{', '.join(_versions(base) or subfolders(base)) or 'nothing'} but not "
            f"{version or 'a version such as 1.0.0'}; name one that is there or prepare it"
        )
    return os.path.join(base, matching[-1])


def _remedy(name: str, root: str) -> str:
    """Return how a dataset can be prepared without TensorFlow."""
    if name == "imagenet2012":
        prepare = command_path("scripts/prepare_imagenet.py")
        return f"prepare it: python {prepare} --tars TARS --out {root}"
    if name == "imagenette":
        return "unpack imagenette2-320.tgz and use data.source=folder:imagenette2-320"
    return ELSEWHERE


def _versions(directory: str) -> list[str]:
    """Return the names of the folders that are versions, the newest last."""
    found = [name for name in subfolders(directory) if re.fullmatch(r"\d+\.\d+\.\d+", name)]
    return sorted(found, key=lambda name: [int(number) for number in name.split(".")])
