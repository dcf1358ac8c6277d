"""ResNet v1.5 (He et al. 2015, arXiv 1512.03385; stride in the 3×3 convolution as in torchvision).

NHWC throughout. Padding and initial values are torchvision's: explicit symmetric padding,
convolutions He-normal by fan-out, the head uniform in ±1/√fan-in, unless other ones are asked
for. Parameters are float32;
``dtype`` is that of the convolutions' arithmetic, None for the parameters' own. The global average
and the head are computed in at least float32.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from flax.typing import Dtype

from largebatch.models.batch_norm import STATISTICS, BatchMode, BatchNorm
from largebatch.models.convolution import OUTPUT, Conv, precision
from largebatch.models.max_pool import max_pool

MakeConv = Callable[[int, int, int, int], Conv]
"""(features in, features, size, stride) → layer."""
MakeNorm = Callable[..., BatchNorm]
"""(features) → layer."""

DEPTHS: dict[str, tuple[str, tuple[int, int, int, int]]] = {
    "resnet10": ("basic", (1, 1, 1, 1)),
    "resnet18": ("basic", (2, 2, 2, 2)),
    "resnet34": ("basic", (3, 4, 6, 3)),
    "resnet50": ("bottleneck", (3, 4, 6, 3)),
    "resnet101": ("bottleneck", (3, 4, 23, 3)),
    "resnet152": ("bottleneck", (3, 8, 36, 3)),
}

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


class Stem(nnx.Module):
    """The first convolution, and the max-pool where the stem has one."""

    def __init__(
        self, channels: int, features: int, kind: str, *, conv: MakeConv, norm: MakeNorm
    ) -> None:
        self.kind = kind
        size, stride = (3, 1) if kind == "small" else (7, 2)
        self.conv = conv(channels, features, size, stride)
        self.bn = norm(features)

    def __call__(self, x: jax.Array, mode: BatchMode | None) -> jax.Array:
        """Return features of images (batch, height, width, channels).

        At a quarter of the height and width; at all of them with the stem ``small``.
        """
        x = self.conv.on_blocks(x) if self.kind == "space_to_depth" else self.conv(x)
        x = self.bn(x, mode, relu=True)
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
        last_gamma: float,
        conv: MakeConv,
        norm: MakeNorm,
    ) -> None:
        # (features, kernel size, stride) of each convolution of the branch
        if kind == "basic":
            layers = ((width, 3, stride), (width, 3, 1))
        else:
            layers = ((width, 1, 1), (width, 3, stride), (4 * width, 1, 1))
        self.depth = len(layers)
        features = features_in
        for i, (out, size, step) in enumerate(layers, start=1):
            setattr(self, f"conv{i}", conv(features, out, size, step))
            last = {"gamma": last_gamma} if i == self.depth else {}
            setattr(self, f"bn{i}", norm(out, **last))
            features = out
        self.features = features
        self.projects = stride != 1 or features_in != features
        if self.projects:
            self.downsample_conv = conv(features_in, features, 1, stride)
            self.downsample_bn = norm(features)

    def __call__(self, x: jax.Array, mode: BatchMode | None) -> jax.Array:
        """The residual sum, rectified."""
        shortcut = self.downsample_bn(self.downsample_conv(x), mode) if self.projects else x
        for i in range(1, self.depth + 1):
            last = i == self.depth
            x = getattr(self, f"bn{i}")(
                getattr(self, f"conv{i}")(x), mode, shortcut=shortcut if last else None, relu=True
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
        **options: object,
    ) -> None:
        self.depth = depth
        self.remat = remat
        for i in range(1, depth + 1):
            block = Block(features, width, stride if i == 1 else 1, kind, **options)
            setattr(self, f"block{i}", block)
            features = block.features
        self.features = features

    def __call__(self, x: jax.Array, mode: BatchMode | None) -> jax.Array:
        """Through all blocks."""
        through = Block.__call__
        if self.remat != "none" and mode is not None:
            through = nnx.remat(through, static_argnums=2, policy=_KEPT[self.remat])
        for i in range(1, self.depth + 1):
            x = through(getattr(self, f"block{i}"), x, mode)
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
        gamma: float,
        last_gamma: float,
        init_fan: str,
        head_deviation: float | None,
        blur_pool: bool,
        dtype: Dtype | None,
        pointwise: str,
        remat: str,
        rngs: nnx.Rngs,
    ) -> None:
        kind, depths = DEPTHS[name]
        conv = partial(
            Conv, dtype=dtype, pointwise=pointwise, fan=init_fan, blur=blur_pool, rngs=rngs
        )
        norm = partial(BatchNorm, epsilon=epsilon, gamma=gamma)
        self.stem = Stem(channels, width, stem, conv=conv, norm=norm)
        features = width
        for i, depth in enumerate(depths, start=1):
            stage = Stage(
                features,
                width * 2 ** (i - 1),
                depth,
                1 if i == 1 else 2,
                kind,
                remat=remat,
                last_gamma=last_gamma,
                conv=conv,
                norm=norm,
            )
            setattr(self, f"stage{i}", stage)
            features = stage.features
        kernel_init = bias_init = _uniform_by_fan_in(features)
        if head_deviation is not None:
            kernel_init = nnx.initializers.normal(head_deviation)
            bias_init = nnx.initializers.zeros_init()
        self.head = nnx.Linear(
            features,
            classes,
            precision=precision(None),
            kernel_init=kernel_init,
            bias_init=bias_init,
            rngs=rngs,
        )

    def __call__(self, images: jax.Array, mode: BatchMode | None) -> jax.Array:
        """Logits, at least float32; ``mode`` None evaluates with the running statistics."""
        x = self.stem(images, mode)
        for i in range(1, len(DEPTHS["resnet50"][1]) + 1):
            x = getattr(self, f"stage{i}")(x, mode)
        return self.head(x.astype(jnp.promote_types(x.dtype, jnp.float32)).mean((1, 2)))
