"""All-reduces of gradients: ours as the step issues them, what others write, and their clock."""

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from largebatch import parallel
from largebatch.parallel import REPLICATED, SPLIT, Bucket
from largebatch.parallel.mesh import AXES

Gradients = Mapping[str, jax.Array]
"""Path to (devices, …): every device's own."""
Reduce = Callable[[Gradients], Mapping[str, jax.Array]]


def random_gradients(mesh: Mesh, shapes: Mapping[str, tuple[int, ...]]) -> Gradients:
    """Normal numbers, float32, other ones on every device."""
    sizes = [math.prod(shape) for shape in shapes.values()]

    def make() -> dict[str, jax.Array]:
        # One stream, cut up: a stream for each would take long to compile.
        flat = jax.random.normal(jax.random.key(0), (mesh.size, sum(sizes)))
        cut = jnp.split(flat, list(itertools.accumulate(sizes))[:-1], axis=1)
        return {
            path: part.reshape(mesh.size, *shape)
            for part, (path, shape) in zip(cut, shapes.items(), strict=True)
        }

    return jax.jit(make, out_shardings=parallel.split(mesh))()


def ours(
    mesh: Mesh, buckets: Sequence[Bucket], wire: str, options: Mapping[str, str] | None = None
) -> Reduce:
    """The sums over all devices, by the very function that hooks a step's backward pass.

    The loss is linear in the parameters, so its gradient is what is given.
    """

    def reduce(gradients: Gradients) -> dict[str, jax.Array]:
        own = {path: gradient[0] for path, gradient in gradients.items()}

        def linear(params: Mapping[str, jax.Array]) -> jax.Array:
            hooked = parallel.reduce_gradients_in_backward(params, buckets, None, wire)
            return sum(jnp.vdot(hooked[path], own[path]) for path in own)

        return jax.grad(linear)({path: jnp.zeros_like(own[path]) for path in own})

    return _compiled(mesh, reduce, options)


def per_leaf(mesh: Mesh, wire: str) -> Reduce:
    """The means, by `pmean` of the tree of gradients, as the Flax ImageNet example has it."""

    def reduce(gradients: Gradients) -> dict[str, jax.Array]:
        own = {path: gradient[0].astype(wire) for path, gradient in gradients.items()}
        return {
            path: mean.astype(gradients[path].dtype)
            for path, mean in jax.lax.pmean(own, AXES).items()
        }

    return _compiled(mesh, reduce)


def whole_tree(mesh: Mesh, wire: str) -> Reduce:
    """The sums, by one `psum` of all gradients joined."""

    def reduce(gradients: Gradients) -> dict[str, jax.Array]:
        flat, unravel = jax.flatten_util.ravel_pytree({p: g[0] for p, g in gradients.items()})
        return unravel(jax.lax.psum(flat.astype(wire), AXES).astype(flat.dtype))

    return _compiled(mesh, reduce)


def flat_sum(mesh: Mesh) -> Reduce:
    """One array of float32 summed, as the step sums what it reports."""

    def reduce(gradients: Gradients) -> Mapping[str, jax.Array]:
        return parallel.sum_over_devices({path: g[0] for path, g in gradients.items()})

    return _compiled(mesh, reduce)


def _compiled(mesh: Mesh, reduce: Reduce, options: Mapping[str, str] | None = None) -> Reduce:
    mapped = parallel.map_over(mesh, reduce, SPLIT, REPLICATED)
    return jax.jit(mapped, compiler_options=dict(options) if options else None)


def timed(reduce: Reduce, gradients: Gradients, calls: int) -> Callable[[], float]:
    """A repeat: seconds of one of `calls` reductions, one after the other.

    The number of calls is fixed, because all processes must make as many. The first call, which
    compiles, is made here.
    """
    jax.block_until_ready(reduce(gradients))

    def repeat() -> float:
        start = time.perf_counter()
        for _ in range(calls):
            # Waited for each: a device that runs ahead would hide what a call costs.
            jax.block_until_ready(reduce(gradients))
        return (time.perf_counter() - start) / calls

    return repeat
