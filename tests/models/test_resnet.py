"""`ResNet` and its layers: parameters, initial values, forms, and beside Flax's own layers."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from largebatch.models import BatchMode, BatchNorm, Conv, Model, ResNet
from largebatch.models.convolution import blurred
from largebatch.models.resnet import Stem
from largebatch.trees import flatten_paths
from tests.optim import plain

# Parameters of torchvision's models with 1,000 classes.
TORCHVISION = {
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
}


@pytest.mark.parametrize("name", TORCHVISION)
def test_parameters_are_those_of_torchvision_by_kind_and_in_forward_order(name):
    model = Model(name, classes=1000)
    params, stats = jax.eval_shape(model.init, 0)
    assert sum(x.size for x in jax.tree.leaves(params)) == TORCHVISION[name]
    flat = flatten_paths(params)
    norms = [path for path in flat if path.endswith("/scale")]
    assert len(jax.tree.leaves(stats)) == 2 * len(norms)
    assert {x.dtype for x in jax.tree.leaves((params, stats))} == {jnp.dtype("float32")}
    assert dict(model.kinds()) == plain.kinds(params)
    paths = model.parameter_paths()
    assert sorted(paths) == sorted(flat)
    assert paths[0] == "stem/conv/kernel"
    assert paths[-2:] == ("head/kernel", "head/bias")
    first = [path for path in paths if path.startswith("stages/0/blocks/0/conv")]
    depth = 2 if name == "resnet18" else 3
    assert first == [f"stages/0/blocks/0/conv{i}/kernel" for i in range(1, depth + 1)]


def test_initial_values_are_torchvisions():
    params, stats = Model("resnet10", classes=1000, width=16).init(0)
    flat = flatten_paths(params)
    for path in ("stem/conv/kernel", "stages/3/blocks/0/conv2/kernel"):
        kernel = flat[path]
        fan_out = kernel.shape[0] * kernel.shape[1] * kernel.shape[3]
        expected = (2 / fan_out) ** 0.5
        # Standard error of a deviation over N draws is σ/√(2N); five of them.
        assert abs(kernel.std() - expected) < 5 * expected / (2 * kernel.size) ** 0.5
        assert abs(kernel).max() > 3 * expected  # normal, not truncated at two deviations
    for leaf in (flat["head/kernel"], flat["head/bias"]):
        assert abs(leaf).max() <= 128**-0.5
        assert leaf.std() == pytest.approx(128**-0.5 / 3**0.5, rel=0.1)
    assert all((x == 1).all() for p, x in flat.items() if p.endswith("scale"))
    assert all((x == 0).all() for p, x in flat.items() if p.endswith("/bias") and "bn" in p)
    assert all((x == (p.endswith("var"))).all() for p, x in flatten_paths(stats).items())
    # Kernels of one shape differ among themselves.
    assert (flat["stages/0/blocks/0/conv1/kernel"] != flat["stages/0/blocks/0/conv2/kernel"]).all()


def test_other_initial_values():
    options = {"gamma": 1.4, "last_gamma": 0.0, "init_fan": "fan_in", "head_deviation": 0.01}
    model = Model("resnet10", classes=1000, width=16, **options)
    flat = flatten_paths(model.init(0)[0])
    kernel = flat["stages/1/blocks/0/conv1/kernel"]
    assert kernel.std() == pytest.approx((2 / (9 * kernel.shape[2])) ** 0.5, rel=0.05)
    assert flat["head/kernel"].std() == pytest.approx(0.01, rel=0.05)
    assert (flat["head/bias"] == 0).all()
    for path, leaf in flat.items():
        if path.endswith("scale"):
            assert (leaf == np.float32(0.0 if "bn2" in path else 1.4)).all(), path


def test_blurred_is_each_channel_convolved_with_the_triangle():
    x = np.random.default_rng(0).normal(size=(2, 5, 6, 3)).astype(np.float32)
    row = np.pad(x, ((0, 0), (1, 1), (0, 0), (0, 0))) / 4
    row = row[:, :-2] + 2 * row[:, 1:-1] + row[:, 2:]
    both = np.pad(row, ((0, 0), (0, 0), (1, 1), (0, 0))) / 4
    expected = both[:, :, :-2] + 2 * both[:, :, 1:-1] + both[:, :, 2:]
    got = blurred(x, jax.lax.Precision.HIGHEST)
    np.testing.assert_allclose(got, expected, atol=1e-6)  # sums of nine float32 near 1


def test_strided_convolutions_of_enough_channels_are_blurred_first():
    images = np.zeros((1, 32, 32, 3), np.float32)

    def grouped(blurs):
        model = Model("resnet10", classes=3, width=16, blur_pool=blurs)
        text = str(jax.make_jaxpr(model.apply)(*model.shapes(), images))
        return text.count("feature_group_count=") - text.count("feature_group_count=1\n")

    # Three stages begin with stride 2, each in its branch and in its projection; the stem's
    # convolution sees three channels and stays.
    assert (grouped(False), grouped(True)) == (0, 6)


@pytest.mark.parametrize(("width", "computed_on_blocks"), [(14, True), (15, False)])
def test_the_stem_on_blocks_is_the_same_function_of_the_same_parameters(width, computed_on_blocks):
    def results(form):
        rngs = nnx.Rngs(0)
        conv = partial(Conv, use_bias=False, precision="highest", form=form, rngs=rngs)
        stem = Stem(3, 4, "conv7", conv=conv, norm=partial(BatchNorm, rngs=rngs))
        stem.eval()
        graph, params, rest = nnx.split(stem, nnx.Param, ...)
        params, rest = jax.tree.map(lambda x: x.astype("float64"), (params, rest))

        def loss(params, x):
            return jnp.sin(nnx.merge(graph, params, rest)(x)).sum()

        computed = jax.value_and_grad(loss, argnums=(0, 1))
        text = str(jax.make_jaxpr(computed)(params, images))
        assert ("f64[4,4,12,4]" in text) == (computed_on_blocks and form == "blocks")
        return jax.tree.leaves(jax.jit(computed)(params, images))

    with jax.enable_x64(True):
        images = jax.random.normal(jax.random.key(1), (4, 20, width, 3), "float64")
        for a, b in zip(results("plain"), results("blocks"), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9 * float(abs(a).max()))


@pytest.mark.parametrize("form", ["products", "plain"])
def test_bfloat16_computes_in_bfloat16_and_keeps_the_rest_wide(form):
    options = {"classes": 5, "width": 4, "stem": "small", "dtype": "bfloat16"}
    model = Model("resnet10", form=form, **options)
    params, stats = model.shapes()
    images = jnp.ones((4, 8, 8, 3))

    def loss(params, stats):
        logits, batch = model.apply_train(params, stats, images, BatchMode(spans=2))
        assert logits.dtype == jnp.float32
        assert {x.dtype for x in jax.tree.leaves(batch)} == {jnp.dtype("float32")}
        return (logits**2).sum()

    gradients = jax.eval_shape(jax.grad(loss), params, stats)
    assert {x.dtype for x in jax.tree.leaves(gradients)} == {jnp.dtype("float32")}
    text = str(jax.make_jaxpr(loss)(params, stats))
    lines = [line for line in text.splitlines() if " = conv_general_dilated" in line]
    products = [line for line in text.splitlines() if " = dot_general" in line]
    assert (len(lines), len(products)) == ((5, 8) if form == "products" else (12, 1))
    products.pop()  # the head
    for line in lines + products:
        assert line.split("=")[0].strip().split(":")[1].startswith("bf16")


@pytest.fixture
def float64():
    with jax.enable_x64(True):
        yield


def trained(steps=3, **layers):
    """A plain NNX loop; the running statistics must be usable after it."""
    options = {"width": 4, "stem": "small", "last_gamma": 0.5, "rngs": nnx.Rngs(0)}
    model = ResNet("bottleneck", (1, 1), 5, **options, **layers)
    nnx.update(model, jax.tree.map(lambda x: x.astype("float64"), nnx.state(model)))
    optimizer = nnx.Optimizer(model, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)
    draw = np.random.default_rng(0)
    images, labels = draw.normal(1.5, 2, (steps + 1, 6, 8, 8, 3)), draw.integers(0, 5, (steps, 6))

    def loss_of(model, images, labels):
        losses = optax.softmax_cross_entropy_with_integer_labels(model(images), labels)
        return losses.mean()

    @nnx.jit
    def step(model, optimizer, images, labels):
        loss, gradients = nnx.value_and_grad(loss_of)(model, images, labels)
        optimizer.update(model, gradients)
        return loss

    model.train()
    losses = [step(model, optimizer, *batch) for batch in zip(images, labels, strict=False)]
    model.eval()
    logits = nnx.jit(lambda model, images: model(images))(model, images[-1])
    return np.asarray(losses), logits, nnx.to_pure_dict(nnx.state(model))


@pytest.mark.slow
@pytest.mark.usefixtures("float64")
def test_a_plain_loop_equals_one_with_flaxs_layers():
    ours, theirs = trained(), trained(conv=nnx.Conv, norm=nnx.BatchNorm)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12 * float(abs(b).max()))
    assert abs(ours[2]["stem"]["bn"]["mean"]).max() > 1e-3


@pytest.mark.parametrize("options", [{}, {"use_scale": False, "use_bias": False}])
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
