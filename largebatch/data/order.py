"""Which example stands at which sample position: a permutation per epoch, computed, not stored."""

import hashlib
from dataclasses import dataclass

import numpy as np

from largebatch.data.randomness import mix, purpose
from largebatch.errors import ConfigError

# A large domain is well mixed after 6 rounds, a tiny one is not: over 2e5 epochs of 8 examples the
# 40,320 permutations are visibly uneven (chi-square) after 16 rounds.
_ROUNDS = 24


@dataclass(frozen=True)
class Order:
    """The order in which a run consumes its training examples.

    Position p lies in epoch p // examples, and every epoch holds each example once. Samples run on
    from one epoch into the next; a batch that straddles the boundary is an ordinary batch.

    Attributes:
        seed: Seed of the run.
        examples: Examples in the training split.
        shuffle: Whether each epoch has a permutation of its own; otherwise index order.

    Raises:
        ConfigError: `examples` is not positive.
    """

    seed: int
    examples: int
    shuffle: bool = True

    def __post_init__(self) -> None:
        if self.examples < 1:
            raise ConfigError(f"order: examples is {self.examples}; give at least 1")

    def epochs(self, positions: np.ndarray) -> np.ndarray:
        """The epoch of each sample position.

        Args:
            positions: int64 array of any shape, not negative.

        Returns:
            int64 array of the same shape.
        """
        return np.asarray(positions, np.int64) // self.examples

    def ids(self, positions: np.ndarray) -> np.ndarray:
        """The example at each sample position; memory is that of `positions`.

        Args:
            positions: int64 array of any shape, not negative; may span several epochs.

        Returns:
            int64 array of the same shape, in [0, examples).
        """
        positions = np.asarray(positions, np.int64)
        index = positions % self.examples
        if not self.shuffle:
            return index
        epochs, slots = np.unique(self.epochs(positions), return_inverse=True)
        keys = mix(purpose("order"), self.seed, np.arange(_ROUNDS)[:, None], epochs)
        walk = index.ravel().astype(np.uint64)
        slots = slots.ravel()
        # The cycle-walking cipher of Black and Rogaway, "Ciphers with arbitrary finite domains",
        # CT-RSA 2002: the enclosing power of two is less than twice too large, so a few passes do.
        outside = np.arange(walk.size)
        while outside.size:
            walk[outside] = self._encipher(walk[outside], keys, slots[outside])
            outside = outside[walk[outside] >= self.examples]
        return walk.astype(np.int64).reshape(positions.shape)

    def _encipher(self, values: np.ndarray, keys: np.ndarray, slots: np.ndarray) -> np.ndarray:
        """One pass of a Feistel network on [0, 2**bits).

        Args:
            values: uint64 (n,).
            keys: uint64 (rounds, e), for each of e epochs.
            slots: (n,), which epoch each value is of.

        Returns:
            uint64 (n,), a permutation of [0, 2**bits) for each epoch.
        """
        bits = (self.examples - 1).bit_length()
        low = bits // 2
        low_mask = np.uint64((1 << low) - 1)
        high_mask = np.uint64((1 << (bits - low)) - 1)
        left, right = values >> np.uint64(low), values & low_mask
        for turn, key in enumerate(keys):
            key = key[slots] if key.size > 1 else key  # one epoch: hashed once, not once a value
            if turn % 2:
                right = right ^ (mix(key, left) & low_mask)
            else:
                left = left ^ (mix(key, right) & high_mask)
        return (left << np.uint64(low)) | right


def fingerprint(ids: np.ndarray) -> str:
    """A short hash of example ids in their order, the same on every platform.

    Args:
        ids: Integer array; its shape does not matter.

    Returns:
        16 hexadecimal digits (BLAKE2b over little-endian int64).
    """
    data = np.ascontiguousarray(ids, dtype="<i8").tobytes()
    return hashlib.blake2b(data, digest_size=8).hexdigest()
