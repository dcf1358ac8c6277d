"""BatchNorm with statistics per span of workers, fused with shortcut and ReLU.

See Ioffe & Szegedy 2015 (arXiv 1502.03167). The images of a call are the images of consecutive
workers. `BatchNorm` splits them into ``spans`` equal parts and normalizes each part with its own
statistics. If several devices share a span, a function of the caller sums over these devices.
Therefore the module supports statistics per worker (the record), per group of workers (Ying et al.
2018, arXiv 1811.06992) and over the whole batch.

Normalization, addition of the shortcut and ReLU are one function with a custom gradient, as in the
record (BN+ReLU and BN+Add+ReLU; Rota Bulò et al. 2018, arXiv 1712.02616, discuss what to save).
Forward saves only the output of the convolution for backward, in its own dtype, and the result if
there is a shortcut. Both exist anyway as output of one convolution and input of another.

Each direction reads the activations twice: for two sums, and to apply them. How the sums are
computed decides what XLA fuses on GPUs (docs/performance.md).
"""

import dataclasses
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

STATISTICS = "statistics"
"""Checkpoint name of means and inverse deviations, for rematerialization policies."""


@dataclasses.dataclass(frozen=True)
class BatchMode:
    """Computation of batch statistics in training-mode calls of `BatchNorm`."""

    spans: int
    """Number of parts of this device's images with separate statistics."""
    members: int = 1
    """Number of devices that share each span."""
    member_sum: Callable[[jax.Array], jax.Array] | None = None
    """Sum over these devices; required if ``members`` > 1."""
    unbiased: bool = True
    """Whether variances for the running statistics have the factor N/(N-1)."""
    frozen: frozenset[str] = frozenset()
    """Paths of layers that normalize with their running statistics, as in evaluation mode."""


class BatchStatistics(nnx.Intermediate):
    """Batch mean or variance of a training-mode call, with shape (spans, features)."""


class BatchNorm(nnx.BatchNorm):
    """``nnx.BatchNorm`` fused with the addition of a shortcut and ReLU.

    Constructor, parameters, running statistics and results are those of ``nnx.BatchNorm``. Calls
    have the additional arguments ``shortcut`` and ``relu``, and the module has `batch_mode`.
    Statistics are at least float32 and need one pass, E[x²] − E[x]². The module does not support
    ``axis`` and ``axis_name``: features are the last axis, and `batch_mode` defines the devices.
    """

    batch_mode: BatchMode | None = None
    """Computation of batch statistics in training mode. None: over the whole batch, with an update
    of ``mean`` and ``var``, like ``nnx.BatchNorm``. Otherwise, ``mean`` and ``var`` do not change.
    Each call sets ``batch_mean`` and ``batch_var``, which the caller averages over workers, and
    ``batch_values``, the number of values of each channel that they are of."""

    def __call__(
        self,
        x: jax.Array,
        use_running_average: bool | None = None,
        *,
        shortcut: jax.Array | None = None,
        relu: bool = False,
    ) -> jax.Array:
        """Normalize ``x`` over all axes but the last, scale, shift, add ``shortcut``, apply ReLU.

        Args:
          x: activations (images, …, features).
          use_running_average: whether to normalize with the running statistics; None: as set by
            ``module.train()`` and ``module.eval()``.
          shortcut: array like ``x`` to add to the normalized values.
          relu: whether to apply ReLU to the result.

        Returns:
          An array like ``x`` with the dtype ``dtype``; None: the promoted dtype of ``x`` and the
          parameters.

        Raises:
          ValueError: ``axis`` is not the last axis, ``axis_name`` is set, or the layer has a
            `batch_mode` and was already called in the same training step.
        """
        if self.axis not in (-1, (-1,), [-1], x.ndim - 1) or self.axis_name is not None:
            raise ValueError(
                f"BatchNorm: expected axis=-1 and axis_name=None, got axis={self.axis} and "
                f"axis_name={self.axis_name!r}; put features last, share statistics by norm.span"
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
            affine = _affine(*statistics, scale, bias)
            return _transform(x, *affine, shortcut, relu).astype(dtype)
        mode = self.batch_mode or BatchMode(spans=1, unbiased=False)
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
                raise ValueError("a BatchNorm layer is called twice; use one layer for each call")
            count = mode.members * (x.size // x.shape[-1] // mode.spans)
            self.batch_values = count
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
    """Return the result like ``x`` (spans, rows, features), mean and biased variance.

    Mean and variance have the shape (spans, features). No gradient flows through them.
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
    factor, offset = _affine(kept_mean[:, None], inverse[:, None], scale, bias)
    y = _transform(x, factor, offset, shortcut, relu).astype(x.dtype)
    # Without a shortcut, backward computes the sign of the result from x, which it reads anyway.
    result = y if relu and shortcut is not None else None
    kept = (x, kept_mean, inverse, factor, offset, result, shortcut is not None, scale, bias)
    return (y, mean, var), kept


def _backward(
    mode: BatchMode, epsilon: float, relu: bool, kept: tuple, cotangents: tuple
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array | None]:
    """Gradient of Ioffe & Szegedy 2015, section 3, in two passes over the gradient and x."""
    del epsilon
    x, mean, inverse, factor, offset, result, added, scale, bias = kept
    gradient, *_ = cotangents
    wide = jnp.promote_types(x.dtype, jnp.float32)
    if relu:
        if result is None:  # the same expression as in forward, hence the same sign
            result = _transform(x, factor, offset, None, relu=False).astype(x.dtype)
        gradient = jnp.where(result > 0, gradient, 0)
    g = gradient.astype(wide)
    centred = x.astype(wide) - mean[:, None]
    # Sums of this device are the gradients of the parameters; sums of the span correct that of x.
    shift, slope = _two_sums(g, g * centred)
    slope = slope * inverse
    bias_gradient, scale_gradient = shift.sum(0), slope.sum(0)
    if mode.members > 1:
        shift, slope = mode.member_sum(jnp.stack([shift, slope]))
    share = factor[:, 0] / (mode.members * x.shape[1])
    shift, slope = (shift * share)[:, None], (slope * inverse * share)[:, None]
    x_gradient = g * factor - shift - centred * slope
    return (
        x_gradient.astype(x.dtype),
        scale_gradient.astype(scale.dtype),
        bias_gradient.astype(bias.dtype),
        gradient if added else None,
    )


_normalise.defvjp(_forward, _backward)


def _moments(x: jax.Array, mode: BatchMode) -> tuple[jax.Array, jax.Array]:
    """Return mean and biased variance (spans, features) of ``x`` (spans, rows, features).

    One pass, E[x²] − E[x]², so that a span on several devices needs only one reduction.
    """
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    sums = _two_sums(wide, jnp.square(wide))
    mean, square = (each / x.shape[1] for each in sums)
    if mode.members > 1:
        mean, square = mode.member_sum(jnp.stack([mean, square])) / mode.members
    return mean, jnp.maximum(square - jnp.square(mean), 0)


def _two_sums(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the sums (spans, features) of ``a`` and ``b`` (spans, rows, features)."""
    return jax.lax.platform_dependent(
        a, b, cuda=sum_complex, rocm=sum_complex, default=lambda a, b: (a.sum(1), b.sum(1))
    )


def sum_complex(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sum both over axis 1 in one reduction, as real and imaginary part.

    XLA's cost model for GPUs counts what an operand reads once for each operand of a reduction.
    With a single operand it fuses the ReLU's mask into the reduction instead of writing it.
    """
    both = jax.lax.complex(a, b).sum(1)
    return both.real, both.imag


def _inverse(var: jax.Array, epsilon: float) -> jax.Array:
    return jax.lax.rsqrt(var + epsilon)


def _affine(
    mean: jax.Array, inverse: jax.Array, scale: jax.Array, bias: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return factor and offset of x that normalize, scale and shift it."""
    factor = inverse * scale
    return factor, bias - mean * factor


def _transform(
    x: jax.Array,
    factor: jax.Array,
    offset: jax.Array,
    shortcut: jax.Array | None,
    relu: bool,
) -> jax.Array:
    """Normalize, scale and shift, add the shortcut and apply ReLU, in at least float32."""
    wide = jnp.promote_types(x.dtype, jnp.float32)
    y = x.astype(wide) * factor + offset
    if shortcut is not None:
        y = y + shortcut.astype(wide)
    return jax.nn.relu(y) if relu else y
