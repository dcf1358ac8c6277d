"""BatchNorm whose statistics are shared by a span of workers, with what follows it in one pass.

After Ioffe & Szegedy 2015 (arXiv 1502.03167). The images of a call are the workers' images one
after the other. They are split into ``spans`` equal parts, each normalised with its own
statistics; where a span lies on several devices, a function given by the caller sums over them. So
one module serves per-worker statistics (the record), groups of workers (Ying et al. 2018, arXiv
1811.06992) and the whole batch.

Normalisation, the addition of a shortcut and the rectifier are one function with a gradient of its
own, as in the record (BN+ReLU and BN+Add+ReLU; Rota Bulò et al. 2018, arXiv 1712.02616, discuss
what to keep). Between forward and backward only the convolution's output stays, in its own dtype,
and the result where a shortcut was added: both are kept anyway, as the output of one convolution
and the input of another. Everything wider than them lives inside a pass over memory.
"""

import dataclasses
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

STATISTICS = "statistics"
"""Name of means and inverse deviations, for policies of what to keep for backward."""


@dataclasses.dataclass(frozen=True)
class BatchMode:
    """How training-mode calls of `BatchNorm` form batch statistics."""

    spans: int
    """Parts of the images on this device that have statistics of their own."""
    members: int = 1
    """Devices that share each span."""
    member_sum: Callable[[jax.Array], jax.Array] | None = None
    """Sum over those devices; needed where ``members`` > 1."""
    unbiased: bool = True
    """Whether the variances returned for the running statistics are N/(N-1) corrected."""


class BatchStatistics(nnx.Intermediate):
    """A batch mean or variance (spans, features) of one training-mode call."""


class BatchNorm(nnx.BatchNorm):
    """``nnx.BatchNorm`` that also adds a shortcut and rectifies, in one pass over memory.

    Constructor, parameters, running statistics and results are those of ``nnx.BatchNorm``. Two
    things are added: the arguments ``shortcut`` and ``relu`` of a call, and `batch_mode`.
    Statistics are at least float32 and have one pass, E[x²] − E[x]². Neither ``axis`` nor
    ``axis_name`` is supported: features are the last axis, and `batch_mode` names the devices.
    """

    batch_mode: BatchMode | None = None
    """How training-mode calls form statistics. None: as ``nnx.BatchNorm``, over the whole batch,
    which updates ``mean`` and ``var``. Otherwise these stay as they are, and each call leaves its
    statistics in ``batch_mean`` and ``batch_var``, for the caller to average over workers."""

    def __call__(
        self,
        x: jax.Array,
        use_running_average: bool | None = None,
        *,
        shortcut: jax.Array | None = None,
        relu: bool = False,
    ) -> jax.Array:
        """Normalise ``x`` over all axes but the last, scale, shift, add ``shortcut`` and rectify.

        Args:
          x: activations (images, …, features).
          use_running_average: whether to normalise with the running statistics; None: as
            ``module.train()`` and ``module.eval()`` set it.
          shortcut: like ``x``, added to the normalised values.
          relu: whether to rectify the result.

        Returns:
          An array like ``x``, of ``dtype``, or where that is None of the type of ``x`` and the
          parameters together.

        Raises:
          ValueError: the layer has an ``axis`` other than the last or an ``axis_name``, or was
            called before in the same training step with a `batch_mode`.
        """
        if self.axis not in (-1, x.ndim - 1) or self.axis_name is not None:
            raise ValueError(
                f"BatchNorm has axis={self.axis}, axis_name={self.axis_name!r}; only the last axis "
                "is supported, and devices share statistics by batch_mode"
            )
        if use_running_average is None:
            use_running_average = self.use_running_average
        scale = jnp.ones_like(self.mean[...]) if self.scale is None else self.scale[...]
        bias = jnp.zeros_like(self.mean[...]) if self.bias is None else self.bias[...]
        dtype = self.dtype or jnp.promote_types(x.dtype, scale.dtype)
        x = x.astype(jnp.promote_types(x.dtype, dtype))
        if shortcut is not None:
            shortcut = shortcut.astype(x.dtype)
        if use_running_average:
            statistics = self.mean[...], _inverse(self.var[...], self.epsilon)
            return _transform(x, *statistics, scale, bias, shortcut, relu).astype(dtype)
        mode = self.batch_mode or BatchMode(spans=1, unbiased=False)
        # Each span's rows of features.
        rows = (mode.spans, -1, x.shape[-1])
        y, mean, var = _normalise(
            mode,
            self.epsilon,
            relu,
            x.reshape(rows),
            scale,
            bias,
            None if shortcut is None else shortcut.reshape(rows),
        )
        if self.batch_mode is None:
            kept = self.momentum
            self.mean[...] = kept * self.mean[...] + (1 - kept) * mean[0]
            self.var[...] = kept * self.var[...] + (1 - kept) * var[0]
        else:
            if hasattr(self, "batch_mean"):
                raise ValueError("a BatchNorm layer is called twice; give each call its own layer")
            count = mode.members * (x.size // x.shape[-1] // mode.spans)
            self.batch_mean = BatchStatistics(mean)
            self.batch_var = BatchStatistics(
                var * (count / max(count - 1, 1)) if mode.unbiased else var
            )
        return y.reshape(x.shape).astype(dtype)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _normalise(
    mode: BatchMode,
    epsilon: float,
    relu: bool,
    x: jax.Array,
    scale: jax.Array,
    bias: jax.Array,
    shortcut: jax.Array | None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Result like ``x`` (spans, rows, features), and mean and biased variance (spans, features).

    The statistics are for reporting: no gradient flows back through them.
    """
    return _forward(mode, epsilon, relu, x, scale, bias, shortcut)[0]


def _forward(
    mode: BatchMode,
    epsilon: float,
    relu: bool,
    x: jax.Array,
    scale: jax.Array,
    bias: jax.Array,
    shortcut: jax.Array | None,
) -> tuple[tuple[jax.Array, jax.Array, jax.Array], tuple]:
    mean, var = _moments(x, mode)
    kept_mean = checkpoint_name(mean, STATISTICS)
    inverse = checkpoint_name(_inverse(var, epsilon), STATISTICS)
    y = _transform(x, kept_mean[:, None], inverse[:, None], scale, bias, shortcut, relu)
    y = y.astype(x.dtype)
    # Without a shortcut the sign of the result follows from x, which has to be read anyway.
    result = y if relu and shortcut is not None else None
    return (y, mean, var), (x, kept_mean, inverse, scale, bias, result, shortcut is not None)


def _backward(
    mode: BatchMode, epsilon: float, relu: bool, kept: tuple, cotangents: tuple
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array | None]:
    """Equation of section 3 of Ioffe & Szegedy 2015, as two passes over the gradient and x."""
    del epsilon
    x, mean, inverse, scale, bias, result, added = kept
    gradient, *_ = cotangents
    wide = jnp.promote_types(x.dtype, jnp.float32)
    normal = (x.astype(wide) - mean[:, None]) * inverse[:, None]
    if relu:
        positive = normal * scale + bias > 0 if result is None else result > 0
        gradient = jnp.where(positive, gradient, 0)
    g = gradient.astype(wide)
    # Of this device alone they are the parameters' gradients, of the whole span they correct x's.
    sums = jnp.stack([g.sum(1), (g * normal).sum(1)])
    bias_gradient, scale_gradient = sums.sum(1)
    if mode.members > 1:
        sums = mode.member_sum(sums)
    shift, slope = sums[:, :, None] / (mode.members * x.shape[1])
    x_gradient = (g - shift - normal * slope) * (inverse[:, None] * scale)
    return (
        x_gradient.astype(x.dtype),
        scale_gradient.astype(scale.dtype),
        bias_gradient.astype(bias.dtype),
        gradient if added else None,
    )


_normalise.defvjp(_forward, _backward)


def _moments(x: jax.Array, mode: BatchMode) -> tuple[jax.Array, jax.Array]:
    """Mean and biased variance (spans, features) of rows (spans, rows, features).

    One pass, E[x²] − E[x]², so that a span over several devices costs one fused reduction.
    """
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    moments = jnp.stack([wide.mean(1), jnp.square(wide).mean(1)])
    if mode.members > 1:
        moments = mode.member_sum(moments) / mode.members
    mean, square = moments
    return mean, jnp.maximum(square - jnp.square(mean), 0)


def _inverse(var: jax.Array, epsilon: float) -> jax.Array:
    return jax.lax.rsqrt(var + epsilon)


def _transform(
    x: jax.Array,
    mean: jax.Array,
    inverse: jax.Array,
    scale: jax.Array,
    bias: jax.Array,
    shortcut: jax.Array | None,
    relu: bool,
) -> jax.Array:
    """In at least float32."""
    wide = jnp.promote_types(x.dtype, jnp.float32)
    y = (x.astype(wide) - mean) * inverse * scale + bias
    if shortcut is not None:
        y = y + shortcut.astype(wide)
    return jax.nn.relu(y) if relu else y
