"""`ResNet` and its layers in plain Flax code, beside Flax's own layers."""

import jax
import numpy as np
import optax
import pytest
from flax import nnx

from largebatch.models import (
    BatchMode,
    BatchNorm,
    BatchStatistics,
    Model,
    ResNet,
)
from largebatch.trees import unflatten_paths
from tests.optim import plain


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def network(**layers):
    """A small ResNet in float64."""
    made = ResNet(
        "bottleneck", (1, 1), 5, width=4, stem="small", last_gamma=0.5, rngs=nnx.Rngs(0), **layers
    )
    nnx.update(made, jax.tree.map(lambda x: x.astype("float64"), nnx.state(made)))
    return made


def batch(step):
    draw = np.random.default_rng(step)
    return draw.normal(1.5, 2, (6, 8, 8, 3)), draw.integers(0, 5, 6)


def trained(model, steps=3):
    """A plain NNX loop; the running statistics must be usable after it."""
    optimizer = nnx.Optimizer(model, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)

    def loss_of(model, images, labels):
        losses = optax.softmax_cross_entropy_with_integer_labels(model(images), labels)
        return losses.mean()

    @nnx.jit
    def step(model, optimizer, images, labels):
        loss, gradients = nnx.value_and_grad(loss_of)(model, images, labels)
        optimizer.update(model, gradients)
        return loss

    model.train()
    losses = [step(model, optimizer, *batch(i)) for i in range(steps)]
    model.eval()
    logits = nnx.jit(lambda model, images: model(images))(model, batch(9)[0])
    return np.asarray(losses), logits, nnx.to_pure_dict(nnx.state(model))


@pytest.mark.slow
def test_a_plain_loop_equals_one_with_flaxs_layers():
    ours = trained(network())
    theirs = trained(network(conv=nnx.Conv, norm=nnx.BatchNorm))
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12 * float(abs(b).max()))
    fresh = nnx.to_pure_dict(nnx.state(network(), nnx.BatchStat))
    assert abs(ours[2]["stem"]["bn"]["mean"] - fresh["stem"]["bn"]["mean"]).max() > 1e-3


@pytest.mark.parametrize("options", [{}, {"use_scale": False}, {"use_bias": False}])
@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_batch_norm_has_flaxs_results_and_types(options, dtype):
    x = jax.random.normal(jax.random.key(0), (6, 3, 4, 5), dtype or "float32") * 2 + 1
    layers = [
        kind(5, momentum=0.8, dtype=dtype, rngs=nnx.Rngs(0), **options)
        for kind in (BatchNorm, nnx.BatchNorm)
    ]
    for _ in range(3):
        ours, theirs = (layer(x) for layer in layers)
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, atol=2e-6 if dtype is None else 0.02)
    for one, other in zip(*(jax.tree.leaves(nnx.state(layer)) for layer in layers), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        # Flax sums bfloat16 activations in bfloat16.
        np.testing.assert_allclose(one, other, rtol=1e-5 if dtype is None else 0.02, atol=1e-6)
    ours, theirs = (layer(x, use_running_average=True) for layer in layers)
    assert ours.dtype == theirs.dtype
    np.testing.assert_allclose(ours, theirs, atol=1e-5 if dtype is None else 0.03)


def test_batch_statistics_have_a_type_of_their_own():
    layer = BatchNorm(3, rngs=nnx.Rngs(0))
    layer.batch_mode = BatchMode(spans=2)
    x = jax.random.normal(jax.random.key(0), (4, 5, 3))
    layer(x)
    assert (layer.mean[...] == 0).all()
    assert (layer.var[...] == 1).all()
    found = nnx.to_pure_dict(nnx.state(layer, BatchStatistics))
    assert {name: value.shape for name, value in found.items()} == {
        "batch_mean": (2, 3),
        "batch_var": (2, 3),
    }
    np.testing.assert_allclose(found["batch_mean"], x.reshape(2, -1, 3).mean(1), rtol=1e-9)
    with pytest.raises(ValueError, match="twice"):
        layer(x)


@pytest.mark.parametrize("name", ["resnet18", pytest.param("resnet50", marks=pytest.mark.slow)])
def test_kinds_from_the_layers_are_those_of_the_names(name):
    model = Model(name, classes=7, width=4)
    params, _ = jax.eval_shape(model.init, 0)
    assert dict(model.kinds()) == plain.kinds(params)


def test_the_functions_and_the_module_are_the_same_network():
    model = Model("resnet10", classes=5, width=4, stem="small")
    params, stats = jax.jit(model.init)(3)
    module = model.module(params, stats)
    images = batch(0)[0].astype(np.float32)
    logits = nnx.jit(lambda module: module(images))(module)
    assert (logits == jax.jit(model.apply)(params, stats, images)).all()
    again = unflatten_paths(
        {"/".join(map(str, p)): v[...] for p, v in nnx.to_flat_state(nnx.state(module, nnx.Param))}
    )
    jax.tree.map(np.testing.assert_array_equal, again, params)
