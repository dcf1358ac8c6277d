"""`tfds:NAME`, `tfrecord:PATH` and `arrayrecord:PATH`: shards of `tf.train.Example`s.

Where TensorFlow Datasets has prepared the shards, their metadata are beside them. TFDS reads only
these (0.3 s to import, 10 ms to open and 0.15 ms for each shard), without TensorFlow.
"""

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import tensorflow_datasets as tfds

from largebatch.config.facts import KNOWN_SETS
from largebatch.data import shard_files
from largebatch.data.formats import Examples, Keys, open_examples
from largebatch.data.ranges import Disk, Storage, absolute, storage_of
from largebatch.data.source import Source, SourceOptions, check_finished, differing
from largebatch.environment import command_path
from largebatch.errors import DataError, did_you_mean, one_line

_VERSION = re.compile(r"(\d+|\*)\.(\d+|\*)\.(\d+|\*)")
_SPLITS = {"train": ("train",), "validation": ("validation", "test")}
_INFO = "dataset_info.json"
_METADATA = (".json", ".txt")
_FORMATS = {"array_record": "arrayrecord", "tfrecord": "tfrecord"}  # the first is read
_OWN = "tensorflow_datasets."
_ELSEWHERE = (
    "prepare it where TensorFlow is installed (tfds build), copy it here, or use its images as "
    "class folders: data.source=folder:PATH"
)


_FORMS = {
    # The scripts of TensorFlow's models write `train-00000-of-01024`.
    "tfrecord": shard_files.Form(
        "TFRecord", r"tf_?record|-\d{5}-of-\d{5}$", ".tfrecord-00000-of-00004"
    ),
    "arrayrecord": shard_files.Form("ArrayRecord", "array_?record", ".array_record-00000-of-00004"),
}


def open_tfds(spec: str, split: str, options: SourceOptions) -> Source:
    """Open a prepared dataset of images and class labels; nothing is downloaded or prepared.

    Args:
        spec: `tfds:NAME`, then optionally `:CONFIG` or `/CONFIG`, then optionally `:VERSION` or
            `/VERSION`. A dataset with one configuration needs none; the newest matching version is
            used, where `*` stands for any number.
        split: `train`; or `validation`, which is TFDS' `test` where there is no `validation`.
        options: `data_dir` is the directory of TFDS's datasets; empty is $TFDS_DATA_DIR, or else
            ~/tensorflow_datasets.

    Raises:
        DataError: The dataset is absent, in another format, incomplete or of another kind.
    """
    parts = re.split("[:/]", spec)[1:]
    version = parts.pop() if len(parts) > 1 and _VERSION.fullmatch(parts[-1]) else ""
    if not 1 <= len(parts) <= 2 or not all(parts):
        raise DataError(
            f"data.source: expected tfds:NAME[:CONFIG][:VERSION], got {spec!r}; correct it"
        )
    directory = _find(spec, root_of(options.data_dir), *parts, version=version)
    storage = storage_of(directory, options.cache_bytes)
    if not is_prepared(storage):
        raise DataError(f"{directory} has no {_INFO}; TFDS did not finish: prepare it")
    check_finished(directory)
    return open_examples(spec, split, _prepared(split, storage, options))


def open_tf_record(spec: str, split: str, options: SourceOptions) -> Source:
    """Open a split of TFRecord files of `tf.train.Example`s.

    A directory with TFDS's metadata is opened as by `tfds:`. Otherwise:

    - The files of a split are found by their names; see `shard_files.of_split`. A file has
      `tfrecord` or `tf_record` in its name, or ends in `-00000-of-01024`.
    - An example has the features `KEYS`.
    - The classes are found by `shard_files.class_names`.

    Args:
        spec: `tfrecord:PATH`.
        split: `train` or `validation`.
        options: `classes` is the number of classes where no file names them.

    Raises:
        DataError: The directory is absent, incomplete or not of that form.
    """
    return open_examples(spec, split, find_examples(spec, split, options))


def open_array_record(spec: str, split: str, options: SourceOptions) -> Source:
    """Open a split of ArrayRecord files on a disk, as `open_tf_record` does.

    A file has `array_record` or `arrayrecord` in its name.
    """
    return open_examples(spec, split, find_examples(spec, split, options))


def find_examples(spec: str, split: str, options: SourceOptions) -> Examples:
    """Find the shards of `tfrecord:PATH` or `arrayrecord:PATH`; see `open_tf_record`."""
    scheme, _, place = spec.partition(":")
    directory, storage = absolute(place), None
    if not shard_files.is_pattern(directory):
        storage = storage_of(directory, options.cache_bytes)
        if is_prepared(storage):
            return _prepared(split, storage, options)
    found = shard_files.of_split(spec, split, _FORMS[scheme], options, storage)
    return Examples(scheme, found, shard_files.class_names(found.storage, options.classes))


def root_of(data_dir: str) -> str:
    """Return TFDS's directory, absolute; empty is $TFDS_DATA_DIR, or ~/tensorflow_datasets."""
    root = data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    return absolute(root)


def is_prepared(storage: Storage) -> bool:
    """Return whether a directory holds TFDS's metadata."""
    return storage.holds(_INFO)


def _prepared(split: str, storage: Storage, options: SourceOptions) -> Examples:
    """Find the shards of a split by the directory of a version of a dataset.

    Args:
        split: As for `open_tfds`.
        storage: Its directory, with dataset_info.json, features.json and the shards.
        options: As for `open_tfds`; `examples` accepts a part of a public dataset.

    Raises:
        DataError: As for `open_tfds`.
    """
    directory = storage.path
    with _local_metadata(storage) as local:
        info, form = _read_metadata(directory, local)
    own = next((name for name in _SPLITS[split] if name in info.splits), None)
    if own is None or not info.splits[own].num_examples:
        raise DataError(
            f"{directory} has no examples to use for {split}: it has "
            + (", ".join(f"{k} ({v.num_examples:,})" for k, v in info.splits.items()) or "no split")
            + f", and {' or '.join(_SPLITS[split])} is needed; prepare it"
        )
    files = info.splits[own].file_instructions
    names = [os.path.basename(file.filename) for file in files]
    shard_files.check_present(directory, names, storage.listing()[0])
    keys = Keys(
        image=_key_of_kind(directory, info.features, "image", tfds.features.Image),
        label=_key_of_kind(directory, info.features, "label", tfds.features.ClassLabel),
    )
    if info.features[keys.image].np_dtype.kind == "f":
        raise DataError(
            f"{directory}: {keys.image!r} holds floats, expected uint8; use another dataset"
        )
    classes = tuple(info.features[keys.label].names)
    _check_known(directory, info, split, own, classes, options)
    lengths = [file.examples_in_shard for file in files]
    found = shard_files.Found(storage, own, names)
    return Examples(form, found, classes, (keys,), lengths)


@contextlib.contextmanager
def _local_metadata(storage: Storage) -> Iterator[str]:
    """Yield a directory on a disk with the files that are not shards."""
    if isinstance(storage, Disk):
        yield storage.path
        return
    with tempfile.TemporaryDirectory(prefix="largebatch-") as directory:
        for name in storage.listing()[0]:
            if name.endswith(_METADATA):
                Path(directory, name).write_bytes(storage.text(name))
        yield directory


def _read_metadata(directory: str, local: str) -> tuple[tfds.core.DatasetInfo, str]:
    """Return TFDS's metadata, with the splits in the format that is read, and that format.

    Args:
        directory: Directory of the dataset, for messages.
        local: A directory with its metadata.
    """
    _check_features(directory, local)
    form = None
    try:
        info = tfds.builder_from_directory(local).info
        available = {form.value for form in info.available_file_formats()}
        form = next((name for name in _FORMATS if name in available), None)
        if form:  # another one may be the first choice; as `as_data_source` does
            info.set_file_format(form, override=True, override_if_initialized=True)
    except Exception as error:  # TFDS raises many types for files that are missing or edited
        raise DataError(
            f"{directory}: TFDS cannot read its own metadata ({one_line(error)}); prepare it again"
        ) from error
    if form is None:
        raise DataError(
            f"{directory} is in {' and '.join(sorted(available))} format, which has no random "
            f"access; {_ELSEWHERE}"
        )
    return info, _FORMATS[form]


def _check_features(directory: str, local: str) -> None:
    """Raise a DataError where features.json names a class that is not TFDS's own.

    TFDS would import any module that the file names.
    """

    def named(value: object) -> Iterator[str]:
        if isinstance(value, dict):
            yield from (
                value[k] for k in ("pythonClassName", "type") if isinstance(value.get(k), str)
            )
        if isinstance(value, dict | list):
            for inner in value.values() if isinstance(value, dict) else value:
                yield from named(inner)

    try:
        with open(os.path.join(local, "features.json"), encoding="utf-8") as file:
            foreign = [n for n in named(json.load(file)) if not n.startswith(_OWN) and "." in n]
    except (OSError, ValueError, RecursionError):
        return  # TFDS raises an error later
    if foreign:
        raise DataError(
            f"{directory}/features.json names the class {foreign[0]!r}, which is not of TFDS; "
            "nothing else is imported: prepare the dataset again"
        )


def _key_of_kind(
    directory: str,
    features: tfds.features.FeaturesDict,
    name: str,
    kind: type[tfds.features.FeatureConnector],
) -> str:
    """Return the feature of a kind: the one with this name, or else the only one."""
    if not isinstance(features, tfds.features.FeaturesDict):
        features = {}
    found = sorted(key for key, feature in features.items() if type(feature) is kind)
    if name in found:
        return name
    if len(found) != 1:
        raise DataError(
            f"{directory} has {len(found)} {kind.__name__} features "
            f"({', '.join(found or sorted(features)) or 'not a dictionary'}); one is needed, or "
            f"one named {name!r}; use another dataset"
        )
    return found[0]


def _check_known(
    directory: str,
    info: tfds.core.DatasetInfo,
    split: str,
    own: str,
    classes: tuple[str, ...],
    options: SourceOptions,
) -> None:
    """Raise a DataError if a public dataset differs from what is published.

    `data.examples` accepts a part of it (`scripts/prepare_imagenet.py --allow_partial`).
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
    if name not in (there := _folders(root)):
        raise DataError(
            f"data.source: {spec}: no {name!r} in {root}, "
            + (did_you_mean(name, there) if there else "which has no folder")
            + f"; set data.data_dir to the folder that holds {name}/, or {_remedy(name, root)}"
        )
    if not config and not _versions(base):
        configs = [each for each in _folders(base) if _versions(os.path.join(base, each))]
        config = configs[0] if len(configs) == 1 else ""
    base = os.path.join(base, config) if config else base
    matching = [found for found in _versions(base) if fnmatchcase(found, version or "*")]
    if not matching:
        raise DataError(
            f"data.source: {spec}: expected {version or 'a version such as 1.0.0'} in {base}, got "
            f"{', '.join(_versions(base) or _folders(base)) or 'nothing'}; name one that is there, "
            f"tfds:{name}[:CONFIG][:VERSION], or {_remedy(name, root)}"
        )
    return os.path.join(base, matching[-1])


def _remedy(name: str, root: str) -> str:
    """Return how a dataset can be prepared without TensorFlow."""
    if name == "imagenet2012":
        prepare = command_path("scripts/prepare_imagenet.py")
        return f"prepare it: python {prepare} --tars TARS --out {root}"
    return _ELSEWHERE


def _folders(path: str) -> list[str]:
    """Return the names of the visible folders of a directory or URL; none if it is absent."""
    try:
        found = storage_of(path).listing()[1]
    except OSError:
        return []
    return sorted(name for name in found if not name.startswith("."))


def _versions(directory: str) -> list[str]:
    """Return the names of the folders that are versions, the newest last."""
    found = [name for name in _folders(directory) if re.fullmatch(r"\d+\.\d+\.\d+", name)]
    return sorted(found, key=lambda name: [int(number) for number in name.split(".")])
