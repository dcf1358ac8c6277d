"""The options of an evaluation: those of the run or the file, unless flags say otherwise."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from largebatch import data
from largebatch.config import Config
from largebatch.config.schema import replaced
from largebatch.data import Split, folder
from largebatch.data.open import open_split, source_options
from largebatch.data.source import own_reference
from largebatch.errors import ConfigError, DataError
from largebatch.registry import check_trusted
from largebatch.weights.weights import Weights

_OPTIONS = {
    "data_dir": "data.data_dir",
    "classes": "data.classes",
    "crop": "data.evaluation_crop",
    "resampling": "data.resampling",
    "flip": "data.evaluation_flip",
    "dtype": "model.dtype",
    "max_unreadable": "data.max_unreadable",
}
"""The option that a flag sets."""
_OF_DATA = {"data.examples": 0, "data.classes": 0, "data.validation_split": 0.0}
"""What a run says of its own data only."""


def with_flags(weights: Weights, flags: Mapping[str, Any]) -> tuple[Weights, Config]:
    """Return weights with their normalization, and the options of their evaluation.

    Args:
        weights: What is evaluated.
        flags: Command-line flags by name; a flag that is absent or None was not given.

    Raises:
        ConfigError: ``mean`` or ``std`` do not fit the channels, or the image size is unknown.
    """
    given = {flag: value for flag, value in flags.items() if value is not None}
    config = weights.options or replaced(Config(), {"loss.label_smoothing": 0.0})
    side = given.get("image_size") or _side(weights)
    changes: dict[str, Any] = {
        "data.source": given.get("source") or weights.data,
        "data.evaluation_size": side,
        "data.evaluation_crop": weights.evaluation_crop,
        "data.resampling": weights.resampling,
    }
    if weights.model.channels == 1:  # grey sets have no margin, and photographs shrink far
        changes |= {"data.evaluation_crop": 1.0, "data.resampling": "antialias"}
    is_own = weights.options is not None and changes["data.source"] == weights.data
    if not is_own:
        changes |= _OF_DATA
    if not is_own or "image_size" in given:
        changes["data.image_size"] = side
    changes |= {_OPTIONS[flag]: given[flag] for flag in _OPTIONS if flag in given}
    normalization = {name: given[name] for name in ("mean", "std") if name in given}
    for name, values in normalization.items():
        _check_channels(name, values, weights.model.channels)
    return dataclasses.replace(weights, **normalization), replaced(config, changes)


def open_images(
    weights: Weights, config: Config, split: Split, trust: Sequence[str]
) -> data.Dataset:
    """Open the images to evaluate on, with the network's number of channels.

    Args:
        weights: From `with_flags`.
        config: From `with_flags`.
        split: Its name.
        trust: What the user has named (see `registry.check_trusted`).

    Raises:
        DataError: The data are unknown or cannot be opened, or there are none.
        ConfigError: The source is code that only the weights name, or an option does not fit it.
    """
    source = config.data.source
    if not source:
        raise DataError(
            f"{weights.origin} names no data; use --source, such as folder:PATH or "
            "tfds:imagenet2012"
        )
    if own := own_reference(source):
        check_trusted(own, "data.source", weights.origin, trust)
    found = open_split(config, split, whole=True)
    if not len(found):
        raise DataError(f"{found.name} has no {split} images; use another --split or --source")
    return found.with_channels(weights.model.channels, weights.mean, weights.std)


def open_files(weights: Weights, config: Config, files: Sequence[str]) -> data.Dataset:
    """Return image files without labels, with the network's number of channels."""
    found = data.Dataset(folder.open_files(files), source_options(config))
    return found.with_channels(weights.model.channels, weights.mean, weights.std)


def preprocessing(weights: Weights, config: Config) -> dict[str, Any]:
    """Return what determines the pixels, for ``summary.json``."""
    options = config.data
    return {
        "side": options.evaluation_size,
        "rectangular": options.rectangular,
        "flip": options.evaluation_flip,
        "mean": weights.mean,
        "std": weights.std,
        "dtype": config.model.dtype,
        "crop": options.evaluation_crop,
        "resampling": options.resampling,
    }


def label_smoothing(config: Config) -> float:
    """Return that of the run's softmax cross-entropy; 0 if unknown or for another loss."""
    return config.loss.label_smoothing if config.loss.kind == "softmax" else 0.0


def _side(weights: Weights) -> int:
    height, width, _ = weights.image_shape
    if height != width:
        raise ConfigError(
            f"the weights are for images of {height}×{width}; use --image_size, pixels a side"
        )
    return height


def _check_channels(flag: str, levels: tuple[float, ...], channels: int) -> None:
    if len(levels) != channels:
        raise ConfigError(
            f"--{flag}: expected {channels} number(s), one per channel, got {len(levels)}; use one "
            "for each"
        )
    if 0 < max(levels) <= 1:
        got, use = (",".join(f"{x * by:g}" for x in levels) for by in (1, 255))
        raise ConfigError(
            f"--{flag}={got}: expected grey levels 0 to 255, got fractions; use --{flag}={use}"
        )
