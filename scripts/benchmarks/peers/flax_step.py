"""A plain Flax step, as Flax's ImageNet example has it, around a plain ResNet.

SGD with Nesterov momentum, label-smoothed cross-entropy, `pmean` of every gradient and statistic,
the state donated. The network is that of the example (its models.py, called) where a checkout is
given, else one of the library's own nnx.Conv and nnx.BatchNorm. The images are normalised floats
on the device, as the example's pipeline delivers them: that work is not in the step.
"""

import itertools
import time
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from benchmarks.peers.flax_checkout import example
from benchmarks.recorder import record
from benchmarks.runner import Figures
from benchmarks.step_work import DECAY, MOMENTUM, RATE, SMOOTHING, StepWork, normalised
from benchmarks.workload import Absent
from benchmarks.xla import Stepper

PyTree = Any
AXIS = "batch"
_Apply = Callable[[PyTree, PyTree, jax.Array], tuple[jax.Array, PyTree]]


def prepare(work: StepWork) -> Callable[[], Figures]:
    """As of `benchmarks.runner`."""
    make = from_checkout if work.flax_examples else from_library
    apply, params, stats = make(work)
    optimizer = optax.chain(
        optax.add_decayed_weights(DECAY, lambda tree: jax.tree.map(lambda x: x.ndim > 1, tree)),
        optax.sgd(RATE, momentum=MOMENTUM, nesterov=True),
    )
    state = jax.jit(lambda p, s: (p, s, optimizer.init(p)))(params, stats)
    data = [
        (jnp.asarray(images, work.dtype), jnp.asarray(labels))
        for images, labels in normalised(work)
    ]
    mapped = jax.shard_map(
        partial(train_step, apply=apply, optimizer=optimizer, classes=work.classes),
        mesh=Mesh(np.asarray(jax.local_devices()[:1]), (AXIS,)),
        in_specs=(P(), P(AXIS), P(AXIS)),
        out_specs=P(),
        check_vma=False,  # as under the example's pmap: gradients are reduced where pmean says so
    )
    start = time.perf_counter()
    compiled = jax.jit(mapped, donate_argnums=0).lower(state, *data[0]).compile()
    compile_s = time.perf_counter() - start
    feed = itertools.cycle(data)
    stepper = Stepper(lambda state: compiled(state, *next(feed)), state)
    if work.trace:
        record(work.trace, "flax", stepper, compiled)
    return stepper.repeat(work, compiled, compile_s)


def about(work: StepWork) -> str:
    """Whose network was run."""
    network = "the example's models.py" if work.flax_examples else "a network of flax.nnx layers"
    return f"{network}, optax.sgd with Nesterov momentum, images already normalised"


def train_step(
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
        targets = optax.smooth_labels(jax.nn.one_hot(labels, classes), SMOOTHING)
        losses = optax.softmax_cross_entropy(logits.astype(jnp.float32), targets)
        return losses.mean(), new

    (loss, stats), gradients = jax.value_and_grad(loss_of, has_aux=True)(params)
    gradients, stats, loss = jax.lax.pmean((gradients, stats, loss), AXIS)
    updates, optimizer_state = optimizer.update(gradients, optimizer_state, params)
    return (optax.apply_updates(params, updates), stats, optimizer_state), loss


def from_checkout(work: StepWork) -> tuple[_Apply, PyTree, PyTree]:
    """The network of the example.

    Raises:
        Absent: The checkout, or the network in it, is not there.
    """
    models: ModuleType = example(work.flax_examples, "models")
    name = work.network.replace("resnet", "ResNet")
    if not hasattr(models, name):
        raise Absent(f"the example has no {name}")
    model = getattr(models, name)(
        num_classes=work.classes, num_filters=work.width, dtype=jnp.dtype(work.dtype)
    )
    shape = (1, work.image_size, work.image_size, 3)
    # As the example does it, with the axis that its BatchNorm expects left unnamed: none is mapped.
    variables = jax.jit(partial(model.init, train=False))(jax.random.key(0), jnp.ones(shape))

    def apply(params: PyTree, stats: PyTree, images: jax.Array) -> tuple[jax.Array, PyTree]:
        logits, new = model.apply(
            {"params": params, "batch_stats": stats}, images, mutable=["batch_stats"]
        )
        return logits, new["batch_stats"]

    return apply, variables["params"], variables["batch_stats"]


def from_library(work: StepWork) -> tuple[_Apply, PyTree, PyTree]:
    """A network of the library's layers."""
    from flax import nnx

    from benchmarks.peers.nnx_resnet import ResNet

    network = ResNet(
        work.network, work.classes, work.width, dtype=jnp.dtype(work.dtype), rngs=nnx.Rngs(0)
    )
    definition, params, stats = nnx.split(network, nnx.Param, nnx.BatchStat)

    def apply(params: PyTree, stats: PyTree, images: jax.Array) -> tuple[jax.Array, PyTree]:
        module = nnx.merge(definition, nnx.State(params), nnx.State(stats))
        logits = module(images)
        return logits, nnx.to_pure_dict(nnx.state(module, nnx.BatchStat))

    return apply, nnx.to_pure_dict(params), nnx.to_pure_dict(stats)
