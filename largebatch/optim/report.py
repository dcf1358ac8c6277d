"""What an update rule saw of each parameter."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from largebatch.optim.norms import Norms
from largebatch.optim.parameters import path_names

PyTree = Any


class LayerReport(NamedTuple):
    """Of the last update; vectors (parameters,), in the order of `jax.tree.leaves`.

    They are float32, or float64 where a parameter is. Before the first update the ratios are 1 and
    the norms 0.
    """

    trust_ratio: jax.Array
    """The factor applied: 1 for parameters without a trust ratio; where a norm was 0 what the rule
    has there, 1 or 0."""
    weight_norm: jax.Array
    """‖w‖ before the update."""
    gradient_norm: jax.Array
    """‖g‖, without weight decay."""


def empty_report(params: PyTree) -> LayerReport:
    """The report before the first update."""
    leaves = jax.tree.leaves(params)
    # Of the parameters' type, so that a state keeps its types from step to step.
    dtype = jnp.result_type(jnp.float32, *leaves)
    ratios, *norms = (jnp.full(len(leaves), value, dtype) for value in (1, 0, 0))
    return LayerReport(ratios, *norms)


def measure(grads: PyTree, params: PyTree, norms: Norms) -> LayerReport:
    """The report of an update without trust ratios.

    Args:
        grads: Gradients, before weight decay.
        params: The weights they were taken at.
        norms: Computes norms.
    """
    empty = empty_report(params)
    found = norms(jax.tree.leaves(params), jax.tree.leaves(grads))
    return LayerReport(empty.trust_ratio, *found.astype(empty.weight_norm.dtype))


def global_norm(report: LayerReport) -> jax.Array:
    """L2 norm of the gradient over all parameters together, a scalar."""
    return jnp.sqrt(jnp.sum(jnp.square(report.gradient_norm)))


def by_path(report: LayerReport, params: PyTree) -> dict[str, Mapping[str, float]]:
    """{path of a parameter: {name of a quantity: its value}}, on the host.

    Args:
        report: Of an update of these parameters.
        params: Nested dicts; the leaves are not looked at.
    """
    columns = {name: values.tolist() for name, values in jax.device_get(report)._asdict().items()}
    return {
        path: {name: column[i] for name, column in columns.items()}
        for i, path in enumerate(jax.tree.leaves(path_names(params)))
    }
