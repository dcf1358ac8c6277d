"""A plain Flax step, as Flax's ImageNet example has it, around a ResNet of flax.nnx layers.

SGD with Nesterov momentum, label-smoothed cross-entropy, `pmean` of every gradient and statistic,
the state donated. The images are normalised floats on the device, as the example's pipeline
delivers them: that work is not in the step.
"""

import itertools
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from flax.typing import Dtype
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from benchmarks import training
from benchmarks.competitor import Figures
from benchmarks.training import JaxStep, StepWork
from largebatch.models import DEPTHS

PyTree = Any
AXIS = "batch"


def flax(work: StepWork) -> tuple[Callable[[], Figures], str]:
    """The competitor."""
    dtype = jnp.dtype(work.dtype)
    network = ResNet(work.network, work.classes, work.width, dtype=dtype, rngs=nnx.Rngs(0))
    definition, *variables = nnx.split(network, nnx.Param, nnx.BatchStat)
    params, stats = map(nnx.to_pure_dict, variables)
    decayed = partial(jax.tree.map, lambda x: x.ndim > 1)
    optimizer = optax.chain(
        optax.add_decayed_weights(training.DECAY, decayed),
        optax.sgd(training.LEARNING_RATE, momentum=training.MOMENTUM, nesterov=True),
    )

    def train_step(state: PyTree, images: jax.Array, labels: jax.Array) -> tuple[PyTree, jax.Array]:
        """((params, stats, optimizer state), images, labels) → (the new state, loss)."""
        params, stats, optimizer_state = state

        def loss_of(params: PyTree) -> tuple[jax.Array, PyTree]:
            module = nnx.merge(definition, nnx.State(params), nnx.State(stats))
            logits = module(images).astype(jnp.float32)
            targets = optax.smooth_labels(jax.nn.one_hot(labels, work.classes), training.SMOOTHING)
            new = nnx.to_pure_dict(nnx.state(module, nnx.BatchStat))
            return optax.softmax_cross_entropy(logits, targets).mean(), new

        (loss, stats), gradients = jax.value_and_grad(loss_of, has_aux=True)(params)
        gradients, stats, loss = jax.lax.pmean((gradients, stats, loss), AXIS)
        updates, optimizer_state = optimizer.update(gradients, optimizer_state, params)
        return (optax.apply_updates(params, updates), stats, optimizer_state), loss

    state = jax.jit(lambda p, s: (p, s, optimizer.init(p)))(params, stats)
    data = [
        (jnp.asarray(images, work.dtype), jnp.asarray(labels))
        for images, labels in training.batches(work, normalise=True)
    ]
    mapped = jax.shard_map(
        train_step,
        mesh=Mesh(np.asarray(jax.local_devices()[:1]), (AXIS,)),
        in_specs=(P(), P(AXIS), P(AXIS)),
        out_specs=P(),
        check_vma=False,  # as under the example's pmap: gradients are reduced where pmean says so
    )
    start = time.perf_counter()
    compiled = jax.jit(mapped, donate_argnums=0).lower(state, *data[0]).compile()
    compile_s = time.perf_counter() - start
    feed = itertools.cycle(data)
    step = JaxStep(lambda state: compiled(state, *next(feed)), state)
    about = "flax.nnx layers, optax.sgd with Nesterov momentum, images already normalised"
    return step.competitor(work, compiled, compile_s, "flax"), about


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
    """ResNet v1.5 of Flax's layers: images (batch, side, side, 3) to logits (batch, classes)."""

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
