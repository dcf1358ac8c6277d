"""All-reduces of gradients: ours as the step issues them, what others write, and their clock."""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from largebatch import parallel
from largebatch.parallel import Bucket
from largebatch.parallel.mesh import AXES
from largebatch.parallel.timing import (
    Gradients,
    Reduce,
    compiled,
    flat_sum,
    random_gradients,
    timed,
)

__all__ = ["Gradients", "flat_sum", "ours", "per_leaf", "random_gradients", "timed", "whole_tree"]


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

    return compiled(mesh, reduce, options)


def per_leaf(mesh: Mesh, wire: str) -> Reduce:
    """The means, by `pmean` of the tree of gradients, as the Flax ImageNet example has it."""

    def reduce(gradients: Gradients) -> dict[str, jax.Array]:
        own = {path: gradient[0].astype(wire) for path, gradient in gradients.items()}
        return {
            path: mean.astype(gradients[path].dtype)
            for path, mean in jax.lax.pmean(own, AXES).items()
        }

    return compiled(mesh, reduce)


def whole_tree(mesh: Mesh, wire: str) -> Reduce:
    """The sums, by one `psum` of all gradients joined."""

    def reduce(gradients: Gradients) -> dict[str, jax.Array]:
        flat, unravel = jax.flatten_util.ravel_pytree({p: g[0] for p, g in gradients.items()})
        return unravel(jax.lax.psum(flat.astype(wire), AXES).astype(flat.dtype))

    return compiled(mesh, reduce)
