"""Users' own modules in the step functions, in float64: equal on any devices, and to plain Flax."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from largebatch.training.stage import Stage
from largebatch.trees import flatten_paths, unflatten_paths
from tests.training import own_models, worlds
from tests.training.worlds import EQUAL, RATES, assert_equal, trained

HERE = "tests.training.own_models"
OPTIMIZERS = {
    "sgd": {"name": "sgd", "momentum": 0.9, "weight_decay": 1e-3},
    "lars": {"name": "lars", "flavour": "mlperf"},
}


pytestmark = pytest.mark.usefixtures("float64")


def programs(name, devices, microbatch, optimizer="sgd", update="replicated", **sections):
    made = worlds.config(
        model={"name": f"{HERE}:{name}", "width": 64, "stem": "conv7"},
        optimizer=OPTIMIZERS[optimizer] | {"update": update},
        **sections,
    )
    return Stage(worlds.steps(made, devices, microbatch))


@functools.cache
def initial(name, optimizer):
    return jax.device_get(programs(name, 1, 8, optimizer).init(np.int32(0)))


# The network of test_equality is a user's module too, with BatchNorm.
CASES = [
    ("VisionTransformer", "lars", "sharded", 1, 4, 1),
    pytest.param("PlainResNet", "sgd", "sharded", 4, 8, 1, marks=pytest.mark.slow),
    pytest.param("PlainResNet", "lars", "replicated", "all", 2, 4, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("name", "optimizer", "update", "span", "devices", "microbatch"), CASES)
def test_training_does_not_depend_on_the_devices(
    name, optimizer, update, span, devices, microbatch
):
    run = programs(name, devices, microbatch, optimizer, update, norm={"span": span})
    begin = initial(name, optimizer)
    found = trained(run, begin)
    whole = programs(name, 1, 8, optimizer, norm={"span": span})
    assert_equal(found, trained(whole, begin))
    assert min(worlds.errors(found[0].params, begin.params).values()) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["VisionTransformer", "PlainResNet"])
def test_equal_to_a_plain_flax_loop(name):
    """``nnx.BatchNorm`` over the whole batch, autodiff and optax, without any of this package."""
    made = programs(name, 1, 8, norm={"span": "all", "running_variance": "biased"})
    steps = made.steps
    begin = initial(name, "sgd")
    found, metrics = trained(made, begin)
    model = getattr(own_models, name)(worlds.CLASSES, rngs=nnx.Rngs(0))
    set_arrays(model, nnx.state(model), flatten_paths(begin.params) | flatten_paths(begin.stats))
    decayed = jax.tree.map(lambda kind: kind in ("conv", "fc"), kinds_of(steps))
    smoothing = steps.plan.config.loss.label_smoothing

    def loss_of(model, images, labels):
        target = optax.smooth_labels(jax.nn.one_hot(labels, worlds.CLASSES), smoothing)
        return optax.softmax_cross_entropy(model(images), target).mean()

    @nnx.jit
    def gradients_of(model, images, labels):
        return nnx.value_and_grad(loss_of)(model, images, labels)

    params = begin.params
    rule = optax.chain(
        optax.add_decayed_weights(1e-3, mask=decayed), optax.trace(0.9), optax.scale(-1.0)
    )
    momentum = rule.init(params)
    model.train()
    for step in range(len(RATES)):
        images, labels = worlds.batch(step, steps.plan.samples_per_step)
        pixels = (images.astype("float64") - worlds.MEAN) / worlds.STD
        loss, gradients = gradients_of(model, pixels, labels)
        np.testing.assert_allclose(metrics[step].loss, loss, rtol=EQUAL)
        gradients = as_tree(gradients)
        change, momentum = rule.update(gradients, momentum, params)
        params = jax.tree.map(lambda w, u, r=RATES[step]: w + r * u, params, change)
        set_arrays(model, nnx.state(model, nnx.Param), flatten_paths(params))
    stats = as_tree(nnx.state(model, nnx.BatchStat))
    assert_equal(found.params, params)
    assert_equal(found.stats, stats)
    # Evaluation mode, with these running statistics.
    model.eval()
    images, _ = worlds.batch(9, 8)
    pixels = (images.astype("float64") - worlds.MEAN) / worlds.STD
    ours = steps.model.apply(found.params, found.stats, pixels)
    np.testing.assert_allclose(ours, model(pixels), rtol=1e-9, atol=1e-9)


def set_arrays(model, state, arrays):
    """Replace the variables of a state of the model by arrays of their paths."""
    found = []
    for path, _ in nnx.to_flat_state(state):
        found.append((path, jnp.asarray(arrays["/".join(map(str, path))], "float64")))
    nnx.update(model, nnx.from_flat_state(found))


def as_tree(state):
    flat = nnx.to_flat_state(state)
    return unflatten_paths({"/".join(map(str, path)): np.asarray(v[...]) for path, v in flat})


def kinds_of(steps):
    return unflatten_paths(dict(steps.model.kinds()))
