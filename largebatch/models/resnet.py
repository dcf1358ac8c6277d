"""ResNet v1.5 (He et al. 2015, arXiv 1512.03385; stride in the 3×3 convolution as in torchvision).

NHWC throughout. Padding and initial values are torchvision's: explicit symmetric padding,
convolutions He-normal by fan-out, the head uniform in ±1/√fan-in, unless other ones are asked
for. Parameters are float32; ``dtype`` is that of the convolutions' arithmetic, None for the
parameters' own. The global average and the head are computed in at least float32.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.typing import Dtype

from largebatch.config.models import DEPTHS
from largebatch.models.batch_norm import STATISTICS, BatchNorm
from largebatch.models.convolution import OUTPUT, Conv, precision
from largebatch.models.max_pool import max_pool

Layer = Callable[..., nnx.Module]
"""What makes a layer: ``Conv``, ``BatchNorm``, Flax's own, or a partial of them."""

HE_NORMAL = nnx.initializers.variance_scaling(2.0, "fan_out", "normal")

_KEPT = {
    "norms": jax.checkpoint_policies.save_only_these_names(OUTPUT, STATISTICS),
    "blocks": jax.checkpoint_policies.nothing_saveable,
}
"""What of a block stays between forward and backward, beside its input."""


def _uniform_by_fan_in(fan_in: int) -> Callable:
    bound = fan_in**-0.5

    def init(
        key: jax.Array, shape: tuple[int, ...], dtype: Dtype = jnp.float32, **_: object
    ) -> jax.Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init


def _normalised(
    norm: nnx.Module, x: jax.Array, shortcut: jax.Array | None = None, *, relu: bool
) -> jax.Array:
    """Call a norm layer, add the shortcut and rectify: in one pass with `BatchNorm`."""
    if isinstance(norm, BatchNorm):
        return norm(x, shortcut=shortcut, relu=relu)
    x = norm(x)
    x = x if shortcut is None else x + shortcut
    return jax.nn.relu(x) if relu else x


class Stem(nnx.Module):
    """The first convolution, and the max-pool where the stem has one."""

    def __init__(
        self, channels: int, features: int, kind: str, *, conv: Layer, norm: Layer
    ) -> None:
        self.kind = kind
        size, stride = (3, 1) if kind == "small" else (7, 2)
        form = {"on_blocks": True} if kind == "space_to_depth" else {}
        self.conv = conv(channels, features, (size, size), stride, padding=size // 2, **form)
        self.bn = norm(features)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return features of images (batch, height, width, channels).

        At a quarter of the height and width; at all of them with the stem ``small``.
        """
        x = _normalised(self.bn, self.conv(x), relu=True)
        return x if self.kind == "small" else max_pool(x)


class Block(nnx.Module):
    """A residual block: basic (two 3×3) or bottleneck (1×1, 3×3, 1×1 to four times the width)."""

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
        """The residual sum, rectified."""
        shortcut = x
        if self.projects:
            shortcut = _normalised(self.downsample_bn, self.downsample_conv(x), relu=False)
        for i in range(1, self.depth + 1):
            x = _normalised(
                getattr(self, f"bn{i}"),
                getattr(self, f"conv{i}")(x),
                shortcut if i == self.depth else None,
                relu=True,
            )
        return x


class Stage(nnx.Module):
    """Blocks of one width; the first one may halve the resolution."""

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
        """Through all blocks."""
        through = Block.__call__
        if self.remat != "none":
            through = nnx.remat(through, policy=_KEPT[self.remat])
        for block in self.blocks:
            x = through(block, x)
        return x


class ResNet(nnx.Module):
    """Images (batch, height, width, channels), normalised floats, to logits (batch, classes)."""

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
        """Make a ResNet in training mode.

        Args:
          kind: block type, ``basic`` or ``bottleneck``.
          depths: number of blocks in each stage.
          classes: number of logits.
          channels: of the images.
          width: channels of the first stage; the later ones double it.
          stem: ``conv7`` (7×7, stride 2, and max-pool), ``space_to_depth`` (the same function,
            computed on 2×2 blocks of pixels) or ``small`` (3×3, stride 1, no pool).
          gamma: initial scale of the norms.
          last_gamma: initial scale of the last norm of each residual branch; None: as ``gamma``.
          kernel_init: initial values of the convolutions.
          head_deviation: normal initial values of the head's kernel, its bias 0; None: both are
            uniform in ±1/√fan-in.
          dtype: of the convolutions' arithmetic; None: that of the parameters.
          remat: what backward computes again: ``none``, ``norms`` (the normalised activations
            inside a block; needs `Conv` and `BatchNorm`) or ``blocks``.
          conv: makes a convolution, ``nnx.Conv`` or like it.
          norm: makes a norm, ``nnx.BatchNorm`` or like it.
          rngs: of the initial values.
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
        # Flax's norms draw keys for their constants: from a stream of their own, so that the
        # convolutions' initial values do not depend on the kind of norm.
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
        """Return logits, at least float32."""
        x = self.stem(images)
        for stage in self.stages:
            x = stage(x)
        return self.head(x.astype(jnp.promote_types(x.dtype, jnp.float32)).mean((1, 2)))


def resnet(name: str, classes: int = 1000, *, rngs: nnx.Rngs, **options: Any) -> ResNet:
    """Return a ResNet by its name in `DEPTHS`; ``options`` are those of `ResNet`."""
    return ResNet(*DEPTHS[name], classes, rngs=rngs, **options)


resnet10 = partial(resnet, "resnet10")
resnet18 = partial(resnet, "resnet18")
resnet34 = partial(resnet, "resnet34")
resnet50 = partial(resnet, "resnet50")
resnet101 = partial(resnet, "resnet101")
resnet152 = partial(resnet, "resnet152")
