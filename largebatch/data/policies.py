"""RandAugment and TrivialAugment: random operations on images of 8 bits, computed by Pillow.

Each choice is a function of (seed, epoch, example id). An operation has an argument, which is a
function of the strength s in 0 to 1, and for some operations of a random sign.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from largebatch.data.randomness import mix, purpose, uniform
from largebatch.errors import ConfigError

Kind = Literal["randaugment", "trivialaugment"]
_GREATEST = 10.0  # magnitude of RandAugment at which s = 1
_APPLIED = 0.5  # probability that RandAugment applies a chosen operation
_LINEAR, _CUBIC = Image.Resampling.BILINEAR, Image.Resampling.BICUBIC
_BINS = 31  # strengths of TrivialAugment


class Warp(NamedTuple):
    """How an operation that moves pixels computes new ones."""

    resample: Image.Resampling
    fill: tuple[int, ...]
    """Grey levels outside the image, one for each channel."""

    @property
    def colour(self) -> int | tuple[int, ...]:
        """The grey levels as Pillow takes them."""
        return self.fill if len(self.fill) > 1 else self.fill[0]


Operation = Callable[[Image.Image, float, Warp], Image.Image]


def _affine(image: Image.Image, matrix: tuple[float, ...], warp: Warp) -> Image.Image:
    """Return the image whose pixel (x, y) is that at (a·x + b·y + c, d·x + e·y + f)."""
    return image.transform(
        image.size, Image.Transform.AFFINE, matrix, resample=warp.resample, fillcolor=warp.colour
    )


def _rotate(image: Image.Image, degrees: float, warp: Warp) -> Image.Image:
    return image.rotate(degrees, resample=warp.resample, fillcolor=warp.colour)


def _brighten_dark(image: Image.Image, amount: float, warp: Warp) -> Image.Image:
    """Add to the levels below 128, up to 255."""
    table = [min(255, level + int(amount)) if level < 128 else level for level in range(256)]
    return image.point(table * len(image.getbands()))


def _posterize(image: Image.Image, bits: float, warp: Warp) -> Image.Image:
    """Keep the highest bits of each level, also none of them, which Pillow refuses."""
    kept = 256 - 2 ** (8 - int(bits))
    return image.point([level & kept for level in range(256)] * len(image.getbands()))


OPERATIONS: dict[str, Operation] = {
    "identity": lambda image, _, warp: image,
    "autocontrast": lambda image, _, warp: ImageOps.autocontrast(image),
    "equalize": lambda image, _, warp: ImageOps.equalize(image),
    "invert": lambda image, _, warp: ImageOps.invert(image),
    "posterize": _posterize,
    "solarize": lambda image, level, warp: ImageOps.solarize(image, math.ceil(level)),
    "solarize_add": _brighten_dark,
    "color": lambda image, factor, warp: ImageEnhance.Color(image).enhance(factor),
    "contrast": lambda image, factor, warp: ImageEnhance.Contrast(image).enhance(factor),
    "brightness": lambda image, factor, warp: ImageEnhance.Brightness(image).enhance(factor),
    "sharpness": lambda image, factor, warp: ImageEnhance.Sharpness(image).enhance(factor),
    "rotate": _rotate,
    "shear_x": lambda image, slope, warp: _affine(image, (1, slope, 0, 0, 1, 0), warp),
    "shear_y": lambda image, slope, warp: _affine(image, (1, 0, 0, slope, 1, 0), warp),
    "translate_x": lambda image, pixels, warp: _affine(image, (1, 0, pixels, 0, 1, 0), warp),
    "translate_y": lambda image, pixels, warp: _affine(image, (1, 0, 0, 0, 1, pixels), warp),
}
"""Operations by name, with their argument: bits kept, level, amount, factor (1 changes nothing),
degrees, slope or pixels."""


class Choice(NamedTuple):
    """An operation of a policy."""

    name: str
    argument: Callable[[float, int, int], float]
    """(s, sign, side of the image in pixels) → argument."""


RANDAUGMENT = (
    Choice("autocontrast", lambda s, sign, side: 0.0),
    Choice("equalize", lambda s, sign, side: 0.0),
    Choice("invert", lambda s, sign, side: 0.0),
    Choice("rotate", lambda s, sign, side: sign * 30 * s),
    Choice("posterize", lambda s, sign, side: 4 - int(4 * s)),
    Choice("solarize", lambda s, sign, side: 256 - int(256 * s)),
    Choice("solarize_add", lambda s, sign, side: int(110 * s)),
    Choice("color", lambda s, sign, side: max(0.1, 1 + sign * 0.9 * s)),
    Choice("contrast", lambda s, sign, side: max(0.1, 1 + sign * 0.9 * s)),
    Choice("brightness", lambda s, sign, side: max(0.1, 1 + sign * 0.9 * s)),
    Choice("sharpness", lambda s, sign, side: max(0.1, 1 + sign * 0.9 * s)),
    Choice("shear_x", lambda s, sign, side: sign * 0.3 * s),
    Choice("shear_y", lambda s, sign, side: sign * 0.3 * s),
    Choice("translate_x", lambda s, sign, side: sign * 0.45 * s * side),
    Choice("translate_y", lambda s, sign, side: sign * 0.45 * s * side),
)
"""The operations of timm's ``rand-…-inc1``, all of which grow with s."""

TRIVIALAUGMENT = (
    Choice("identity", lambda s, sign, side: 0.0),
    Choice("shear_x", lambda s, sign, side: sign * 0.99 * s),
    Choice("shear_y", lambda s, sign, side: sign * 0.99 * s),
    Choice("translate_x", lambda s, sign, side: sign * int(32 * s)),
    Choice("translate_y", lambda s, sign, side: sign * int(32 * s)),
    Choice("rotate", lambda s, sign, side: sign * 135 * s),
    Choice("brightness", lambda s, sign, side: 1 + sign * 0.99 * s),
    Choice("color", lambda s, sign, side: 1 + sign * 0.99 * s),
    Choice("contrast", lambda s, sign, side: 1 + sign * 0.99 * s),
    Choice("sharpness", lambda s, sign, side: 1 + sign * 0.99 * s),
    Choice("posterize", lambda s, sign, side: 8 - round(6 * s)),
    Choice("solarize", lambda s, sign, side: 255 * (1 - s)),
    Choice("autocontrast", lambda s, sign, side: 0.0),
    Choice("equalize", lambda s, sign, side: 0.0),
)
"""The operations of ``TrivialAugmentWide`` of torchvision."""


class Step(NamedTuple):
    """An operation chosen for an image."""

    name: str
    argument: float
    resample: Image.Resampling


@dataclass(frozen=True)
class Policy:
    """A random choice of operations for each image.

    - RandAugment (Cubuk et al. 2020, arXiv 1909.13719) as ``rand-mM-nN-mstdD-inc1`` of timm: N
      times one of 15 operations, each applied with probability 1/2, at s = M / 10 plus normal
      noise of deviation D / 10, cut to 0 to 1; pixels from outside have the mean colour, and
      interpolation is bilinear or bicubic at random.
    - TrivialAugment (Müller & Hutter 2021, arXiv 2103.10158) as ``TrivialAugmentWide`` of
      torchvision: one of 14 operations at one of 31 equally spaced s; pixels from outside are
      black, interpolation is bilinear.

    Attributes:
        kind: Which of the two.
        magnitude: M, 0 to 10.
        magnitude_std: D.
        layers: N.
        fill: Grey levels of the mean colour, one for each channel.
    """

    kind: Kind
    magnitude: float = 9.0
    magnitude_std: float = 0.5
    layers: int = 2
    fill: tuple[int, ...] = (124, 116, 104)

    def __call__(
        self, images: np.ndarray, *, seed: int, epochs: np.ndarray, ids: np.ndarray
    ) -> np.ndarray:
        """Apply operations to each image.

        Args:
            images: uint8 (b, H, W, C), C 1 or 3; overwritten.
            seed: Seed of the run.
            epochs: int64 (b,).
            ids: int64 (b,).

        Returns:
            `images`.

        Raises:
            ConfigError: Images have another number of channels.
        """
        channels = images.shape[3]
        if channels not in (1, 3):
            raise ConfigError(
                f"augment.policy={self.kind}: expected images of 1 or 3 channels, got {channels}; "
                "use augment.policy=none"
            )
        black = self.kind == "trivialaugment"
        fill = (0,) * channels if black else self.fill[:channels]
        chosen = self.steps(images.shape[1:3], seed=seed, epochs=epochs, ids=ids)
        for pixels, steps in zip(images, chosen, strict=True):
            if not steps:
                continue
            image = Image.fromarray(pixels if channels == 3 else pixels[..., 0])
            for step in steps:
                warp = Warp(step.resample, fill)
                image = OPERATIONS[step.name](image, step.argument, warp)
            pixels[...] = np.asarray(image).reshape(pixels.shape)
        return images

    def steps(
        self, shape: tuple[int, int], *, seed: int, epochs: np.ndarray, ids: np.ndarray
    ) -> Iterator[list[Step]]:
        """Yield the operations of each image, a function of (seed, epoch, id).

        Args:
            shape: Height and width.
            seed: Seed of the run.
            epochs: int64 (b,).
            ids: int64 (b,).
        """
        choices = RANDAUGMENT if self.kind == "randaugment" else TRIVIALAUGMENT
        layers = np.arange(self.layers if self.kind == "randaugment" else 1)[:, None]
        keys = seed, layers, epochs, ids
        number = (mix(purpose("policy.operation"), *keys) % np.uint64(len(choices))).astype(int)
        bits = mix(purpose("policy.bits"), *keys)
        signs = 1 - 2 * (bits & np.uint64(1)).astype(int)
        if self.kind == "trivialaugment":
            strengths = (mix(purpose("policy.bin"), *keys) % np.uint64(_BINS)) / (_BINS - 1)
            applied, cubic = np.ones(number.shape, bool), np.zeros(number.shape, bool)
        else:
            strengths = np.full(number.shape, self.magnitude)
            if self.magnitude_std:
                from scipy.special import ndtri  # only some runs need it

                noise = ndtri(uniform(purpose("policy.magnitude"), *keys))
                strengths = strengths + self.magnitude_std * noise
            strengths = np.clip(strengths / _GREATEST, 0, 1)
            applied = uniform(purpose("policy.applied"), *keys) < _APPLIED
            cubic = (bits & np.uint64(2)) > 0
        height, width = shape
        for row in range(len(ids)):
            steps = []
            for layer in np.flatnonzero(applied[:, row]):
                name, argument = choices[number[layer, row]]
                side = width if name == "translate_x" else height
                value = argument(float(strengths[layer, row]), int(signs[layer, row]), side)
                resample = _CUBIC if cubic[layer, row] else _LINEAR
                steps.append(Step(name, value, resample))
            yield steps
