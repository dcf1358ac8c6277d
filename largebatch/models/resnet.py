"""ResNet v1.5 (He et al. 2015, arXiv 1512.03385; stride in the 3×3 convolution as in torchvision).

NHWC throughout. Padding and initial values are torchvision's: explicit symmetric padding,
convolutions He-normal by fan-out, the head uniform in ±1/√fan-in. Parameters are float32;
``dtype`` is that of the convolutions' arithmetic, None for the parameters' own. The global average
and the head are computed in at least float32.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from flax.typing import Dtype

from largebatch.models.batch_norm import BatchMode, BatchNorm

DEPTHS: dict[str, tuple[str, tuple[int, int, int, int]]] = {
    "resnet18": ("basic", (2, 2, 2, 2)),
    "resnet34": ("basic", (3, 4, 6, 3)),
    "resnet50": ("bottleneck", (3, 4, 6, 3)),
    "resnet101": ("bottleneck", (3, 4, 23, 3)),
    "resnet152": ("bottleneck", (3, 8, 36, 3)),
}

_he_normal = nnx.initializers.variance_scaling(2.0, "fan_out", "normal")


def _uniform_by_fan_in(fan_in: int) -> Callable:
    bound = fan_in**-0.5

    def init(
        key: jax.Array, shape: tuple[int, ...], dtype: Dtype = jnp.float32, **_: object
    ) -> jax.Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init


def _conv(
    features_in: int, features: int, size: int, stride: int, *, dtype: Dtype | None, rngs: nnx.Rngs
) -> nnx.Conv:
    return nnx.Conv(
        features_in,
        features,
        (size, size),
        strides=stride,
        padding=size // 2,
        use_bias=False,
        dtype=dtype,
        precision=_precision(dtype),
        kernel_init=_he_normal,
        rngs=rngs,
    )


def _precision(dtype: Dtype | None) -> jax.lax.Precision:
    """Wide stays wide: left alone, GPUs and TPUs round float32 operands to fewer bits."""
    return jax.lax.Precision.HIGHEST if dtype is None else jax.lax.Precision.DEFAULT


class Stem(nnx.Module):
    """The first convolution, and the max-pool where the stem has one."""

    def __init__(
        self,
        channels: int,
        features: int,
        kind: str,
        *,
        epsilon: float,
        dtype: Dtype | None,
        rngs: nnx.Rngs,
    ) -> None:
        self.kind = kind
        self.dtype = dtype
        size, stride = (3, 1) if kind == "small" else (7, 2)
        self.conv = _conv(channels, features, size, stride, dtype=dtype, rngs=rngs)
        self.bn = BatchNorm(features, epsilon=epsilon)

    def __call__(self, x: jax.Array, mode: BatchMode | None) -> jax.Array:
        """Images (batch, height, width, channels) to features at a quarter of the resolution."""
        if self.kind == "space_to_depth":
            dtype = self.dtype or self.conv.kernel[...].dtype
            kernel = self.conv.kernel[...].astype(dtype)
            x = _conv7_on_blocks(x.astype(dtype), kernel, _precision(self.dtype))
        else:
            x = self.conv(x)
        x = jax.nn.relu(self.bn(x, mode))
        if self.kind == "small":
            return x
        return nnx.max_pool(x, (3, 3), strides=(2, 2), padding=((1, 1), (1, 1)))


def _conv7_on_blocks(x: jax.Array, kernel: jax.Array, precision: jax.lax.Precision) -> jax.Array:
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
    return jax.lax.conv_general_dilated(
        blocks,
        kernel,
        (1, 1),
        ((2, 1), (2, 1)),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        precision=precision,
    )


class Block(nnx.Module):
    """A residual block: basic (two 3×3) or bottleneck (1×1, 3×3, 1×1 to four times the width)."""

    def __init__(
        self,
        features_in: int,
        width: int,
        stride: int,
        kind: str,
        *,
        epsilon: float,
        zero_init_last_gamma: bool,
        dtype: Dtype | None,
        rngs: nnx.Rngs,
    ) -> None:
        # (features, kernel size, stride) of each convolution of the branch
        if kind == "basic":
            layers = ((width, 3, stride), (width, 3, 1))
        else:
            layers = ((width, 1, 1), (width, 3, stride), (4 * width, 1, 1))
        self.depth = len(layers)
        features = features_in
        for i, (out, size, step) in enumerate(layers, start=1):
            setattr(self, f"conv{i}", _conv(features, out, size, step, dtype=dtype, rngs=rngs))
            zero = zero_init_last_gamma and i == self.depth
            setattr(self, f"bn{i}", BatchNorm(out, epsilon=epsilon, zero_init=zero))
            features = out
        self.features = features
        self.projects = stride != 1 or features_in != features
        if self.projects:
            self.downsample_conv = _conv(features_in, features, 1, stride, dtype=dtype, rngs=rngs)
            self.downsample_bn = BatchNorm(features, epsilon=epsilon)

    def __call__(self, x: jax.Array, mode: BatchMode | None) -> jax.Array:
        """The residual sum, rectified."""
        y = x
        for i in range(1, self.depth + 1):
            y = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(y), mode)
            if i < self.depth:
                y = jax.nn.relu(y)
        if self.projects:
            x = self.downsample_bn(self.downsample_conv(x), mode)
        return jax.nn.relu(x.astype(y.dtype) + y)


class Stage(nnx.Module):
    """Blocks of one width; the first one may halve the resolution."""

    def __init__(
        self, features: int, width: int, depth: int, stride: int, kind: str, **options: object
    ) -> None:
        self.depth = depth
        for i in range(1, depth + 1):
            block = Block(features, width, stride if i == 1 else 1, kind, **options)
            setattr(self, f"block{i}", block)
            features = block.features
        self.features = features

    def __call__(self, x: jax.Array, mode: BatchMode | None) -> jax.Array:
        """Through all blocks."""
        for i in range(1, self.depth + 1):
            x = getattr(self, f"block{i}")(x, mode)
        return x


class ResNet(nnx.Module):
    """Images (batch, height, width, channels), normalised floats, to logits (batch, classes)."""

    def __init__(
        self,
        name: str,
        *,
        classes: int,
        channels: int,
        width: int,
        stem: str,
        epsilon: float,
        zero_init_last_gamma: bool,
        dtype: Dtype | None,
        rngs: nnx.Rngs,
    ) -> None:
        kind, depths = DEPTHS[name]
        self.stem = Stem(channels, width, stem, epsilon=epsilon, dtype=dtype, rngs=rngs)
        features = width
        for i, depth in enumerate(depths, start=1):
            stage = Stage(
                features,
                width * 2 ** (i - 1),
                depth,
                1 if i == 1 else 2,
                kind,
                epsilon=epsilon,
                zero_init_last_gamma=zero_init_last_gamma,
                dtype=dtype,
                rngs=rngs,
            )
            setattr(self, f"stage{i}", stage)
            features = stage.features
        init = _uniform_by_fan_in(features)
        self.head = nnx.Linear(
            features,
            classes,
            precision=_precision(None),
            kernel_init=init,
            bias_init=init,
            rngs=rngs,
        )

    def __call__(self, images: jax.Array, mode: BatchMode | None) -> jax.Array:
        """Logits, at least float32; ``mode`` None evaluates with the running statistics."""
        x = self.stem(images, mode)
        for i in range(1, len(DEPTHS["resnet50"][1]) + 1):
            x = getattr(self, f"stage{i}")(x, mode)
        return self.head(x.astype(jnp.promote_types(x.dtype, jnp.float32)).mean((1, 2)))
