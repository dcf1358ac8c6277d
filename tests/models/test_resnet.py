import jax
import jax.numpy as jnp
import numpy as np
import pytest

from largebatch.models import DEPTHS, BatchMode, Model
from largebatch.models.convolution import blurred
from largebatch.trees import flatten_paths

# Parameters of torchvision's models with 1,000 classes; it has no ResNet-10, which lacks four
# blocks of ResNet-18: 2·9·w² + 2·2·w for w = 64, 128, 256, 512.
TORCHVISION = {
    "resnet10": 11_689_512 - sum(18 * w * w + 4 * w for w in (64, 128, 256, 512)),
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
}


def small(**options):
    options = {"name": "resnet10", "classes": 5, "channels": 3, "width": 4} | options
    return Model(**options)


@pytest.mark.parametrize(
    "name",
    [
        name
        if name in ("resnet10", "resnet18", "resnet50")
        else pytest.param(name, marks=pytest.mark.slow)
        for name in DEPTHS
    ],
)
def test_as_many_parameters_as_torchvision(name):
    params, stats = jax.eval_shape(Model(name, classes=1000).init, 0)
    assert sum(x.size for x in jax.tree.leaves(params)) == TORCHVISION[name]
    norms = [p for p in flatten_paths(params) if p.endswith("/scale")]
    assert len(jax.tree.leaves(stats)) == 2 * len(norms)
    assert {x.dtype for x in jax.tree.leaves((params, stats))} == {jnp.dtype("float32")}


def test_parameter_paths_are_complete_and_in_forward_order():
    model = Model("resnet50", classes=1000)
    paths = model.parameter_paths()
    assert sorted(paths) == sorted(flatten_paths(jax.eval_shape(model.init, 0)[0]))
    assert paths[0] == "stem/conv/kernel"
    assert paths[-2:] == ("head/kernel", "head/bias")
    first = [path for path in paths if path.startswith("stages/0/blocks/0/conv")]
    assert first == [f"stages/0/blocks/0/conv{i}/kernel" for i in (1, 2, 3)]


def test_initial_values_are_torchvisions():
    params, stats = jax.jit(Model("resnet10", classes=1000, width=16).init)(0)
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


def test_other_initial_values():
    model = Model(
        "resnet10",
        classes=1000,
        width=16,
        gamma=1.4,
        last_gamma=0.0,
        init_fan="fan_in",
        head_deviation=0.01,
    )
    flat = flatten_paths(jax.jit(model.init)(0)[0])
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
    plain, soft = (Model("resnet18", classes=3, width=16, blur_pool=b) for b in (False, True))
    shapes = [jax.eval_shape(m.init, 0) for m in (plain, soft)]
    assert jax.tree.structure(shapes[0]) == jax.tree.structure(shapes[1])
    texts = [
        str(jax.make_jaxpr(m.apply)(*shapes[0], np.zeros((1, 32, 32, 3), np.float32)))
        for m in (plain, soft)
    ]
    # Three stages begin with stride 2, each in its branch and in its projection; the stem's
    # convolution sees three channels and stays.
    grouped = [text.count("feature_group_count=") for text in texts]
    single = [text.count("feature_group_count=1\n") for text in texts]
    assert [a - b for a, b in zip(grouped, single, strict=True)] == [0, 6]


def test_the_seed_alone_decides_the_parameters():
    model = small()
    init = jax.jit(model.init)
    one, same, other = (flatten_paths(init(seed)[0]) for seed in (3, 3, 4))
    for path in one:
        np.testing.assert_array_equal(one[path], same[path])
    assert (one["stem/conv/kernel"] != other["stem/conv/kernel"]).all()
    # Kernels of one shape differ among themselves.
    assert (one["stages/0/blocks/0/conv1/kernel"] != one["stages/0/blocks/0/conv2/kernel"]).all()


@pytest.mark.parametrize("size", [32, pytest.param(96, marks=pytest.mark.slow)])
def test_space_to_depth_is_the_same_function_of_the_same_parameters(size):
    plain, blocked = small(), small(stem="space_to_depth")
    params, stats = jax.jit(plain.init)(0)
    assert jax.tree.structure(params) == jax.tree.structure(jax.eval_shape(blocked.init, 0)[0])
    images = jax.random.normal(jax.random.key(1), (4, size, size, 3))

    def results(model):
        def loss(params):
            logits, batch = model.apply_train(params, stats, images, BatchMode(spans=1))
            return (logits**2).sum(), (logits, batch)

        return jax.jit(jax.grad(loss, has_aux=True))(params)

    with jax.enable_x64(True):
        params, stats, images = jax.tree.map(
            lambda x: np.asarray(x, "float64"), (params, stats, images)
        )
        for a, b in zip(*map(jax.tree.leaves, (results(plain), results(blocked))), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9 * float(abs(a).max()))


@pytest.mark.parametrize("pointwise", ["matmul", "convolution"])
def test_bfloat16_computes_in_bfloat16_and_keeps_the_rest_wide(pointwise):
    model = small(stem="small", dtype="bfloat16", pointwise=pointwise)
    params, stats = jax.jit(model.init)(0)
    images = jax.random.normal(jax.random.key(0), (4, 8, 8, 3))

    def loss(params):
        logits, batch = model.apply_train(params, stats, images, BatchMode(spans=2))
        assert logits.dtype == jnp.float32
        assert {x.dtype for x in jax.tree.leaves(batch)} == {jnp.dtype("float32")}
        return (logits**2).sum()

    gradients = jax.eval_shape(jax.grad(loss), params)
    assert {x.dtype for x in jax.tree.leaves(gradients)} == {jnp.dtype("float32")}
    text = str(jax.make_jaxpr(loss)(params))
    lines = [line for line in text.splitlines() if " = conv_general_dilated" in line]
    products = [line for line in text.splitlines() if " = dot_general" in line]
    assert (len(lines), len(products)) == ((5, 8) if pointwise == "matmul" else (12, 1))
    products.pop()  # the head
    for line in lines + products:
        assert line.split("=")[0].strip().split(":")[1].startswith("bf16")
    exact = jax.jit(small(stem="small").apply)(params, stats, images)
    close = jax.jit(model.apply)(params, stats, images)
    # Twenty layers of 2⁻⁹ roundings.
    assert 0 < abs(close - exact).max() / abs(exact).max() < 0.1
