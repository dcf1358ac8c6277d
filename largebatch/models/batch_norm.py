"""BatchNorm whose statistics are shared by a span of workers.

After Ioffe & Szegedy 2015 (arXiv 1502.03167). The images of a call are the workers' images one
after the other. They are split into ``spans`` equal parts, each normalised with its own
statistics; where a span lies on several devices, a function given by the caller sums over them. So
one module serves per-worker statistics (the record), groups of workers (Ying et al. 2018, arXiv
1811.06992) and the whole batch.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx


@dataclasses.dataclass(frozen=True)
class BatchMode:
    """How a training-mode call forms batch statistics."""

    spans: int
    """Parts of the images on this device that have statistics of their own."""
    members: int = 1
    """Devices that share each span."""
    member_sum: Callable[[jax.Array], jax.Array] | None = None
    """Differentiable sum over those devices; needed where ``members`` > 1."""
    unbiased: bool = True
    """Whether the variances returned for the running statistics are N/(N-1) corrected."""


class BatchNorm(nnx.Module):
    """Normalise over all axes but the last, then scale and shift.

    ``mean`` and ``var`` hold the running statistics, which evaluation uses. A training-mode call
    does not read them: it leaves there the statistics of its batch, shape (spans, features), for
    the caller to average. All statistics are at least float32; the output has the input's dtype.
    """

    def __init__(self, features: int, *, epsilon: float, zero_init: bool = False) -> None:
        self.epsilon = epsilon
        self.scale = nnx.Param(jnp.zeros(features) if zero_init else jnp.ones(features))
        self.bias = nnx.Param(jnp.zeros(features))
        self.mean = nnx.BatchStat(jnp.zeros(features))
        self.var = nnx.BatchStat(jnp.ones(features))

    def __call__(self, x: jax.Array, mode: BatchMode | None) -> jax.Array:
        """Normalise ``x`` (images, height, width, features); ``mode`` None evaluates."""
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        if mode is None:
            mean, var = self.mean[...], self.var[...]
            return self._transform(wide, mean, var).astype(x.dtype)
        parts = wide.reshape(mode.spans, -1, *x.shape[1:])
        mean, var = _moments(parts, mode)
        normal = self._transform(parts, mean[:, None, None, None], var[:, None, None, None])
        count = mode.members * parts[0, ..., 0].size
        self.mean.set_value(mean)
        self.var.set_value(var * (count / max(count - 1, 1)) if mode.unbiased else var)
        return normal.reshape(x.shape).astype(x.dtype)

    def _transform(self, x: jax.Array, mean: jax.Array, var: jax.Array) -> jax.Array:
        gain = jax.lax.rsqrt(var + self.epsilon) * self.scale[...]
        return (x - mean) * gain + self.bias[...]


def _moments(parts: jax.Array, mode: BatchMode) -> tuple[jax.Array, jax.Array]:
    """Mean and biased variance of each of the parts (spans, images, height, width, features).

    One pass, E[x²] − E[x]², so that a span over several devices costs one fused reduction.
    """
    axes = (1, 2, 3)
    moments = jnp.stack([parts.mean(axes), jnp.square(parts).mean(axes)])
    if mode.members > 1:
        moments = mode.member_sum(moments) / mode.members
    mean, square = moments
    return mean, jnp.maximum(square - jnp.square(mean), 0)
