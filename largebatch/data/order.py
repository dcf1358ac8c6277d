"""The example at each sample position: a computed permutation per epoch, or the dataset's order."""

import hashlib
import math
from dataclasses import dataclass

import numpy as np

from largebatch.data.randomness import mix, purpose
from largebatch.errors import ConfigError

# A large domain is well mixed after 6 rounds, a tiny one is not: over 2e5 epochs of 8 examples the
# 40,320 permutations are visibly uneven (chi-square) after 16 rounds.
_ROUNDS, _SMALL_ROUNDS, _SMALL = 8, 24, 10_000


@dataclass(frozen=True)
class Order:
    """The order in which a run consumes its training examples.

    Position p is in epoch p // epoch_samples. By default every epoch holds each example once, and a
    batch may span two epochs. `epoch_samples` ends epochs in other ways.

    Attributes:
        seed: Seed of the run.
        examples: Examples in the training split.
        shuffle: Whether each epoch has its own permutation; otherwise all have the order of the
            dataset, which is that of the classes where images lie in class folders.
        epoch_samples: Samples of an epoch; 0 is `examples`. Fewer leave out the end of each epoch's
            order, more continue with its beginning.

    Raises:
        ConfigError: `examples` is not positive, or `epoch_samples` is negative.
    """

    seed: int
    examples: int
    shuffle: bool = True
    epoch_samples: int = 0

    def __post_init__(self) -> None:
        if self.examples < 1:
            raise ConfigError(f"order: expected at least 1 example, got {self.examples}")
        if self.epoch_samples < 0:
            raise ConfigError(
                f"order: expected epoch_samples of 0 or more, got {self.epoch_samples}"
            )

    def epochs(self, positions: np.ndarray) -> np.ndarray:
        """Return the epoch of each sample position.

        Args:
            positions: int64 array of any shape, not negative.

        Returns:
            int64 array of the same shape.
        """
        return np.asarray(positions, np.int64) // (self.epoch_samples or self.examples)

    def ids(self, positions: np.ndarray) -> np.ndarray:
        """Return the example at each sample position; memory is that of `positions`.

        Args:
            positions: int64 array of any shape, not negative; may span several epochs.

        Returns:
            int64 array of the same shape, in [0, examples).
        """
        positions = np.asarray(positions, np.int64)
        index = positions % (self.epoch_samples or self.examples) % self.examples
        if not self.shuffle:
            return index
        epochs, slots = np.unique(self.epochs(positions), return_inverse=True)
        rounds = _SMALL_ROUNDS if self.examples < _SMALL else _ROUNDS
        keys = mix(purpose("order"), self.seed, np.arange(rounds)[:, None], epochs)
        walk = index.ravel().astype(np.uint64)
        slots = slots.ravel()
        # Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002: a generalised
        # Feistel network on a grid that holds at most a few values too many (their third method),
        # repeated for those that fall on them (their second).
        outside = np.arange(walk.size)
        while outside.size:
            walk[outside] = self._encipher(walk[outside], keys, slots[outside])
            outside = outside[walk[outside] >= self.examples]
        return walk.astype(np.int64).reshape(positions.shape)

    def _encipher(self, values: np.ndarray, keys: np.ndarray, slots: np.ndarray) -> np.ndarray:
        """Apply one pass of a Feistel network on the smallest grid with enough places.

        Args:
            values: uint64 (n,).
            keys: uint64 (rounds, e), for each of e epochs.
            slots: (n,), index of the epoch of each value.

        Returns:
            uint64 (n,), a permutation of the places of the grid for each epoch.
        """
        side = math.isqrt(self.examples - 1) + 1
        side += side % 2  # on an odd grid every permutation would be even
        rows, columns = np.uint64(-(-self.examples // side)), np.uint64(side)
        row, column = values // columns, values % columns
        for number, key in enumerate(keys):
            key = key[slots] if key.size > 1 else key  # one epoch: hash once
            if number % 2:
                column = (column + mix(key, row) % columns) % columns
            else:
                row = (row + mix(key, column) % rows) % rows
        return row * columns + column


def fingerprint(ids: np.ndarray) -> str:
    """Return a short hash of example ids in their order, the same on every platform.

    Args:
        ids: Integer array of any shape.

    Returns:
        16 hexadecimal digits (BLAKE2b over little-endian int64).
    """
    data = np.ascontiguousarray(ids, dtype="<i8").tobytes()
    return hashlib.blake2b(data, digest_size=8).hexdigest()
