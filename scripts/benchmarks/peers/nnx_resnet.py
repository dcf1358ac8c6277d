"""ResNet v1.5 of Flax's own layers with their defaults, the plain way to write it."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from flax.typing import Dtype

from largebatch.models import DEPTHS


class Block(nnx.Module):
    """A residual block, basic or bottleneck."""

    def __init__(
        self, fan_in: int, width: int, stride: int, kind: str, *, dtype: Dtype, rngs: nnx.Rngs
    ) -> None:
        conv = partial(nnx.Conv, use_bias=False, dtype=dtype, rngs=rngs)
        norm = partial(nnx.BatchNorm, momentum=0.9, dtype=dtype, rngs=rngs)
        if kind == "basic":
            shapes = [(fan_in, width, 3, stride), (width, width, 3, 1)]
        else:
            shapes = [(fan_in, width, 1, 1), (width, width, 3, stride), (width, 4 * width, 1, 1)]
        self.convs = nnx.List([conv(i, o, (k, k), strides=s) for i, o, k, s in shapes])
        self.norms = nnx.List([norm(out) for _, out, _, _ in shapes])
        self.features = shapes[-1][1]
        self.projects = stride != 1 or fan_in != self.features
        if self.projects:
            self.conv = conv(fan_in, self.features, (1, 1), strides=stride)
            self.norm = norm(self.features)

    def __call__(self, x: jax.Array) -> jax.Array:
        """The residual sum, rectified."""
        y = x
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True), start=1):
            y = norm(conv(y))
            if i < len(self.convs):
                y = nnx.relu(y)
        if self.projects:
            x = self.norm(self.conv(x))
        return nnx.relu(x + y)


class ResNet(nnx.Module):
    """Images (batch, side, side, 3) to logits (batch, classes)."""

    def __init__(
        self, name: str, classes: int, width: int, *, dtype: Dtype, rngs: nnx.Rngs
    ) -> None:
        kind, depths = DEPTHS[name]
        self.conv = nnx.Conv(
            3, width, (7, 7), strides=2, padding=3, use_bias=False, dtype=dtype, rngs=rngs
        )
        self.norm = nnx.BatchNorm(width, momentum=0.9, dtype=dtype, rngs=rngs)
        blocks, features = [], width
        for stage, depth in enumerate(depths):
            for index in range(depth):
                stride = 2 if stage and not index else 1
                block = Block(features, width << stage, stride, kind, dtype=dtype, rngs=rngs)
                blocks.append(block)
                features = block.features
        self.blocks = nnx.List(blocks)
        self.head = nnx.Linear(features, classes, dtype=dtype, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits."""
        x = nnx.relu(self.norm(self.conv(x)))
        x = nnx.max_pool(x, (3, 3), strides=(2, 2), padding="SAME")
        for block in self.blocks:
            x = block(x)
        return self.head(jnp.mean(x, axis=(1, 2)))
