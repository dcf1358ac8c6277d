"""What an update rule saw of each parameter, and norms."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

PyTree = Any


class LayerReport(NamedTuple):
    """Of the last update; trees like the parameters, of scalars.

    The scalars are float32, or float64 for float64 parameters. Before the first update the ratios
    are 1 and the norms 0.
    """

    trust_ratio: PyTree
    """The factor applied: 1 where a norm was 0, and for parameters without a trust ratio."""
    weight_norm: PyTree
    """‖w‖ before the update."""
    gradient_norm: PyTree
    """‖g‖, without weight decay."""


def at_least_float32(x: jax.Array) -> jax.Array:
    """`x`, or its float32 copy if it has fewer bits: a square overflows float16 from 256 on."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def l2_norm(x: jax.Array) -> jax.Array:
    """√Σx² over all elements, a scalar computed in at least float32."""
    return jnp.sqrt(jnp.sum(jnp.square(at_least_float32(x))))


def empty_report(params: PyTree) -> LayerReport:
    """The report before the first update."""

    def scalars(value: float) -> PyTree:
        return jax.tree.map(lambda w: _scalar(value, w), params)

    return LayerReport(trust_ratio=scalars(1), weight_norm=scalars(0), gradient_norm=scalars(0))


def measure(grads: PyTree, params: PyTree) -> LayerReport:
    """The report of an update without trust ratios.

    Args:
        grads: Gradients, before weight decay.
        params: The weights they were taken at.
    """

    def norms(tree: PyTree) -> PyTree:
        # The scalar's dtype is the parameter's, so that a state keeps its types from step to step.
        return jax.tree.map(lambda w, x: l2_norm(x).astype(_scalar(0, w).dtype), params, tree)

    return empty_report(params)._replace(weight_norm=norms(params), gradient_norm=norms(grads))


def global_norm(report: LayerReport) -> jax.Array:
    """L2 norm of the gradient over all parameters together, a scalar."""
    return jnp.sqrt(sum(jnp.square(norm) for norm in jax.tree.leaves(report.gradient_norm)))


def _scalar(value: float, like: jax.Array) -> jax.Array:
    return jnp.full((), value, jnp.promote_types(like.dtype, jnp.float32))
