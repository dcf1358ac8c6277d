"""`synthetic`: learnable images of any size and number, computed from hashes when read."""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from largebatch.data.randomness import mix, purpose, uniform
from largebatch.data.source import Source, SourceOptions
from largebatch.errors import DataError

_WAVES = 3  # highest frequency of a prototype, in periods per image
_PEAK = 63  # of one profile; two profiles and the noise stay below 256, so uint8 never wraps
_NOISE_PEAK = 127
_OFFSETS = 1 << 21  # windows of the noise bank for each split


class Synthetic(Source):
    """A split of random images with learnable labels, which stores nothing per example.

    The label of an example and its window of a fixed bank of noise are hashes of (split, id). The
    image is the noise plus its class's prototype f(y) + g(x, channel), profiles of at most three
    periods per image. The splits take alternate offsets in the bank: no noise window is in both.

    Attributes:
        name, classes, image_shape, mean, std: As for `Source`. `mean` and `std` are those of the
            distribution of the images.
    """

    name = "synthetic"

    def __init__(self, split: str, *, image_size: int, examples: int, classes: int) -> None:
        self.image_shape = (image_size, image_size, 3)
        self.classes = tuple(f"class {c}" for c in range(classes))
        self._split = split
        self._examples = examples
        self._rows = _profiles("synthetic.rows", classes, 1, image_size)[:, :, 0]
        columns = _profiles("synthetic.columns", classes, 3, image_size)
        self._columns = columns.reshape(classes, -1)
        bank = _noise(image_size * image_size * 3 + 2 * _OFFSETS)
        windows = sliding_window_view(bank, image_size * image_size * 3)
        self._windows = windows[int(split == "validation") :: 2][:_OFFSETS]
        self.mean, self.std = _moments(self._rows, columns, bank)

    def __len__(self) -> int:
        return self._examples

    def read(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        ids = np.asarray(ids, np.int64)
        split = purpose(self._split)
        labels = mix(purpose("synthetic.label"), split, ids) % np.uint64(len(self.classes))
        labels = labels.astype(np.int32)
        offsets = mix(purpose("synthetic.noise"), split, ids) % np.uint64(_OFFSETS)
        height, width, channels = self.image_shape
        # (b, H, W·C): the last axis is long and contiguous, which the additions need to be fast.
        images = self._windows[offsets.astype(np.int64)].reshape(len(ids), height, width * channels)
        images += self._columns[labels][:, None, :]
        images += self._rows[labels][:, :, None]
        return images.reshape(len(ids), *self.image_shape), labels

    def describe(self) -> str:
        shape = "×".join(map(str, self.image_shape))
        return (
            f"synthetic: {len(self):,} {self._split} images of {shape}, "
            f"{len(self.classes):,} classes (made from hashes)"
        )


def _profiles(name: str, classes: int, channels: int, length: int) -> np.ndarray:
    """Return smooth random profiles, each scaled to 0.._PEAK.

    Returns:
        uint8 (classes, length, channels).
    """
    label = np.arange(classes)[:, None, None]
    channel = np.arange(channels)[:, None]
    wave = np.arange(1, _WAVES + 1)
    amplitude = uniform(purpose(name), 0, label, channel, wave)[:, None]
    phase = uniform(purpose(name), 1, label, channel, wave)[:, None]
    place = np.arange(length)[:, None, None] / length
    curve = (amplitude * np.cos(2 * np.pi * (wave * place + phase))).sum(-1)
    low, high = curve.min(1, keepdims=True), curve.max(1, keepdims=True)
    # A profile of one pixel is flat: it has no range to scale by.
    return np.rint((curve - low) / np.where(high > low, high - low, 1) * _PEAK).astype(np.uint8)


def _noise(length: int) -> np.ndarray:
    """Return the noise bank: uint8 (length,), uniform in 0.._NOISE_PEAK."""
    words = mix(purpose("synthetic.bank"), np.arange(-(-length // 8)))
    return words.astype("<u8").view(np.uint8)[:length] & np.uint8(_NOISE_PEAK)


def _moments(
    rows: np.ndarray, columns: np.ndarray, bank: np.ndarray
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel, over classes, pixels and noise.

    Args:
        rows: uint8 (classes, H).
        columns: uint8 (classes, W, C).
        bank: uint8 (n,).

    Returns:
        mean, std: C numbers each, in 0..255.
    """
    rows = rows[:, :, None].astype(np.float64)
    centres = rows.mean(1) + columns.mean(1)
    # Within a class x and y vary independently, so their variances add.
    within = (rows.var(1) + columns.var(1)).mean(0)
    mean = centres.mean(0) + bank.mean()
    variance = within + centres.var(0) + bank.var()
    return tuple(mean.tolist()), tuple(np.sqrt(variance).tolist())


def open_synthetic(spec: str, split: str, options: SourceOptions) -> Synthetic:
    """Open `synthetic`.

    Args:
        spec: `synthetic`.
        split: `train` or `validation`.
        options: `image_size` (0 is 32), `examples` (0 is 50,000 for training; validation has a
            fifth of them, at least 1) and `classes` (0 is 10).

    Returns:
        The split.

    Raises:
        DataError: The specification has a colon.
    """
    if spec != "synthetic":
        raise DataError(f"data.source: {spec!r} has a part after the colon; write 'synthetic'")
    examples = options.examples or 50_000
    return Synthetic(
        split,
        image_size=options.image_size or 32,
        examples=examples if split == "train" else max(1, examples // 5),
        classes=options.classes or 10,
    )
