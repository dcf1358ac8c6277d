"""The reference against NumPy loops, hand values, finite differences and optax.

Everything runs in float64. `EXACT` allows for the order of summation only: a few thousand terms of
order one, each rounded at 1e-16, then divided by standard deviations not far below one.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests import reference

EXACT = {"rtol": 1e-10, "atol": 1e-12}
MEAN, STD = (123.0, 117.0, 104.0), (58.0, 57.0, 60.0)
NET = {"depth": 6, "epsilon": 1e-3}
HYPER = {"learning_rate": 0.5, "trust_coefficient": 0.02, "lars_epsilon": 1e-3}
HYPER |= {"momentum": 0.9, "weight_decay": 0.01}
SCORES = {**NET, "mean": MEAN, "std": STD, "label_smoothing": 0.1}
CASE = {**SCORES, **HYPER, "norm_momentum": 0.7, "unbiased": True}


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def make(depth=6):
    """Parameters, statistics, a velocity that is not zero, eight images and their labels."""
    sizes = {"width": 4, "channels": 3, "classes": 7}
    params, stats = reference.random_params(1, depth=depth, dtype=np.float64, **sizes)
    rng = np.random.default_rng(2)
    velocity = jax.tree.map(lambda w: rng.normal(0, 0.1, w.shape), params)
    pixels = rng.integers(0, 256, (8, 8, 8, 3), dtype=np.uint8)
    return params, stats, velocity, pixels, rng.integers(0, 7, 8)


@functools.cache
def take_step(workers, span, half=None, optimizer="lars_mlperf", unbiased=True):
    params, stats, velocity, pixels, labels = make()
    if half is not None:
        pixels, labels = (np.split(part, 2)[half] for part in (pixels, labels))
    case = {**CASE, "workers": workers, "span": span, "optimizer": optimizer, "unbiased": unbiased}
    return reference.step(params, stats, velocity, pixels, labels, **case)


def assert_trees_close(actual, expected, **tolerance):
    actual, expected = reference.flatten(actual), reference.flatten(expected)
    assert actual.keys() == expected.keys()
    for path, leaf in expected.items():
        np.testing.assert_allclose(actual[path], leaf, err_msg=path, **tolerance)


def numpy_conv(x, kernel, stride, padding):
    x = np.pad(x, [(0, 0), (padding, padding), (padding, padding), (0, 0)])
    kh, kw, _, outputs = kernel.shape
    h, w = ((n - k) // stride + 1 for n, k in zip(x.shape[1:3], (kh, kw), strict=True))
    y = np.zeros((len(x), h, w, outputs))
    for i, j, o in np.ndindex(h, w, outputs):
        window = x[:, i * stride : i * stride + kh, j * stride : j * stride + kw, :]
        y[:, i, j, o] = [np.sum(image * kernel[..., o]) for image in window]
    return y


def numpy_norm(x, bn):
    flat = x.reshape(-1, x.shape[-1])
    deviation = np.sqrt(np.var(flat, axis=0) + NET["epsilon"])
    return ((flat - flat.mean(0)) / deviation * bn["scale"] + bn["bias"]).reshape(x.shape)


@pytest.mark.parametrize(("path", "stride"), [("stages/0/blocks/1", 1), ("stages/1/blocks/0", 2)])
def test_block_equals_numpy(path, stride):
    params, stats, *_ = make(depth=18)
    _, stage, _, block = path.split("/")
    p = params["stages"][stage]["blocks"][block]
    x = np.random.default_rng(3).normal(size=(3, 6, 6, p["conv1"]["kernel"].shape[2]))
    y = np.maximum(numpy_norm(numpy_conv(x, p["conv1"]["kernel"], stride, 1), p["bn1"]), 0)
    y = numpy_norm(numpy_conv(y, p["conv2"]["kernel"], 1, 1), p["bn2"])
    shortcut = x
    if stride == 2:
        shortcut = numpy_conv(x, p["downsample_conv"]["kernel"], stride, 0)
        shortcut = numpy_norm(shortcut, p["downsample_bn"])
    net = reference._Net(params, stats, NET["epsilon"], train=True)
    actual = net.block(jnp.asarray(x), path, stride)
    np.testing.assert_allclose(actual, np.maximum(y + shortcut, 0), **EXACT)


def test_evaluation_with_the_batch_statistics_is_the_training_pass():
    params, stats, _, pixels, labels = make()
    images = (pixels - np.array(MEAN)) / np.array(STD)
    logits, batch = reference.forward(params, stats, images, train=True, **NET)
    own = {f"{path}/mean": mean for path, (mean, _, _) in batch.items()}
    own |= {f"{path}/var": var for path, (_, var, _) in batch.items()}
    own = reference.unflatten(own, np.float64)
    loss, top1, top5 = reference.evaluate(params, own, pixels, labels, **SCORES)
    result = take_step(1, 1)
    np.testing.assert_allclose(loss, result.loss * len(pixels), **EXACT)
    ranks = np.sum(np.asarray(logits) > np.asarray(logits)[np.arange(8), labels][:, None], axis=1)
    assert (top1, top5) == (result.correct, np.sum(ranks < 5))


def test_label_smoothing_by_hand():
    # p = (.1, .2, .3, .4), q = (.05, .05, .05, .85):
    # .05·2.302585 + .05·1.609438 + .05·1.203973 + .85·0.916291 = 1.0346471 (given to 7 digits).
    loss = reference.cross_entropy(jnp.log(jnp.array([[1.0, 2, 3, 4]])), np.array([3]), 0.2)
    np.testing.assert_allclose(loss, [1.0346471], atol=2e-7)


def test_gradient_equals_central_differences():
    """One unit direction through all parameters, at h = 1e-6.

    The error is rounding, about 1e-15 / h, and truncation, h² times a third derivative of up to
    1e3: both 1e-9, where the slope is 1e-2 or more.
    """
    params, stats, _, pixels, labels = make()
    result = take_step(2, 1, optimizer="sgd")
    flat, gradients = reference.flatten(params), reference.flatten(result.gradients)
    images = (pixels - np.array(MEAN)) / np.array(STD)

    @jax.jit
    def span_logits(params, span_images):
        return reference.forward(params, stats, span_images, train=True, **NET)[0]

    def loss(flat):
        tree = reference.unflatten(flat, np.float64)
        z = np.concatenate([span_logits(tree, images[i : i + 4]) for i in (0, 4)])
        log_p = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
        return -np.mean(0.9 * log_p[np.arange(8), labels] + 0.1 * log_p.mean(axis=1))

    np.testing.assert_allclose(result.loss, loss(flat), **EXACT)

    def difference(direction, h=1e-6):
        ahead, behind = (
            loss(flat | {path: flat[path] + sign * h * d for path, d in direction.items()})
            for sign in (1, -1)
        )
        return (ahead - behind) / (2 * h)

    rng = np.random.default_rng(4)
    everywhere = {path: rng.normal(0, 1, w.shape) for path, w in flat.items()}
    norm = np.sqrt(sum(np.sum(d**2) for d in everywhere.values()))
    everywhere = {path: d / norm for path, d in everywhere.items()}
    slope = sum(np.sum(gradients[path] * d) for path, d in everywhere.items())
    assert abs(slope) > 1e-2
    np.testing.assert_allclose(slope, difference(everywhere), rtol=1e-6)


def test_spans_are_separate_batches_averaged():
    whole = take_step(2, 1)
    first, second = take_step(1, 1, half=0), take_step(1, 1, half=1)
    for field in ("gradients", "stats"):
        pair = getattr(first, field), getattr(second, field)
        average = jax.tree.map(lambda a, b: (a + b) / 2, *pair)
        assert_trees_close(getattr(whole, field), average, **EXACT)
    np.testing.assert_allclose(whole.loss, (first.loss + second.loss) / 2, **EXACT)
    assert whole.correct == first.correct + second.correct


def test_a_span_is_one_batch():
    joined, one, apart = take_step(4, 2), take_step(2, 1), take_step(2, 2)
    for field in ("params", "stats", "velocity", "gradients"):
        assert_trees_close(getattr(joined, field), getattr(one, field), **EXACT)
    a, b = (result.gradients["stem"]["conv"]["kernel"] for result in (joined, apart))
    assert np.linalg.norm(a - b) > 0.05 * np.linalg.norm(a)


@pytest.mark.parametrize("unbiased", [True, False])
def test_running_statistics(unbiased):
    params, stats, _, pixels, _ = make()
    images = (pixels - np.array(MEAN)) / np.array(STD)
    x = numpy_conv(images, params["stem"]["conv"]["kernel"], 1, 1).reshape(2, -1, 4)  # span, value
    old, new = stats["stem"]["bn"], take_step(2, 1, unbiased=unbiased).stats["stem"]["bn"]
    var = x.var(axis=1, ddof=1 if unbiased else 0)
    np.testing.assert_allclose(new["mean"], 0.7 * old["mean"] + 0.3 * x.mean((0, 1)), **EXACT)
    np.testing.assert_allclose(new["var"], 0.7 * old["var"] + 0.3 * var.mean(0), **EXACT)


def hand_update(path, w, g, optimizer="lars_mlperf", **changes):
    hyper = {"learning_rate": 6.0, "trust_coefficient": 0.01, "lars_epsilon": 0.5}
    hyper |= {"momentum": 0.9, "weight_decay": 0.1, "optimizer": optimizer, **changes}
    return reference.update(path, np.array(w), np.array([1.0, -1.0]), np.array(g), **hyper)


def test_mlperf_lars_by_hand():
    # ‖w‖ = 5, ‖g‖ = 2: trust = 0.01·5 / (2 + 0.1·5 + 0.5) = 1/60, times lr 6 = 0.1;
    # g + wd·w = (0.3, 2.4); v = (0.9 + 0.03, −0.9 + 0.24).
    w, v = hand_update("stem/conv/kernel", [3.0, 4.0], [0.0, 2.0])
    np.testing.assert_allclose([v, w], [[0.93, -0.66], [2.07, 4.66]], rtol=1e-14)


@pytest.mark.parametrize("optimizer", ["lars_mlperf", "lars_optax"])
def test_lars_without_trust_ratio(optimizer):
    for path in ("stem/bn/scale", "stem/bn/bias", "head/bias"):
        w, v = hand_update(path, [3.0, 4.0], [0.0, 2.0], optimizer)
        np.testing.assert_allclose([v, w], [[0.9, 11.1], [2.1, -7.1]], rtol=1e-14)
    _, v = hand_update("head/kernel", [0.0, 0.0], [0.0, 2.0], optimizer)
    np.testing.assert_allclose(v, [0.9, 11.1], rtol=1e-14)
    # A zero gradient: MLPerf's ratio is 1; optax's norm is that of wd·w, 0.5, and its ratio 0.05.
    _, v = hand_update("head/kernel", [3.0, 4.0], [0.0, 0.0], optimizer)
    ratio = {"lars_mlperf": 1.0, "lars_optax": 0.05}[optimizer]
    np.testing.assert_allclose(v, [0.9 + 1.8 * ratio, -0.9 + 2.4 * ratio], rtol=1e-14)


@pytest.mark.parametrize(
    ("optimizer", "nesterov"), [("lars_optax", False), ("sgd", False), ("sgd", True)]
)
def test_three_updates_equal_optax(optimizer, nesterov):
    params, *_ = make()
    flat = reference.flatten(params)
    decayed = {path: path.endswith("kernel") for path in flat}
    if optimizer == "sgd":
        decay = optax.add_decayed_weights(0.01, decayed)
        other = optax.chain(decay, optax.sgd(0.5, momentum=0.9, nesterov=nesterov))
    else:
        other = optax.lars(0.5, 0.01, decayed, 0.02, 1e-3, decayed, momentum=0.9)
    hyper = {**HYPER, "optimizer": optimizer, "nesterov": nesterov}
    theirs, ours, state = flat, flat, jax.jit(other.init)(flat)
    update = jax.jit(other.update)
    velocity = {path: np.zeros(w.shape) for path, w in flat.items()}
    rng = np.random.default_rng(5)
    for _ in range(3):
        gradients = {path: rng.normal(0, 0.1, w.shape) for path, w in flat.items()}
        change, state = update(gradients, state, theirs)
        theirs = optax.apply_updates(theirs, change)
        new = {
            path: reference.update(path, ours[path], velocity[path], g, **hyper)
            for path, g in gradients.items()
        }
        ours, velocity = ({path: pair[i] for path, pair in new.items()} for i in (0, 1))
    assert_trees_close(ours, theirs, **EXACT)
