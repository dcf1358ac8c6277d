"""The metadata of a dataset that TFDS prepared, checked before TFDS reads them."""

import json
import os
from collections.abc import Iterator

import tensorflow_datasets as tfds

from largebatch.errors import DataError, one_line

_FORMATS = ("array_record", "tfrecord")  # the first that a dataset has is read
_OWN = "tensorflow_datasets."
ELSEWHERE = (
    "prepare it where TensorFlow is installed (tfds build), copy it "
    "here, or use its images as class folders: data.source=folder:PATH"
)
"""What to do with a dataset that cannot be read."""


def read_metadata(directory: str, local: str) -> tuple[tfds.core.DatasetInfo, str]:
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
            f"access; {ELSEWHERE}"
        )
    return info, form


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


def key_of_kind(
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
