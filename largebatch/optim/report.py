"""Norms and trust ratios of each parameter in an update."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from largebatch.optim.norms import Norms

PyTree = Any


class LayerReport(NamedTuple):
    """Norms and trust ratios of an update; vectors (parameters,) in `jax.tree.leaves` order.

    The dtype is float32, or float64 if a parameter is float64. Before the first update, ratios are
    1 and norms are 0.
    """

    trust_ratio: jax.Array
    """The applied ratio: 1 for parameters without a trust ratio; 0 or 1 at a norm of 0, depending
    on the rule."""
    weight_norm: jax.Array
    """‖w‖ before the update."""
    gradient_norm: jax.Array
    """‖g‖, without weight decay."""


def empty_report(params: PyTree) -> LayerReport:
    """Return the report before the first update."""
    leaves = jax.tree.leaves(params)
    # The dtype follows the parameters, so that updates do not change the dtypes of a state.
    dtype = jnp.result_type(jnp.float32, *leaves)
    ratios, *norms = (jnp.full(len(leaves), value, dtype) for value in (1, 0, 0))
    return LayerReport(ratios, *norms)


def measure(grads: PyTree, params: PyTree, norms: Norms) -> LayerReport:
    """Return the report of an update, with trust ratios of 1.

    Args:
        grads: Gradients, before weight decay.
        params: Weights before the update.
        norms: A function from `norms_in`.
    """
    empty = empty_report(params)
    found = norms(jax.tree.leaves(params), jax.tree.leaves(grads))
    return LayerReport(empty.trust_ratio, *found.astype(empty.weight_norm.dtype))


def global_norm(report: LayerReport) -> jax.Array:
    """Return the L2 norm of the whole gradient, a scalar."""
    return jnp.sqrt(jnp.sum(jnp.square(report.gradient_norm)))


def by_path(report: LayerReport, paths: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return {path of a parameter: {field of the report: value}}, on the host.

    Args:
        report: Report of an update.
        paths: Paths of its parameters, in the order of the report (`path_names`).
    """
    rows = zip(*(column.tolist() for column in jax.device_get(report)), strict=True)
    return {
        path: dict(zip(report._fields, row, strict=True))
        for path, row in zip(paths, rows, strict=True)
    }
