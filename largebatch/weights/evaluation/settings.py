"""How images are prepared for some weights: as in their run, unless the command says otherwise."""

import dataclasses
from typing import Any

from largebatch.config import Config
from largebatch.data import SourceOptions
from largebatch.errors import ConfigError, DataError
from largebatch.weights import Weights, options_at

_SECTIONS = ("model", "data", "loss")
_MOST_SIDE = 2**14


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What the command line says; None for what it leaves to the weights."""

    source: str | None = None
    data_dir: str | None = None
    image_size: int | None = None
    crop: float | None = None
    resampling: str | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    flip: bool | None = None
    dtype: str | None = None
    classes: int | None = None
    max_unreadable: float | None = None


@dataclasses.dataclass(frozen=True)
class Settings:
    """What decides the logits of an image beside the weights.

    Attributes:
        source: Data specification, '' where none is known.
        options: What the source is opened with.
        side: Pixels a side, of the shorter side for rectangles.
        rectangular: Whether each picture is seen at about its own aspect.
        flip: Whether logits are means over the image and its mirror image.
        on_device: Whether the device cuts the centre out of decoded pictures.
        mean: Of each channel, in 0..255.
        std: Likewise.
        dtype: Of the convolutions' arithmetic.
        label_smoothing: Of the run's loss, 0 where none is known.
        max_unreadable: Share of the images that may be undecodable.
    """

    source: str
    options: SourceOptions
    side: int
    rectangular: bool
    flip: bool
    on_device: bool
    mean: tuple[float, ...]
    std: tuple[float, ...]
    dtype: str
    label_smoothing: float
    max_unreadable: float

    def preprocessing(self) -> dict[str, Any]:
        """What decides the pixels, for a summary."""
        names = ("side", "rectangular", "flip", "mean", "std", "dtype")
        seen = {name: getattr(self, name) for name in names}
        crop, resampling = self.options.evaluation_crop, self.options.resampling
        return seen | {"crop": crop, "resampling": resampling}


def run_options(weights: Weights) -> Config | None:
    """Options of the run at the checkpoint that was read; None for anything but a checkpoint.

    Raises:
        ConfigError: As of `options_at`.
    """
    return None if weights.manifest is None else options_at(weights.manifest, _SECTIONS)


def settings_of(weights: Weights, options: Config | None, wanted: Wanted) -> Settings:
    """What is used: the command's word, else the run's, else the weights'.

    Args:
        weights: What is evaluated.
        options: Of its run, as of `run_options`.
        wanted: What the command line says.

    Raises:
        ConfigError: A value is out of range, or not for so many channels.
    """
    channels = weights.image_shape[2]
    source = wanted.source or weights.data
    seen = options.data if options is not None else None
    own = seen if source == weights.data else None  # which says nothing of other data
    crop, resampling = weights.evaluation_crop, weights.resampling
    if channels == 1:  # grey sets have no margin to cut off, and a photograph shrinks far
        crop, resampling = 1.0, "antialias"
    side = _side(weights, wanted)
    opened = own.image_size if own and wanted.image_size is None else side
    settings = Settings(
        source=source,
        options=SourceOptions(
            image_size=opened,
            examples=own.examples if own else 0,
            classes=_first(wanted.classes, own.classes if own else 0),
            data_dir=_first(wanted.data_dir, seen.data_dir if seen else ""),
            evaluation_crop=_first(wanted.crop, crop),
            resampling=_first(wanted.resampling, resampling),
        ),
        side=side,
        rectangular=bool(seen and seen.rectangular),
        flip=_first(wanted.flip, bool(seen and seen.evaluation_flip)),
        on_device=bool(seen and seen.crops == "device" and source.startswith("decoded:")),
        mean=_channels("mean", wanted.mean, weights.mean),
        std=_channels("std", wanted.std, weights.std),
        dtype=_first(wanted.dtype, options.model.dtype if options else "float32"),
        label_smoothing=options.loss.label_smoothing if options else 0.0,
        max_unreadable=_first(wanted.max_unreadable, seen.max_unreadable if seen else 0.001),
    )
    if min(settings.std) <= 0:
        raise ConfigError(f"--std={_joined(settings.std)} must be above 0, in grey levels 0 to 255")
    if not 0 <= settings.max_unreadable <= 1:
        raise ConfigError(f"--max_unreadable={settings.max_unreadable:g} must be in 0 to 1")
    return settings


def check_source(settings: Settings, weights: Weights) -> None:
    """Raises a DataError unless it is known what to evaluate on."""
    if not settings.source:
        raise DataError(
            f"{weights.origin} does not say which data it is for; give --source, such as "
            "folder:PATH or tfds:imagenet2012"
        )


def _side(weights: Weights, wanted: Wanted) -> int:
    height, width, _ = weights.image_shape
    if wanted.image_size is None:
        if height != width:
            raise ConfigError(
                f"the weights are for images of {height}×{width}; give --image_size, pixels a side"
            )
        return height
    if not 1 <= wanted.image_size <= _MOST_SIDE:
        raise ConfigError(f"--image_size={wanted.image_size} must be in 1 to {_MOST_SIDE:,}")
    return wanted.image_size


def _channels(
    name: str, given: tuple[float, ...] | None, own: tuple[float, ...]
) -> tuple[float, ...]:
    if given is None:
        return own
    if len(given) != len(own):
        raise ConfigError(
            f"--{name} has {len(given)} number(s), the images {len(own)} channel(s); give one for "
            "each, in grey levels 0 to 255"
        )
    if 0 < max(given) <= 1:
        levels = tuple(255 * x for x in given)
        raise ConfigError(
            f"--{name}={_joined(given)} is of images in 0 to 1; write grey levels 0 to 255: "
            f"--{name}={_joined(levels)}"
        )
    return given


def _joined(numbers: tuple[float, ...]) -> str:
    return ",".join(f"{x:g}" for x in numbers)


def _first(given: Any, other: Any) -> Any:
    return other if given is None else given
