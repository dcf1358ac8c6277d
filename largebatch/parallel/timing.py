"""Timing of all-reduces alone."""

import itertools
import math
import time
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from largebatch.parallel.collectives import map_over, sum_over_devices
from largebatch.parallel.mesh import REPLICATED, SPLIT, split

Gradients = Mapping[str, jax.Array]
"""Path to (devices, …): every device's own."""
Reduce = Callable[[Gradients], Mapping[str, jax.Array]]


def random_gradients(mesh: Mesh, shapes: Mapping[str, tuple[int, ...]]) -> Gradients:
    """Return normal float32 numbers that differ between devices."""
    sizes = [math.prod(shape) for shape in shapes.values()]

    def make() -> dict[str, jax.Array]:
        # One random stream for all arrays: one for each would take long to compile.
        flat = jax.random.normal(jax.random.key(0), (mesh.size, sum(sizes)))
        cut = jnp.split(flat, list(itertools.accumulate(sizes))[:-1], axis=1)
        return {
            path: part.reshape(mesh.size, *shape)
            for part, (path, shape) in zip(cut, shapes.items(), strict=True)
        }

    return jax.jit(make, out_shardings=split(mesh))()


def flat_sum(mesh: Mesh) -> Reduce:
    """Return the sum of one float32 array, as a step sums its metrics."""

    def reduce(gradients: Gradients) -> Mapping[str, jax.Array]:
        return sum_over_devices({path: g[0] for path, g in gradients.items()})

    return compiled(mesh, reduce)


def compiled(mesh: Mesh, reduce: Reduce, options: Mapping[str, str] | None = None) -> Reduce:
    """Compile a reduction of every device's gradients.

    Args:
      mesh: all devices.
      reduce: called by each with (1, …).
      options: of XLA.
    """
    mapped = map_over(mesh, reduce, SPLIT, REPLICATED)
    return jax.jit(mapped, compiler_options=dict(options) if options else None)


def timed(reduce: Reduce, gradients: Gradients, calls: int) -> Callable[[], float]:
    """Return a function that measures the seconds of one of `calls` consecutive reductions.

    The number of calls is fixed, because all processes must make as many. The first call, which
    compiles, is made here.
    """
    jax.block_until_ready(reduce(gradients))

    def repeat() -> float:
        start = time.perf_counter()
        for _ in range(calls):
            # Wait for each call: a device that runs ahead would hide its cost.
            jax.block_until_ready(reduce(gradients))
        return (time.perf_counter() - start) / calls

    return repeat
