"""`tfds:NAME`: a set that TensorFlow Datasets prepared in ArrayRecord format, read without it.

TFDS is asked for the metadata only (0.3 s to import, 10 ms to open, no TensorFlow).
"""

import os
import re
from fnmatch import fnmatchcase

import tensorflow_datasets as tfds

from largebatch.data.examples import ExampleRecords, Keys, Shards, check_present, one_line
from largebatch.data.sources import SourceOptions
from largebatch.errors import DataError, did_you_mean
from largebatch.files import folders

_VERSION = re.compile(r"(\d+|\*)\.(\d+|\*)\.(\d+|\*)")
_SPLITS = {"train": ("train",), "validation": ("validation", "test")}
_FORMAT = "array_record"


def open_tfds(spec: str, split: str, options: SourceOptions) -> ExampleRecords:
    """Opens a prepared set of one image and one class label; nothing is downloaded or prepared.

    Args:
        spec: `tfds:NAME`, then `:CONFIG` or `/CONFIG`, then `:VERSION` or `/VERSION`, each if
            wanted. A set with a single configuration needs none; the newest version is taken that
            matches, `*` standing for any number.
        split: `train`; or `validation`, which is TFDS' `test` where there is no `validation`.
        options: `data_dir` is where TFDS keeps its sets; empty is $TFDS_DATA_DIR, or else
            ~/tensorflow_datasets.

    Returns:
        The split.

    Raises:
        DataError: The set is absent, in another format, incomplete or not of that kind.
    """
    parts = re.split("[:/]", spec)[1:]
    version = parts.pop() if len(parts) > 1 and _VERSION.fullmatch(parts[-1]) else ""
    if not 1 <= len(parts) <= 2 or not all(parts):
        raise DataError(f"data.source: {spec!r} is not of the form tfds:NAME[:CONFIG][:VERSION]")
    root = options.data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    root = os.path.abspath(os.path.expanduser(root))
    return open_prepared(spec, split, _find(spec, root, *parts, version=version))


def is_prepared(directory: str) -> bool:
    """Whether TFDS' metadata lie in a directory."""
    return os.path.isfile(os.path.join(directory, "dataset_info.json"))


def open_prepared(spec: str, split: str, directory: str) -> ExampleRecords:
    """Opens a set by the directory of one of its versions.

    Args:
        spec: What the user wrote, the name of the result.
        split: As of `open_tfds`.
        directory: Absolute; it holds dataset_info.json, features.json and the shards.

    Returns:
        The split.

    Raises:
        DataError: As of `open_tfds`.
    """
    info = _metadata(directory)
    own = next((name for name in _SPLITS[split] if name in info.splits), None)
    if own is None or not info.splits[own].num_examples:
        raise DataError(
            f"{directory} has no examples to use for {split}: it has "
            + (", ".join(f"{k} ({v.num_examples:,})" for k, v in info.splits.items()) or "no split")
            + f", and {' or '.join(_SPLITS[split])} is needed"
        )
    files = info.splits[own].file_instructions
    check_present(directory, [os.path.basename(file.filename) for file in files])
    keys = Keys(
        image=_key(directory, info.features, "image", tfds.features.Image),
        label=_key(directory, info.features, "label", tfds.features.ClassLabel),
    )
    if info.features[keys.image].np_dtype.kind == "f":
        raise DataError(f"{directory}: {keys.image!r} is a picture of floats, not of uint8")
    return ExampleRecords(
        spec,
        split,
        Shards(
            tuple(str(file.filename) for file in files),
            tuple(file.examples_in_shard for file in files),
        ),
        keys,
        tuple(info.features[keys.label].names),
        f"{directory}, split {own}",
    )


def _find(spec: str, root: str, name: str, config: str = "", *, version: str) -> str:
    """The directory of the version that is wanted."""
    base = os.path.join(root, name)
    if not os.path.isdir(base):
        found = _folders(root)
        hint = did_you_mean(name, found) if found else "the directory is empty or absent"
        raise DataError(
            f"data.source: {spec}: no {name!r} in {root}; {hint}; set data.data_dir to the folder "
            f"that holds {name}/, or prepare it: {_command(name, root)}"
        )
    if not config and not _versions(base):
        configs = [folder for folder in _folders(base) if _versions(os.path.join(base, folder))]
        if len(configs) != 1:
            raise DataError(
                f"data.source: {spec}: {base} has no version but "
                f"{', '.join(configs or _folders(base)) or 'nothing'}; "
                + (
                    f"choose a configuration: tfds:{name}:{configs[0]}"
                    if configs
                    else f"prepare it: {_command(name, root)}"
                )
            )
        config = configs[0]
    base = os.path.join(base, config)
    matching = [found for found in _versions(base) if fnmatchcase(found, version or "*")]
    if not matching:
        raise DataError(
            f"data.source: {spec}: {base} has "
            f"{', '.join(_versions(base) or _folders(base)) or 'nothing'} but not "
            f"{version or 'a version such as 1.0.0'}; name one that is there or prepare it"
        )
    directory = os.path.join(base, matching[-1])
    if not is_prepared(directory):
        raise DataError(f"{directory} has no dataset_info.json; TFDS did not finish: prepare it")
    return directory


def _command(name: str, root: str) -> str:
    """What prepares a set."""
    if name == "imagenet2012":
        return f"python scripts/prepare_imagenet.py --tars TARS --out {root}"
    return f"tfds build {name} --file_format={_FORMAT} --data_dir={root}"


def _folders(directory: str) -> list[str]:
    """As of `folders`; none if the directory is absent."""
    try:
        return folders(directory)
    except OSError:
        return []


def _versions(directory: str) -> list[str]:
    """Names of the folders that are versions, the newest last."""
    found = [name for name in _folders(directory) if re.fullmatch(r"\d+\.\d+\.\d+", name)]
    return sorted(found, key=lambda name: [int(number) for number in name.split(".")])


def _metadata(directory: str) -> tfds.core.DatasetInfo:
    """What TFDS knows of a set, its splits being those in ArrayRecord format."""
    try:
        info = tfds.builder_from_directory(directory).info
        available = {form.value for form in info.available_file_formats()}
        if _FORMAT in available:  # another one may be the first choice; as `as_data_source` does
            info.set_file_format(_FORMAT, override=True, override_if_initialized=True)
    except Exception as error:  # whatever TFDS makes of files that are missing or edited
        raise DataError(
            f"{directory}: TFDS cannot read its own metadata ({one_line(error)}); prepare it anew"
        ) from error
    if _FORMAT not in available:
        raise DataError(
            f"{directory} is in {' and '.join(sorted(available))} format, which has no random "
            f"access; prepare it with --file_format={_FORMAT}, or convert it: tfds convert_format "
            f"--dataset_version_dir={directory} --out_file_format={_FORMAT} (needs tensorflow and "
            "apache-beam)"
        )
    return info


def _key(
    directory: str,
    features: tfds.features.FeaturesDict,
    name: str,
    kind: type[tfds.features.FeatureConnector],
) -> str:
    """The feature of a kind: the one so named, or else the only one."""
    if not isinstance(features, tfds.features.FeaturesDict):
        features = {}
    found = sorted(key for key, feature in features.items() if type(feature) is kind)
    if name in found:
        return name
    if len(found) != 1:
        raise DataError(
            f"{directory} has {len(found)} {kind.__name__} features "
            f"({', '.join(found or sorted(features)) or 'not a dictionary'}); one is needed, or "
            f"one named {name!r}"
        )
    return found[0]
