"""Small networks: as users write them in plain Flax, and ResNets of two blocks."""

import functools

import jax.numpy as jnp
from flax import nnx

from largebatch.models.resnet import ResNet


def attention(query, key, value, **_):
    """Flax's own computes the softmax in float32, which hides equalities of float64."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / query.shape[-1] ** 0.5
    return jnp.einsum("bhqk,bkhd->bqhd", nnx.softmax(scores), value)


class VisionTransformer(nnx.Module):
    def __init__(self, classes, *, rngs, dtype=None):
        self.patches = nnx.Conv(2, 8, (8, 8), strides=8, dtype=dtype, rngs=rngs)
        self.positions = nnx.Param(nnx.initializers.normal(0.02)(rngs.params(), (1, 4, 8)))
        self.first_norm = nnx.LayerNorm(8, dtype=dtype, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(
            2, in_features=8, decode=False, dtype=dtype, attention_fn=attention, rngs=rngs
        )
        self.second_norm = nnx.LayerNorm(8, dtype=dtype, rngs=rngs)
        self.mlp = nnx.Sequential(
            nnx.Linear(8, 16, dtype=dtype, rngs=rngs),
            nnx.gelu,
            nnx.Linear(16, 8, dtype=dtype, rngs=rngs),
        )
        self.head = nnx.Linear(8, classes, rngs=rngs)

    def __call__(self, images):
        x = self.patches(images)
        x = x.reshape(len(x), -1, x.shape[-1]) + self.positions[...]
        x = x + self.attention(self.first_norm(x))
        x = x + self.mlp(self.second_norm(x))
        return self.head(x.mean(1))


class Residual(nnx.Module):
    def __init__(self, features_in, features, stride, *, dtype, rngs):
        def conv(inputs, side, step):
            return nnx.Conv(
                inputs, features, (side, side), step, use_bias=False, dtype=dtype, rngs=rngs
            )

        self.conv1, self.conv2 = conv(features_in, 3, stride), conv(features, 3, 1)
        self.norm1 = nnx.BatchNorm(features, momentum=0.9, dtype=dtype, rngs=rngs)
        self.norm2 = nnx.BatchNorm(features, momentum=0.9, dtype=dtype, rngs=rngs)
        self.shortcut = conv(features_in, 1, stride)

    def __call__(self, x):
        y = nnx.relu(self.norm1(self.conv1(x)))
        return nnx.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class PlainResNet(nnx.Module):
    """With ``nnx.BatchNorm``, which knows nothing of workers."""

    def __init__(self, classes, *, rngs, dtype=None):
        self.stem = nnx.Conv(2, 4, (3, 3), dtype=dtype, rngs=rngs)
        self.blocks = nnx.List(
            [Residual(4, 4, 1, dtype=dtype, rngs=rngs), Residual(4, 8, 2, dtype=dtype, rngs=rngs)]
        )
        self.head = nnx.Linear(8, classes, rngs=rngs)

    def __call__(self, images):
        x = self.stem(images)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((1, 2)))


class Small(nnx.Module):
    """One convolution, for tests of whole runs: it compiles in a second."""

    def __init__(self, classes, *, rngs, dtype=None, channels=1):
        self.stem = nnx.Conv(channels, 8, (3, 3), strides=2, use_bias=False, dtype=dtype, rngs=rngs)
        self.norm = nnx.BatchNorm(8, momentum=0.9, dtype=dtype, rngs=rngs)
        self.head = nnx.Linear(8, classes, rngs=rngs)

    def __call__(self, images):
        return self.head(nnx.relu(self.norm(self.stem(images))).mean((1, 2)))


small_two = functools.partial(Small, channels=2)
small_colour = functools.partial(Small, channels=3)


def resnet(classes, *, rngs, dtype=None, channels=2, width=4, stem="small"):
    """Two blocks, the second with a projection: the layers of ResNet-10 in half the time."""
    options = {"channels": channels, "width": width, "stem": stem, "dtype": dtype}
    return ResNet("basic", (1, 1), classes, rngs=rngs, **options)


resnet_grey = functools.partial(resnet, channels=1)
resnet_colour = functools.partial(resnet, channels=3)
resnet_wide = functools.partial(resnet, width=64, stem="conv7")
