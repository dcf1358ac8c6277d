"""ResNet v1.5 (He et al. 2015, arXiv 1512.03385; stride in the 3×3 convolution as in torchvision).

All arrays are NHWC. Padding and default initial values are those of torchvision: explicit symmetric
padding, He-normal convolutions by fan-out, and a head uniform in ±1/√fan-in. Parameters are
float32. ``dtype`` is that of the convolutions; None: that of the parameters. The global average
and the head are computed in at least float32.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.typing import Dtype

from largebatch.config.registries import DEPTHS
from largebatch.models.batch_norm import STATISTICS, BatchNorm
from largebatch.models.convolution import OUTPUT, Conv, precision
from largebatch.models.max_pool import relu_max_pool

Layer = Callable[..., nnx.Module]
"""Constructor of a layer: ``Conv``, ``BatchNorm``, a layer of Flax, or a partial of them."""

HE_NORMAL = nnx.initializers.variance_scaling(2.0, "fan_out", "normal")

_KEPT = {
    "norms": jax.checkpoint_policies.save_only_these_names(OUTPUT, STATISTICS),
    "blocks": jax.checkpoint_policies.nothing_saveable,
}
"""Activations of a block that forward saves for backward, in addition to its input."""


def _uniform_by_fan_in(fan_in: int) -> Callable:
    bound = fan_in**-0.5

    def init(
        key: jax.Array, shape: tuple[int, ...], dtype: Dtype = jnp.float32, **_: object
    ) -> jax.Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init


def _normalize(
    norm: nnx.Module, x: jax.Array, shortcut: jax.Array | None = None, *, relu: bool
) -> jax.Array:
    """Call a norm layer, add the shortcut and apply ReLU; fused for `BatchNorm`."""
    if isinstance(norm, BatchNorm):
        return norm(x, shortcut=shortcut, relu=relu)
    x = norm(x)
    x = x if shortcut is None else x + shortcut
    return jax.nn.relu(x) if relu else x


class Stem(nnx.Module):
    """First convolution, and max-pool except in the stem ``small``."""

    def __init__(
        self, channels: int, features: int, kind: str, *, conv: Layer, norm: Layer
    ) -> None:
        self.kind = kind
        size, stride = (3, 1) if kind == "small" else (7, 2)
        self.conv = conv(channels, features, (size, size), stride, padding=size // 2)
        self.bn = norm(features)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return features of images (batch, height, width, channels).

        Height and width are a quarter of those of the images, or equal with the stem ``small``.
        """
        small = self.kind == "small"
        x = _normalize(self.bn, self.conv(x), relu=small)
        return x if small else relu_max_pool(x)


class Block(nnx.Module):
    """Residual block: basic (two 3×3) or bottleneck (1×1, 3×3, 1×1 to four times the width)."""

    def __init__(
        self,
        features_in: int,
        width: int,
        stride: int,
        kind: str,
        *,
        conv: Layer,
        norm: Layer,
        last_norm: Layer,
    ) -> None:
        # (features, kernel size, stride) of each convolution of the branch
        if kind == "basic":
            layers = ((width, 3, stride), (width, 3, 1))
        else:
            layers = ((width, 1, 1), (width, 3, stride), (4 * width, 1, 1))
        self.depth = len(layers)
        features = features_in
        for i, (out, size, step) in enumerate(layers, start=1):
            setattr(self, f"conv{i}", conv(features, out, (size, size), step, padding=size // 2))
            setattr(self, f"bn{i}", (last_norm if i == self.depth else norm)(out))
            features = out
        self.features = features
        self.projects = stride != 1 or features_in != features
        if self.projects:
            self.downsample_conv = conv(features_in, features, (1, 1), stride, padding=0)
            self.downsample_bn = norm(features)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return ReLU of the sum of branch and shortcut."""
        shortcut = x
        if self.projects:
            shortcut = _normalize(self.downsample_bn, self.downsample_conv(x), relu=False)
        for i in range(1, self.depth + 1):
            x = _normalize(
                getattr(self, f"bn{i}"),
                getattr(self, f"conv{i}")(x),
                shortcut if i == self.depth else None,
                relu=True,
            )
        return x


class Stage(nnx.Module):
    """Blocks of one width; the first block may halve the resolution."""

    def __init__(
        self,
        features: int,
        width: int,
        depth: int,
        stride: int,
        kind: str,
        *,
        remat: str,
        **layers: Layer,
    ) -> None:
        self.remat = remat
        self.blocks = nnx.List()
        for i in range(depth):
            self.blocks.append(Block(features, width, 1 if i else stride, kind, **layers))
            features = self.blocks[-1].features
        self.features = features

    def __call__(self, x: jax.Array) -> jax.Array:
        """Apply all blocks."""
        call = Block.__call__
        if self.remat != "none":
            call = nnx.remat(call, policy=_KEPT[self.remat])
        for block in self.blocks:
            x = call(block, x)
        return x


class ResNet(nnx.Module):
    """ResNet from normalized images (batch, height, width, channels) to logits (batch, classes)."""

    def __init__(
        self,
        kind: str,
        depths: Sequence[int],
        classes: int = 1000,
        *,
        channels: int = 3,
        width: int = 64,
        stem: str = "conv7",
        gamma: float = 1.0,
        last_gamma: float | None = None,
        kernel_init: Callable = HE_NORMAL,
        head_deviation: float | None = None,
        dtype: Dtype | None = None,
        remat: str = "none",
        conv: Layer = Conv,
        norm: Layer = BatchNorm,
        rngs: nnx.Rngs,
    ) -> None:
        """Create a ResNet in training mode.

        Args:
          kind: block type, ``basic`` or ``bottleneck``.
          depths: number of blocks in each stage.
          classes: number of logits.
          channels: channels of the images.
          width: channels of the first stage; each later stage doubles them.
          stem: ``conv7`` (7×7, stride 2, and max-pool) or ``small`` (3×3, stride 1, no pool).
          gamma: initial scale of the norms.
          last_gamma: initial scale of the last norm of each residual branch; None: ``gamma``.
          kernel_init: initializer of the convolutions.
          head_deviation: standard deviation of normal initial values of the head's kernel, with a
            bias of 0; None: kernel and bias are uniform in ±1/√fan-in.
          dtype: dtype of the convolutions; None: that of the parameters.
          remat: activations that backward recomputes: ``none``, ``norms`` (normalized activations
            inside a block; needs `Conv` and `BatchNorm`) or ``blocks``.
          conv: constructor of convolutions with the interface of ``nnx.Conv``.
          norm: constructor of norms with the interface of ``nnx.BatchNorm``.
          rngs: random generators for the initial values.
        """
        wide = precision(dtype)
        make: dict[str, Any] = {
            "conv": partial(
                conv,
                use_bias=False,
                kernel_init=kernel_init,
                dtype=dtype,
                precision=wide,
                rngs=rngs,
            )
        }
        # Norms of Flax use random keys for constants. A separate stream keeps the initial values
        # of the convolutions independent of the norm.
        constants = nnx.Rngs(0)
        for name, scale in (("norm", gamma), ("last_norm", last_gamma)):
            scale_init = nnx.initializers.constant(gamma if scale is None else scale)
            make[name] = partial(norm, scale_init=scale_init, dtype=dtype, rngs=constants)
        self.stem = Stem(channels, width, stem, conv=make["conv"], norm=make["norm"])
        self.stages = nnx.List()
        features = width
        for i, depth in enumerate(depths):
            stage = Stage(features, width << i, depth, 2 if i else 1, kind, remat=remat, **make)
            self.stages.append(stage)
            features = stage.features
        head_init = bias_init = _uniform_by_fan_in(features)
        if head_deviation is not None:
            head_init = nnx.initializers.normal(head_deviation)
            bias_init = nnx.initializers.zeros_init()
        self.head = nnx.Linear(
            features,
            classes,
            precision=precision(None),
            kernel_init=head_init,
            bias_init=bias_init,
            rngs=rngs,
        )

    def __call__(self, images: jax.Array) -> jax.Array:
        """Return logits in at least float32."""
        x = self.stem(images)
        for stage in self.stages:
            x = stage(x)
        return self.head(x.astype(jnp.promote_types(x.dtype, jnp.float32)).mean((1, 2)))


def resnet(name: str, classes: int = 1000, *, rngs: nnx.Rngs, **options: Any) -> ResNet:
    """Return the ResNet with this name in `DEPTHS`; ``options`` are arguments of `ResNet`."""
    return ResNet(*DEPTHS[name], classes, rngs=rngs, **options)


resnet10 = partial(resnet, "resnet10")
resnet18 = partial(resnet, "resnet18")
resnet34 = partial(resnet, "resnet34")
resnet50 = partial(resnet, "resnet50")
resnet101 = partial(resnet, "resnet101")
resnet152 = partial(resnet, "resnet152")
