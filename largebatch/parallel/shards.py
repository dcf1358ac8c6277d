"""Arrays in equal parts, one per device.

Weight-update sharding (Xu et al. 2020, arXiv 2004.13336): a device updates its part of every
parameter and keeps the velocity of that part only.
"""

import math

import jax
import jax.numpy as jnp


def part_size(size: int, devices: int) -> int:
    """Return the elements of a part of an array of ``size`` elements."""
    return -(-size // devices)


def cut(array: jax.Array, devices: int) -> jax.Array:
    """Return (devices, part): consecutive elements, padded with zeros."""
    flat, part = array.ravel(), part_size(array.size, devices)
    missing = devices * part - array.size
    return (jnp.pad(flat, (0, missing)) if missing else flat).reshape(devices, part)


def join(parts: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return the array of ``shape`` from the parts of ``cut``."""
    return jax.lax.slice(parts.ravel(), (0,), (math.prod(shape),)).reshape(shape)
