"""Every collective of the product. Called inside ``shard_map`` over the mesh's axes.

The mapped functions run without replication tracking (``check_vma=False``): under tracking,
autodiff inserts reductions of its own, one for each parameter, and a second explicit one would
scale gradients by the number of devices, which LARS hides. Here a reduction in backward happens
only where a ``custom_vjp`` of this module says so.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh

from largebatch.parallel.buckets import Bucket
from largebatch.parallel.mesh import AXES

PyTree = Any


def map_over(mesh: Mesh, function: Callable, in_specs: Any, out_specs: Any) -> Callable:
    """``function`` run by every device of the mesh on its own part of the arguments."""
    return jax.shard_map(
        function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
    )


def sum_over_devices(tree: PyTree) -> PyTree:
    """The sum of a tree of arrays over all devices, as one all-reduce."""
    flat, unravel = ravel_pytree(tree)
    return unravel(jax.lax.psum(flat, AXES))


@jax.custom_vjp
def member_sum(x: jax.Array) -> jax.Array:
    """The sum over the devices of a span; its gradient is the sum of theirs, since each uses it."""
    return jax.lax.psum(x, AXES[1])


member_sum.defvjp(
    lambda x: (member_sum(x), None), lambda _, cotangent: (jax.lax.psum(cotangent, AXES[1]),)
)


def reduce_gradients_in_backward(
    params: Mapping[str, jax.Array],
    buckets: Sequence[Bucket],
    accumulated: Sequence[jax.Array] | None,
    wire: str,
) -> dict[str, jax.Array]:
    """The parameters unchanged; their gradients will be sums over all devices.

    Where backward completes the gradients of a bucket, they are joined into one flat array, what
    this device has accumulated from earlier microbatches is added, and one all-reduce sums it.

    Args:
      params: path to array.
      buckets: the plan; covers ``params`` exactly.
      accumulated: for each bucket the flat sum of this device's earlier gradients, or None.
      wire: ``float32`` reduces in the gradients' own type; ``bfloat16`` rounds each device's sum to
        bfloat16 for the wire and widens the result again.
    """
    hooked = {}
    # Autodiff transposes in reverse: what is hooked last is reduced first, as it is complete first.
    for i, bucket in reversed(list(enumerate(buckets))):
        held = None if accumulated is None else accumulated[i]
        arrays = _reduced(wire, tuple(params[path] for path in bucket.paths), held)
        hooked.update(zip(bucket.paths, arrays, strict=True))
    return hooked


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _reduced(
    wire: str, arrays: tuple[jax.Array, ...], held: jax.Array | None
) -> tuple[jax.Array, ...]:
    del wire, held
    return arrays


def _reduced_forward(
    wire: str, arrays: tuple[jax.Array, ...], held: jax.Array | None
) -> tuple[tuple[jax.Array, ...], jax.Array | None]:
    del wire
    return arrays, held


def _reduced_backward(
    wire: str, held: jax.Array | None, gradients: tuple[jax.Array, ...]
) -> tuple[tuple[jax.Array, ...], jax.Array | None]:
    flat = flatten(gradients)
    if held is not None:
        flat = flat + held
    on_wire = flat if wire == "float32" else flat.astype(wire)
    total = jax.lax.psum(on_wire, AXES).astype(flat.dtype)
    return _unflatten(total, gradients), None if held is None else jnp.zeros_like(held)


_reduced.defvjp(_reduced_forward, _reduced_backward)


def flatten(arrays: Sequence[jax.Array]) -> jax.Array:
    """The arrays one after the other, as one vector."""
    return jnp.concatenate([a.ravel() for a in arrays])


def _unflatten(flat: jax.Array, like: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
    parts, start = [], 0
    for array in like:
        parts.append(jax.lax.slice(flat, (start,), (start + array.size,)).reshape(array.shape))
        start += array.size
    return tuple(parts)
