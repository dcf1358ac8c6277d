"""Random numbers as functions of their keys.

There is no state: hosts, batch size and the order of calls do not matter. Every random choice in
the input is `mix` or `uniform` of (purpose, seed, epoch, example index). The choice of a validation
split is a function of the file names.
"""

import functools
import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_INCREMENT = np.uint64(0x9E3779B97F4A7C15)
_WORD = (1 << 64) - 1


def _word(key: npt.ArrayLike) -> np.ndarray:
    """Return the key as uint64; negative integers wrap as in two's complement."""
    if isinstance(key, int):
        return np.asarray(key & _WORD, np.uint64)
    array = np.asarray(key)
    if array.dtype.kind not in "iu":
        raise TypeError(f"keys are integers, not {array.dtype}")
    return array.astype(np.uint64)


def mix(*keys: npt.ArrayLike) -> np.ndarray:
    """Hash integers to 64 uniform bits; the order of the keys matters.

    Each key in turn is xored into a state that then takes one step of splitmix64 (Steele, Lea and
    Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014, with the constants of
    Vigna's splitmix64.c). Scalars first are hashed once, not once per element.

    Args:
        *keys: Integers or integer arrays whose shapes broadcast.

    Returns:
        uint64 array of the broadcast shape.

    Raises:
        TypeError: A key is not an integer.
    """
    state = np.uint64(0)
    with np.errstate(over="ignore"):  # arithmetic modulo 2**64
        for key in keys:
            state = (state ^ _word(key)) + _INCREMENT
            state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            state = state ^ (state >> np.uint64(31))
    return np.asarray(state)


def uniform(*keys: npt.ArrayLike) -> np.ndarray:
    """Return uniform numbers in [0, 1) on the grid of 2**-53.

    Args:
        *keys: As for `mix`.

    Returns:
        float64 array of the broadcast shape.
    """
    return (mix(*keys) >> np.uint64(11)) * 2.0**-53


def halves(bits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return two independent uniform numbers in [0, 1), on the grid of 2**-32, from each hash.

    Args:
        bits: uint64 array, as `mix` returns it.

    Returns:
        Two float64 arrays of the same shape.
    """
    return (bits >> np.uint64(32)) * 2.0**-32, (bits & np.uint64(0xFFFFFFFF)) * 2.0**-32


@functools.cache
def purpose(name: str) -> int:
    """Return the key that makes one kind of choice independent of all others.

    Args:
        name: The kind of choice, e.g. `"augment.flip"`.

    Returns:
        An integer in [0, 2**64).
    """
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def held_out(paths: Sequence[str], share: float) -> set[str]:
    """Return the images of a class that are its validation split, a function of the names alone.

    They are the first ones in the order of the MD5 of their paths, so that an added image changes
    the split of few others.

    Args:
        paths: At least two, `train/CLASS/FILE` or `CLASS/FILE`, with `/` on all systems.
        share: Above 0 and below 1; of at least one image, and not of all.
    """

    def place(path: str) -> bytes:
        return hashlib.md5(path.encode("utf-8", "surrogateescape"), usedforsecurity=False).digest()

    return set(sorted(paths, key=place)[: min(len(paths) - 1, max(1, round(share * len(paths))))])
