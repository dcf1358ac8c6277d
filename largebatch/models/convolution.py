"""Convolutions (NHWC) with implementations for different hardware.

On CPUs, a 1×1 convolution, two thirds of ResNet-50's layers, is a matrix product of pixels and
channels, and one whose output is smaller than its kernel a product of patches and channels. On
accelerators, the first layer is a convolution on 2×2 blocks of pixels. The parameters are those of
the plain convolution in all implementations.
"""

from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.typing import Dtype
from jax.ad_checkpoint import checkpoint_name

Form = Literal["plain", "products", "blocks"]
"""Implementation of convolutions: XLA's; or with matrix products, or blocks, where these are faster
(`Conv`)."""
OUTPUT = "convolution"
"""Checkpoint name of the outputs, for rematerialization policies."""

# Outer product of (1, 2, 1) with itself, with sum 1 (Zhang 2019, arXiv 1904.11486, "Triangle-3").
_BLUR = np.outer([1, 2, 1], [1, 2, 1]) / 16
_BLURRED_FROM = 16  # least number of channels, which excludes the input images


def precision(dtype: Dtype | None) -> jax.lax.Precision:
    """Return HIGHEST for float32, which GPUs and TPUs otherwise round to fewer bits."""
    return jax.lax.Precision.HIGHEST if dtype is None else jax.lax.Precision.DEFAULT


class Conv(nnx.Conv):
    """``nnx.Conv`` with a choice of implementations; parameters and results are the same.

    The output has the checkpoint name `OUTPUT` for rematerialization policies.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        *,
        form: Form = "plain",
        blur: bool = False,
        rngs: nnx.Rngs,
        **options: Any,
    ) -> None:
        """Create a convolution.

        Args:
          in_features: channels of the input.
          out_features: channels of the output.
          kernel_size: size of the kernel.
          strides: strides of the kernel.
          form: ``products``: compute 1×1 kernels, and kernels larger than the output, as matrix
            products; ``blocks``: compute a 7×7 kernel of stride 2 and padding 3 on even sides as
            `conv7_on_blocks`.
          blur: whether to blur the input if the stride exceeds 1 and it has at least 16 channels.
          rngs: random generators for the initial values.
          **options: further arguments of ``nnx.Conv``.
        """
        super().__init__(in_features, out_features, kernel_size, strides, rngs=rngs, **options)
        plain = self.feature_group_count == 1 and not self.use_bias and self.mask is None
        plain &= {self.input_dilation, self.kernel_dilation} <= {1, (1, 1)}
        is_point = self.kernel_size == (1, 1)
        products = plain and form == "products"
        self.is_product = products and is_point and self.padding in (0, "SAME", "VALID")
        self.may_use_patches = products and not is_point and isinstance(self.padding, int)
        is_stem = (self.kernel_size, _pair(self.strides), self.padding) == ((7, 7), (2, 2), 3)
        self.may_use_blocks = plain and form == "blocks" and is_stem
        self.blurs = blur and self.strides not in (1, (1, 1)) and in_features >= _BLURRED_FROM

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Convolve ``inputs`` of shape (images, height, width, in_features) in ``dtype``."""
        x, kernel = self.promote_dtype((inputs, self.kernel[...]), dtype=self.dtype)
        if self.blurs:
            x = blurred(x, self.precision)
        if self.may_use_blocks and not (x.shape[1] % 2 or x.shape[2] % 2):
            x = conv7_on_blocks(x, kernel, self.precision)
        elif self.is_product:
            down, right = _pair(self.strides)
            x = jnp.dot(x[:, ::down, ::right], kernel[0, 0], precision=self.precision)
        elif self.may_use_patches and self._exceeds_output(x.shape):
            x = product_of_patches(x, kernel, _pair(self.strides), self.padding, self.precision)
        else:
            x = super().__call__(x)
        return checkpoint_name(x, OUTPUT)

    def _exceeds_output(self, shape: tuple[int, ...]) -> bool:
        """Whether the kernel is larger than the output of an input of this shape.

        XLA exchanges the image and the kernel of such a convolution, or of its gradients. Its code
        for CPUs is then 20 times slower than for other convolutions.
        """
        steps = zip(shape[1:3], self.kernel_size, _pair(self.strides), strict=True)
        return any((n + 2 * self.padding - k) // s + 1 < k for n, k, s in steps)


def blurred(x: jax.Array, precision: jax.lax.Precision) -> jax.Array:
    """Blur each channel of ``x`` (images, height, width, features) over 3×3 pixels."""
    features = x.shape[-1]
    kernel = jnp.asarray(np.tile(_BLUR[:, :, None, None], features), x.dtype)
    return _convolution(x, kernel, (1, 1), precision, groups=features)


def product_of_patches(
    x: jax.Array,
    kernel: jax.Array,
    strides: tuple[int, int],
    padding: int,
    precision: jax.lax.Precision,
) -> jax.Array:
    """Compute a convolution as one matrix product with the pixels below each tap of the kernel."""
    x = jnp.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    (rows, columns), (down, right) = kernel.shape[:2], strides
    height, width = x.shape[1] - rows + 1, x.shape[2] - columns + 1
    taps = [
        x[:, row : row + height : down, column : column + width : right]
        for row in range(rows)
        for column in range(columns)
    ]
    kernel = kernel.reshape(-1, kernel.shape[-1])
    return jnp.dot(jnp.concatenate(taps, -1), kernel, precision=precision)


def conv7_on_blocks(x: jax.Array, kernel: jax.Array, precision: jax.lax.Precision) -> jax.Array:
    """Compute a 7×7 convolution of stride 2 and padding 3 as a 4×4 one on 2×2 blocks of pixels.

    Output row o reads input rows 2o−3 … 2o+3. A leading row of zeros extends the kernel to the 8
    rows 2o−4 … 2o+3, which are the blocks o−2 … o+1: four taps with padding (2, 1). Images of three
    channels become blocks of twelve channels, which suits matrix units: with 128 images, a step of
    ResNet-50 on an H100 is 3.8 % faster (docs/performance.md).
    """
    batch, height, width, channels = x.shape
    features = kernel.shape[-1]
    blocks = x.reshape(batch, height // 2, 2, width // 2, 2, channels)
    blocks = blocks.transpose(0, 1, 3, 2, 4, 5).reshape(batch, height // 2, width // 2, -1)
    kernel = jnp.pad(kernel, ((1, 0), (1, 0), (0, 0), (0, 0)))
    kernel = kernel.reshape(4, 2, 4, 2, channels, features)
    kernel = kernel.transpose(0, 2, 1, 3, 4, 5).reshape(4, 4, -1, features)
    return _convolution(blocks, kernel, (2, 1), precision)


def _pair(strides: int | Sequence[int]) -> tuple[int, int]:
    down, right = (strides, strides) if isinstance(strides, int) else strides
    return down, right


def _convolution(
    x: jax.Array,
    kernel: jax.Array,
    padding: tuple[int, int],
    precision: jax.lax.Precision,
    groups: int = 1,
) -> jax.Array:
    return jax.lax.conv_general_dilated(
        x,
        kernel,
        (1, 1),
        (padding, padding),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
        precision=precision,
    )
