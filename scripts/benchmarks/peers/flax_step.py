"""A plain Flax step, as Flax's ImageNet example has it, around a plain ResNet.

SGD with Nesterov momentum, label-smoothed cross-entropy, `pmean` of every gradient and statistic,
the state donated. The network is that of the example (its models.py, called) where a checkout is
given, else one of the library's own nnx.Conv and nnx.BatchNorm. The images are normalised floats
on the device, as the example's pipeline delivers them: that work is not in the step.
"""

import importlib.util
import itertools
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from flax.typing import Dtype
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from benchmarks import step_work
from benchmarks.competitor import Absent, Figures
from benchmarks.step_work import JaxStep, StepWork
from largebatch.models import DEPTHS

PyTree = Any
AXIS = "batch"
_Apply = Callable[[PyTree, PyTree, jax.Array], tuple[jax.Array, PyTree]]


def flax(work: StepWork) -> tuple[Callable[[], Figures], str]:
    """The competitor."""
    make = _from_checkout if work.flax_examples else _from_library
    apply, params, stats = make(work)
    optimizer = optax.chain(
        optax.add_decayed_weights(
            step_work.DECAY, lambda tree: jax.tree.map(lambda x: x.ndim > 1, tree)
        ),
        optax.sgd(step_work.LEARNING_RATE, momentum=step_work.MOMENTUM, nesterov=True),
    )
    state = jax.jit(lambda p, s: (p, s, optimizer.init(p)))(params, stats)
    data = [
        (jnp.asarray(images, work.dtype), jnp.asarray(labels))
        for images, labels in step_work.batches(work, normalise=True)
    ]
    mapped = jax.shard_map(
        partial(_train_step, apply=apply, optimizer=optimizer, classes=work.classes),
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
    network = "the example's models.py" if work.flax_examples else "a network of flax.nnx layers"
    about = f"{network}, optax.sgd with Nesterov momentum, images already normalised"
    return step.competitor(work, compiled, compile_s, "flax"), about


def _train_step(
    state: PyTree,
    images: jax.Array,
    labels: jax.Array,
    *,
    apply: _Apply,
    optimizer: optax.GradientTransformation,
    classes: int,
) -> tuple[PyTree, jax.Array]:
    """((params, stats, optimizer state), images, labels) → (the new state, loss)."""
    params, stats, optimizer_state = state

    def loss_of(params: PyTree) -> tuple[jax.Array, PyTree]:
        logits, new = apply(params, stats, images)
        targets = optax.smooth_labels(jax.nn.one_hot(labels, classes), step_work.SMOOTHING)
        losses = optax.softmax_cross_entropy(logits.astype(jnp.float32), targets)
        return losses.mean(), new

    (loss, stats), gradients = jax.value_and_grad(loss_of, has_aux=True)(params)
    gradients, stats, loss = jax.lax.pmean((gradients, stats, loss), AXIS)
    updates, optimizer_state = optimizer.update(gradients, optimizer_state, params)
    return (optax.apply_updates(params, updates), stats, optimizer_state), loss


def example(checkout: str, name: str) -> ModuleType:
    """A module of Flax's ImageNet example, which is in no package.

    Args:
        checkout: A checkout of google/flax, its folder `examples`, or that of the example.
        name: Of the module, `input_pipeline` or `models`.

    Raises:
        Absent: It is not there.
    """
    if not checkout:
        raise Absent("its code is in no package; give a checkout of google/flax, --flax_examples")
    for inside in ("examples/imagenet", "imagenet", "."):
        path = Path(checkout, inside, f"{name}.py")
        if path.is_file():
            spec = importlib.util.spec_from_file_location(f"flax_{name}", path)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    raise Absent(f"--flax_examples {checkout} holds no imagenet/{name}.py")


def _from_checkout(work: StepWork) -> tuple[_Apply, PyTree, PyTree]:
    """The network of the example, its parameters and statistics."""
    models = example(work.flax_examples, "models")
    name = work.network.replace("resnet", "ResNet")
    if not hasattr(models, name):
        raise Absent(f"the example has no {name}")
    model = getattr(models, name)(
        num_classes=work.classes, num_filters=work.width, dtype=jnp.dtype(work.dtype)
    )
    images = jnp.ones((1, work.image_size, work.image_size, 3))
    # As the example does it, with the axis that its BatchNorm expects left unnamed: none is mapped.
    variables = jax.jit(partial(model.init, train=False))(jax.random.key(0), images)

    def apply(params: PyTree, stats: PyTree, images: jax.Array) -> tuple[jax.Array, PyTree]:
        logits, new = model.apply(
            {"params": params, "batch_stats": stats}, images, mutable=["batch_stats"]
        )
        return logits, new["batch_stats"]

    return apply, variables["params"], variables["batch_stats"]


def _from_library(work: StepWork) -> tuple[_Apply, PyTree, PyTree]:
    """A network of the library's layers, its parameters and statistics."""
    network = ResNet(
        work.network, work.classes, work.width, dtype=jnp.dtype(work.dtype), rngs=nnx.Rngs(0)
    )
    definition, params, stats = nnx.split(network, nnx.Param, nnx.BatchStat)

    def apply(params: PyTree, stats: PyTree, images: jax.Array) -> tuple[jax.Array, PyTree]:
        module = nnx.merge(definition, nnx.State(params), nnx.State(stats))
        logits = module(images)
        return logits, nnx.to_pure_dict(nnx.state(module, nnx.BatchStat))

    return apply, nnx.to_pure_dict(params), nnx.to_pure_dict(stats)


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
