"""Every collective of the package, for calls inside ``shard_map`` over the mesh's axes.

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
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh

from largebatch.config.registries import WIRE_FORMATS
from largebatch.parallel.buckets import Bucket
from largebatch.parallel.mesh import AXES, cut_parts, join_parts, part_size

PyTree = Any


def map_over(mesh: Mesh, function: Callable, in_specs: Any, out_specs: Any) -> Callable:
    """Map ``function`` over the devices of the mesh, each with its own part of the arguments."""
    return jax.shard_map(
        function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
    )


def sum_over_devices(tree: PyTree) -> PyTree:
    """Sum a tree of arrays over all devices, as one all-reduce."""
    flat, unravel = ravel_pytree(tree)
    return unravel(jax.lax.psum(flat, AXES))


@jax.custom_vjp
def member_sum(x: jax.Array) -> jax.Array:
    """Sum over the devices of a span; the gradient is the sum of theirs, since each uses it."""
    return jax.lax.psum(x, AXES[1])


member_sum.defvjp(
    lambda x: (member_sum(x), None), lambda _, cotangent: (jax.lax.psum(cotangent, AXES[1]),)
)


def reduce_gradients_in_backward(
    params: Mapping[str, jax.Array],
    buckets: Sequence[Bucket],
    accumulated: Sequence[jax.Array] | None,
    wire: str,
    square: jax.Array | None = None,
    *,
    in_turn: bool = False,
) -> dict[str, jax.Array]:
    """Return the parameters unchanged; their gradients will be sums over all devices.

    When backward has completed the gradients of a bucket, they are joined into one flat array, this
    device's sum of earlier microbatches is added, and one all-reduce sums it.

    Args:
      params: path to array.
      buckets: the plan; covers ``params`` exactly.
      accumulated: for each bucket the flat sum of this device's earlier gradients, or None.
      wire: of `WIRE_FORMATS`: ``float32`` reduces in the gradients' own type; ``bfloat16`` rounds
        each device's sum to bfloat16 for the wire and widens the result again.
      square: a scalar zero, whose gradient will be the squared norm of this device's own
        gradients, without ``accumulated``. None: not computed.
      in_turn: make each all-reduce depend on the one before, so that a compiler cannot begin with
        the last. The sums are the same.
    """
    hooked = {}
    turn = jnp.zeros(()) if in_turn else None
    # Autodiff transposes in reverse: the bucket that is complete first is hooked last.
    for i, bucket in reversed(list(enumerate(buckets))):
        held = None if accumulated is None else accumulated[i]
        arrays = tuple(params[path] for path in bucket.paths)
        arrays, turn, square = _reduced(wire, arrays, held, turn, square)
        hooked.update(zip(bucket.paths, arrays, strict=True))
    return hooked


_Reduced = tuple[tuple[jax.Array, ...], jax.Array | None, jax.Array | None]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _reduced(
    wire: str,
    arrays: tuple[jax.Array, ...],
    held: jax.Array | None,
    turn: jax.Array | None,
    square: jax.Array | None,
) -> _Reduced:
    del wire, held
    return arrays, turn, square


def _reduced_forward(
    wire: str,
    arrays: tuple[jax.Array, ...],
    held: jax.Array | None,
    turn: jax.Array | None,
    square: jax.Array | None,
) -> tuple[_Reduced, jax.Array | None]:
    del wire
    return (arrays, turn, square), held


def _reduced_backward(
    wire: str, held: jax.Array | None, cotangents: _Reduced
) -> tuple[tuple[jax.Array, ...], jax.Array | None, jax.Array | None, jax.Array | None]:
    gradients, turn, square = cotangents
    flat = flatten(gradients)
    if square is not None:
        square = square + jnp.sum(jnp.square(flat))
    if held is not None:
        flat = flat + held
    sent = _on_wire(flat, wire)
    if turn is not None:
        # Zero, but no compiler may assume so. A TPU's drops an optimization_barrier too early.
        sent = sent.at[0].add(jnp.minimum(jnp.abs(turn), 0).astype(sent.dtype))
    total = jax.lax.psum(sent, AXES).astype(flat.dtype)
    following = None if turn is None else total[0].astype(turn.dtype)
    no_gradient = None if held is None else jnp.zeros_like(held)
    return _unflatten(total, gradients), no_gradient, following, square


_reduced.defvjp(_reduced_forward, _reduced_backward)


def scatter_gradients_in_backward(
    params: Mapping[str, jax.Array],
    sinks: Mapping[str, jax.Array],
    buckets: Sequence[Bucket],
    accumulated: Sequence[jax.Array] | None,
    wire: str,
    square: jax.Array | None = None,
) -> dict[str, jax.Array]:
    """Like ``reduce_gradients_in_backward``, but each device gets the sums of its own parts only.

    Every array is cut into one part per device (``cut_parts``), and one reduce-scatter per bucket
    sums them. The gradients of ``params`` are then zero.

    Args:
      params: path to array.
      sinks: path to zeros (1, part), whose gradients will be the sums of this device's parts.
      buckets: the plan; covers ``params`` exactly.
      accumulated: as there.
      wire: as there.
      square: as there.
    """
    hooked = {}
    for i, bucket in reversed(list(enumerate(buckets))):
        held = None if accumulated is None else accumulated[i]
        arrays, parts = (tuple(tree[path] for path in bucket.paths) for tree in (params, sinks))
        arrays, square = _scattered(wire, arrays, parts, held, square)
        hooked.update(zip(bucket.paths, arrays, strict=True))
    return hooked


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _scattered(
    wire: str,
    arrays: tuple[jax.Array, ...],
    sinks: tuple[jax.Array, ...],
    held: jax.Array | None,
    square: jax.Array | None,
) -> tuple[tuple[jax.Array, ...], jax.Array | None]:
    del wire, sinks, held
    return arrays, square


def _scattered_forward(
    wire: str,
    arrays: tuple[jax.Array, ...],
    sinks: tuple[jax.Array, ...],
    held: jax.Array | None,
    square: jax.Array | None,
) -> tuple[tuple[tuple[jax.Array, ...], jax.Array | None], jax.Array | None]:
    del wire, sinks
    return (arrays, square), held


def _scattered_backward(
    wire: str,
    held: jax.Array | None,
    cotangents: tuple[tuple[jax.Array, ...], jax.Array | None],
) -> tuple[tuple[jax.Array, ...], tuple[jax.Array, ...], jax.Array | None, jax.Array | None]:
    gradients, square = cotangents
    zeros = tuple(jnp.zeros_like(g) for g in gradients)
    flat = flatten(gradients)
    if square is not None:
        square = square + jnp.sum(jnp.square(flat))
    if held is not None:
        gradients = _unflatten(flat + held, gradients)
    parts = jnp.concatenate([cut_parts(g, _devices()) for g in gradients], axis=1)
    on_wire = _on_wire(parts, wire)
    own = jax.lax.psum_scatter(on_wire, AXES, scatter_dimension=0, tiled=True).astype(parts.dtype)
    no_gradient = None if held is None else jnp.zeros_like(held)
    return zeros, _columns(own, gradients), no_gradient, square


_scattered.defvjp(_scattered_forward, _scattered_backward)


def own_parts(tree: PyTree) -> PyTree:
    """Return the part (1, part) of each replicated array that this device updates."""
    devices, index = _devices(), jax.lax.axis_index(AXES)
    return jax.tree.map(
        lambda x: jax.lax.dynamic_slice_in_dim(cut_parts(x, devices), index, 1), tree
    )


def gather_parts(parts: PyTree, like: PyTree) -> PyTree:
    """Gather whole arrays from the parts of all devices.

    One all-gather for each array, which the compiler merges into a few. So the arrays arrive in
    place, while one joined array would have to be split again.

    Args:
      parts: of this device, (1, part) each.
      like: arrays of the shapes to restore.
    """

    def gathered(part: jax.Array, whole: jax.Array) -> jax.Array:
        return join_parts(jax.lax.all_gather(part, AXES, axis=0, tiled=True), whole.shape)

    return jax.tree.map(gathered, parts, like)


def _on_wire(gradients: jax.Array, wire: str) -> jax.Array:
    """Return gradients in a format of `WIRE_FORMATS`."""
    dtype = WIRE_FORMATS[wire].dtype
    return gradients.astype(dtype) if dtype else gradients


def _devices() -> int:
    return jax.lax.psum(1, AXES)


def _columns(rows: jax.Array, like: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
    """Split (rows, parts of all arrays) into the parts of each."""
    ends = np.cumsum([part_size(x.size, _devices()) for x in like])[:-1]
    return tuple(jnp.split(rows, ends, axis=1))


def flatten(arrays: Sequence[jax.Array]) -> jax.Array:
    """Concatenate the arrays into one vector."""
    return jnp.concatenate([a.ravel() for a in arrays])


def _unflatten(flat: jax.Array, like: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
    parts, start = [], 0
    for array in like:
        parts.append(jax.lax.slice(flat, (start,), (start + array.size,)).reshape(array.shape))
        start += array.size
    return tuple(parts)
