"""Convolutions (NHWC, no bias, symmetric padding) in the form that suits the machine.

A 1×1 convolution is a matrix product of pixels and channels, two thirds of ResNet-50's layers; the
first layer can be computed on 2×2 blocks of pixels. Parameters are the plain convolution's in
every form.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.typing import Dtype
from jax.ad_checkpoint import checkpoint_name

OUTPUT = "convolution"
"""Name of the outputs, for policies of what to keep between forward and backward."""

# Outer product of (1, 2, 1) with itself, of sum 1 (Zhang 2019, arXiv 1904.11486, "Triangle-3").
_BLUR = np.outer([1, 2, 1], [1, 2, 1]) / 16
_BLURRED_FROM = 16  # channels; so the images themselves are not


def precision(dtype: Dtype | None) -> jax.lax.Precision:
    """Wide stays wide: left alone, GPUs and TPUs round float32 operands to fewer bits."""
    return jax.lax.Precision.HIGHEST if dtype is None else jax.lax.Precision.DEFAULT


class Conv(nnx.Module):
    """A square kernel (size, size, features in, features); He-normal by fan-in or fan-out."""

    def __init__(
        self,
        features_in: int,
        features: int,
        size: int,
        stride: int,
        *,
        dtype: Dtype | None,
        pointwise: str,
        rngs: nnx.Rngs,
        fan: str = "fan_out",
        blur: bool = False,
    ) -> None:
        self.stride = stride
        self.blurs = blur and stride > 1 and features_in >= _BLURRED_FROM
        self.dtype = dtype
        self.pointwise = pointwise
        shape = (size, size, features_in, features)
        he_normal = nnx.initializers.variance_scaling(2.0, fan, "normal")
        self.kernel = nnx.Param(he_normal(rngs.params(), shape, jnp.float32))

    def __call__(self, x: jax.Array) -> jax.Array:
        """``x`` (images, height, width, features in) convolved, in the arithmetic's dtype."""
        return checkpoint_name(self._convolve(*self._promoted(x)), OUTPUT)

    def on_blocks(self, x: jax.Array) -> jax.Array:
        """The same for a 7×7 kernel of stride 2 on even sides, see `conv7_on_blocks`."""
        x, kernel = self._promoted(x)
        return checkpoint_name(conv7_on_blocks(x, kernel, precision(self.dtype)), OUTPUT)

    def _promoted(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        kernel = self.kernel[...]
        dtype = self.dtype or kernel.dtype
        return x.astype(dtype), kernel.astype(dtype)

    def _convolve(self, x: jax.Array, kernel: jax.Array) -> jax.Array:
        size, stride = kernel.shape[0], self.stride
        if self.blurs:
            x = blurred(x, precision(self.dtype))
        if size == 1 and self.pointwise == "matmul":
            return jnp.dot(x[:, ::stride, ::stride], kernel[0, 0], precision=precision(self.dtype))
        return _convolution(x, kernel, stride, (size // 2, size // 2), precision(self.dtype))


def blurred(x: jax.Array, precision: jax.lax.Precision) -> jax.Array:
    """``x`` (images, height, width, features), each channel smoothed over 3×3 pixels."""
    features = x.shape[-1]
    kernel = jnp.asarray(np.tile(_BLUR[:, :, None, None], features), x.dtype)
    return _convolution(x, kernel, 1, (1, 1), precision, groups=features)


def conv7_on_blocks(x: jax.Array, kernel: jax.Array, precision: jax.lax.Precision) -> jax.Array:
    """A 7×7 convolution of stride 2 and padding 3, as 4×4 of stride 1 on 2×2 blocks of pixels.

    Output row o reads input rows 2o−3 … 2o+3. One leading zero row makes the kernel 8 rows, 2o−4 …
    2o+3, which are the whole blocks o−2 … o+1: four taps, padding (2, 1). Three-channel images
    thus fill twelve channels, which matrix units prefer.
    """
    batch, height, width, channels = x.shape
    features = kernel.shape[-1]
    blocks = x.reshape(batch, height // 2, 2, width // 2, 2, channels)
    blocks = blocks.transpose(0, 1, 3, 2, 4, 5).reshape(batch, height // 2, width // 2, -1)
    kernel = jnp.pad(kernel, ((1, 0), (1, 0), (0, 0), (0, 0)))
    kernel = kernel.reshape(4, 2, 4, 2, channels, features)
    kernel = kernel.transpose(0, 2, 1, 3, 4, 5).reshape(4, 4, -1, features)
    return _convolution(blocks, kernel, 1, (2, 1), precision)


def _convolution(
    x: jax.Array,
    kernel: jax.Array,
    stride: int,
    padding: tuple[int, int],
    precision: jax.lax.Precision,
    groups: int = 1,
) -> jax.Array:
    return jax.lax.conv_general_dilated(
        x,
        kernel,
        (stride, stride),
        (padding, padding),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
        precision=precision,
    )
