"""How images are prepared for some weights: as in their run, unless flags say otherwise."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from largebatch.config import Config
from largebatch.data import SourceOptions
from largebatch.data.source import own_reference
from largebatch.errors import ConfigError, DataError
from largebatch.registry import check_trusted
from largebatch.weights import Weights, options_at

_SECTIONS = ("model", "data", "loss")
_MAX_SIDE = 2**14


@dataclasses.dataclass(frozen=True)
class Settings:
    """What determines the logits of an image besides the weights.

    Attributes:
        source: Data specification, '' if unknown.
        options: What the source is opened with.
        side: Pixels of a side; of the shorter side if rectangular.
        rectangular: Whether each image is evaluated near its own aspect ratio.
        flip: Whether logits are averaged over the image and its mirror image.
        mean: Mean of each channel, in 0..255.
        std: Standard deviation of each channel, in 0..255.
        dtype: Type of the convolutions.
        label_smoothing: That of the run's softmax cross-entropy, 0 if unknown or another loss.
        max_unreadable: Fraction of the images that may be corrupt.
    """

    source: str
    options: SourceOptions
    side: int
    rectangular: bool
    flip: bool
    mean: tuple[float, ...]
    std: tuple[float, ...]
    dtype: str
    label_smoothing: float
    max_unreadable: float

    def preprocessing(self) -> dict[str, Any]:
        """Return what determines the pixels, for ``summary.json``."""
        names = ("side", "rectangular", "flip", "mean", "std", "dtype")
        return {name: getattr(self, name) for name in names} | {
            "crop": self.options.evaluation_crop,
            "resampling": self.options.resampling,
        }


def run_options(weights: Weights) -> Config | None:
    """Return the options of the run at the checkpoint that was read; None for files.

    Raises:
        ConfigError: This version does not know one of the options.
    """
    return None if weights.manifest is None else options_at(weights.manifest, _SECTIONS)


def settings_of(weights: Weights, run: Config | None, flags: Mapping[str, Any]) -> Settings:
    """Take each setting from the flags, else from the run, else from the weights.

    Args:
        weights: What is evaluated.
        run: Options of their run, from `run_options`.
        flags: Command-line flags by name; a flag that is absent or None was not given.

    Raises:
        ConfigError: A value is out of range, or does not fit the number of channels.
    """

    def given(flag: str, otherwise: Any) -> Any:
        value = flags.get(flag)
        return otherwise if value is None else value

    source = flags.get("source") or weights.data
    data = run.data if run else None
    own = data if source == weights.data else None  # says nothing about other data
    crop, resampling = weights.evaluation_crop, weights.resampling
    if weights.image_shape[2] == 1:  # grey sets have no margin, and photographs shrink far
        crop, resampling = 1.0, "antialias"
    side = _side(weights, flags.get("image_size"))
    settings = Settings(
        source=source,
        options=SourceOptions(
            image_size=own.image_size if own and flags.get("image_size") is None else side,
            examples=own.examples if own else 0,
            classes=given("classes", own.classes if own else 0),
            data_dir=given("data_dir", data.data_dir if data else ""),
            evaluation_crop=given("crop", crop),
            resampling=given("resampling", resampling),
            validation_split=own.validation_split if own else 0.0,
            whole=True,
            cache_bytes=int(data.cache_gb * 1e9) if data else 0,
        ),
        side=side,
        rectangular=bool(data and data.rectangular),
        flip=given("flip", bool(data and data.evaluation_flip)),
        mean=_channels("mean", flags.get("mean"), weights.mean),
        std=_channels("std", flags.get("std"), weights.std),
        dtype=given("dtype", run.model.dtype if run else "float32"),
        label_smoothing=run.loss.label_smoothing if run and run.loss.kind == "softmax" else 0.0,
        max_unreadable=given("max_unreadable", data.max_unreadable if data else 0.001),
    )
    if not 0 < settings.options.evaluation_crop <= 1:
        raise ConfigError(
            f"--crop={settings.options.evaluation_crop:g}: expected a fraction above 0, at most 1"
        )
    if min(settings.std) <= 0:
        raise ConfigError(f"--std={_joined(settings.std)}: expected numbers above 0")
    if not 0 <= settings.max_unreadable <= 1:
        raise ConfigError(
            f"--max_unreadable={settings.max_unreadable:g}: expected a fraction, 0 to 1"
        )
    return settings


def check_source(settings: Settings, weights: Weights, trust: Sequence[str]) -> None:
    """Check that there is something to evaluate on, and that the user has named its code.

    Args:
        settings: From `settings_of`.
        weights: What is evaluated.
        trust: What the user has named (see `registry.check_trusted`).

    Raises:
        DataError: There is no source.
        ConfigError: It is code that only the weights name.
    """
    if not settings.source:
        raise DataError(
            f"{weights.origin} names no data; use --source, such as folder:PATH or "
            "tfds:imagenet2012"
        )
    if own := own_reference(settings.source):
        check_trusted(own, "data.source", weights.origin, trust)


def _side(weights: Weights, image_size: int | None) -> int:
    height, width, _ = weights.image_shape
    if image_size is None:
        if height != width:
            raise ConfigError(
                f"the weights are for images of {height}×{width}; use --image_size, pixels a side"
            )
        return height
    if not 1 <= image_size <= _MAX_SIDE:
        raise ConfigError(f"--image_size={image_size}: expected 1 to {_MAX_SIDE:,}")
    return image_size


def _channels(
    flag: str, given: tuple[float, ...] | None, own: tuple[float, ...]
) -> tuple[float, ...]:
    if given is None:
        return own
    if len(given) != len(own):
        raise ConfigError(
            f"--{flag}: expected {len(own)} number(s), one per channel, got {len(given)}"
        )
    if 0 < max(given) <= 1:
        raise ConfigError(
            f"--{flag}={_joined(given)}: expected grey levels 0 to 255, got fractions; use "
            f"--{flag}={_joined(tuple(255 * x for x in given))}"
        )
    return given


def _joined(numbers: tuple[float, ...]) -> str:
    return ",".join(f"{x:g}" for x in numbers)
