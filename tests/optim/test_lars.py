"""Each flavour of LARS against the published implementation, written down again in NumPy.

That of optax is compared with optax itself. The functions below keep to the form of their sources,
which scale, subtract and store in different orders. Nothing is shared with the package but the
rates of the steps. float64, five steps at a learning rate that rises and falls; one weight is zero,
one gradient is zero for a step, and there are parameters of the kinds that are skipped.
"""

import jax
import numpy as np
import optax
import pytest

from largebatch import optim
from largebatch.errors import ConfigError
from tests.optim import plain

STEP = 10  # samples
SCHEDULE = optim.Schedule(
    peak=4.0, start=0.5, warmup=20, decay_end=50, decay="polynomial", end=0.25
)
DECAY, MOMENTUM = 0.05, 0.9
OWN_WARMUP = 20  # of Fujitsu's weight decay, from 0
RATES = [SCHEDULE(STEP * i) for i in range(5)]
# Some twenty operations a step, each wrong by 1.1e-16 at most, relative to the largest element.
TOLERANCE = 1e-14


@pytest.fixture(autouse=True, scope="module")
def _float64():
    with jax.enable_x64(True):
        yield


def problem():
    """Weights, and gradients of each step, by path."""
    draw = np.random.default_rng(3)
    shapes = {
        "conv1/kernel": (3, 3, 2, 4),
        "conv2/kernel": (4, 5),
        "conv3/kernel": (3, 2),
        "bn1/scale": (4,),
        "bn1/bias": (4,),
        "head/kernel": (4, 3),
        "head/bias": (3,),
    }
    weights = {path: draw.normal(0, 1, shape) for path, shape in shapes.items()}
    weights["conv2/kernel"][:] = 0
    gradients = [
        {path: draw.normal(0, 0.1, shape) for path, shape in shapes.items()} for _ in RATES
    ]
    gradients[2]["conv1/kernel"][:] = 0
    gradients[2]["bn1/bias"][:] = 0
    # Zero weight and gradient at once.
    for gradient in gradients[:2]:
        gradient["conv3/kernel"][:] = 0
    weights["conv3/kernel"][:] = 0
    return weights, gradients


def norm(x):
    return np.sqrt(np.sum(x * x))


def is_kernel(path):
    return path.endswith("kernel")


def you2017(path, w, v, g, i):
    if not is_kernel(path):
        v = MOMENTUM * v + RATES[i] * g
        return w - v, v
    below = norm(g) + DECAY * norm(w)
    local = 0.001 * norm(w) / below if below else 1.0
    v = MOMENTUM * v + RATES[i] * local * (g + DECAY * w)
    return w - v, v


def mlperf(path, w, v, g, i):
    scaled = RATES[i]
    if is_kernel(path):
        trust = 1.0
        if norm(w) > 0 and norm(g) > 0:
            trust = 0.001 * norm(w) / (norm(g) + DECAY * norm(w) + 0.0)
        scaled *= trust
        g = g + DECAY * w
    accumulated = v * MOMENTUM + g * scaled
    return w - 1.0 * accumulated, accumulated


def nvidia(path, w, v, g, i):
    rate, last = RATES[i], RATES[max(0, i - 1)]
    decay = 0.0 if path.startswith("bn") else DECAY
    if is_kernel(path) and norm(w) > 0 and norm(g) > 0:
        rate = rate * 0.001 * norm(w) / (norm(g) + decay * norm(w) + 0)
    moved = MOMENTUM * (RATES[i] / last) * -v - rate * decay * w - rate * g
    return w + moved, -moved


def fujitsu(path, w, v, g, i):
    # Of the whole rate of the weight decay, which is kept with the peak learning rate in it.
    lr, wd = 4.0, DECAY * 4.0 if is_kernel(path) else 0.0
    position = STEP * i
    coefficient = RATES[i] / 4.0
    fallen = 1.0 if position < 20 else coefficient
    decay_coefficient = min(1.0, position / OWN_WARMUP) * fallen
    if is_kernel(path):
        scale = 0.0025 * norm(w) / (norm(g) + norm(w) * wd + 1e-9)
        if scale > 0:
            lr, wd = lr * scale, wd * scale
    moved = MOMENTUM * -v - wd * w * decay_coefficient - lr * coefficient * g
    return w + moved, -moved


def apex(path, w, v, g, i):
    del path
    if norm(w) != 0 and norm(g) != 0:
        adaptive = 0.02 * norm(w) / (norm(g) + norm(w) * DECAY + 1e-8)
        adaptive = min(adaptive / RATES[i], 1)
        g = (g + DECAY * w) * adaptive
    v = MOMENTUM * v + g
    return w - RATES[i] * v, v


def ascend(path, w, v, g, i):
    if is_kernel(path):
        coefficient = 0.001 * norm(w) / (DECAY * norm(w) + norm(g) + 1e-5)
        g = (w * DECAY + g) * coefficient
    v = v * MOMENTUM + g
    return w - RATES[i] * v, v


SOURCES = {
    "you2017": you2017,
    "mlperf": mlperf,
    "nvidia": nvidia,
    "fujitsu": fujitsu,
    "apex": apex,
    "ascend": ascend,
}


def published(flavour):
    """Weights and velocities by path after each step."""
    weights, gradients = problem()
    velocities = {path: np.zeros_like(w) for path, w in weights.items()}
    for i, gradient in enumerate(gradients):
        for path, g in gradient.items():
            weights[path], velocities[path] = SOURCES[flavour](
                path, weights[path], velocities[path], g, i
            )
        yield dict(weights), dict(velocities)


def nested(flat):
    tree = {}
    for path, value in flat.items():
        module, name = path.split("/")
        tree.setdefault(module, {})[name] = value
    return tree


def rates(flavour):
    """What the host gives each step."""
    made = optim.RateSchedule(
        SCHEDULE,
        weight_decay=DECAY,
        follows=flavour == "fujitsu",
        momentum=MOMENTUM,
        corrected=optim.FLAVOURS[flavour].rate == "inside_corrected",
    )
    positions = range(0, STEP * len(RATES), STEP)
    before = [None, *positions]
    return [made.at(p, b, i) for i, (p, b) in enumerate(zip(positions, before, strict=False), 1)]


def ours(flavour):
    """Weights after each step, and the last state."""
    settings, kinds = optim.FLAVOURS[flavour], plain.kinds(nested(problem()[0]))
    rule = optim.lars(
        flavour=flavour,
        trust_mask=optim.skipping(settings.trust_skip, kinds),
        decay_mask=optim.skipping(settings.decay_skip, kinds),
    )
    weights, gradients = (problem()[0], [nested(g) for g in problem()[1]])
    compiled = optax.GradientTransformationExtraArgs(rule.init, jax.jit(rule.update))
    return plain.run(compiled, nested(weights), gradients, rates(flavour))


@pytest.mark.parametrize("flavour", SOURCES)
def test_equals_the_published_implementation(flavour):
    with jax.debug_nans(True):  # stops at 0 / 0, even where it is not used
        history, state = ours(flavour)
    expected = list(published(flavour))
    for (weights, _), after in zip(expected, history, strict=True):
        # conv2 may be zero still: absolute, to a weight of about 1.
        jax.tree.map(
            lambda one, two: np.testing.assert_allclose(one, two, rtol=TOLERANCE, atol=TOLERANCE),
            after,
            nested(weights),
        )
    for path, wanted in expected[-1][1].items():
        module, name = path.split("/")
        found = np.asarray(state.momentum[module][name])
        np.testing.assert_allclose(found, wanted, rtol=0, atol=TOLERANCE * np.abs(wanted).max())


@pytest.mark.parametrize(
    ("masks", "nesterov", "dtype", "tolerance"),
    [
        ({}, False, np.float32, 1e-6),  # 7 steps of some 10 operations, each wrong by 6e-8 at most
        (dict.fromkeys(("trust_mask", "decay_mask"), plain.only("kernel")), True, float, 1e-14),
        ({"trust_mask": plain.only("bias")}, False, float, 1e-14),
        ({"decay_mask": lambda w: jax.tree.map(lambda x: x.ndim == 1, w)}, True, float, 1e-14),
    ],
)
def test_optax_flavour_is_optax_lars(masks, nesterov, dtype, tolerance):
    learning_rates = (0.5, 2.0, 5.0, 3.0, 1.0, 0.25, 0.0)
    with jax.enable_x64(dtype is float):
        draw = np.random.default_rng(5)
        params = plain.random_tree(draw, dtype)
        grads = [plain.random_tree(draw, dtype, deviation=0.1) for _ in learning_rates]
        rule = optim.lars(flavour="optax", nesterov=nesterov, epsilon=1e-3, **masks)
        given = {"momentum": MOMENTUM, "weight_decay": DECAY}
        history, _ = plain.run(rule, params, grads, learning_rates, **given)
        table = np.asarray(learning_rates, dtype)
        theirs = optax.lars(
            lambda count: jax.numpy.asarray(table)[count],
            weight_decay=DECAY,
            weight_decay_mask=masks.get("decay_mask", True),
            trust_coefficient=0.001,
            eps=1e-3,
            trust_ratio_mask=masks.get("trust_mask", True),
            momentum=MOMENTUM,
            nesterov=nesterov,
        )
        for ours, expected in zip(history, plain.run_optax(theirs, params, grads), strict=True):
            plain.assert_close(ours, expected, tolerance)


def test_trust_clip_by_hand():
    def ratio(e, **chosen):
        """Of ‖w‖ = 5 and ‖g‖ = 10: e / 2 without limits."""
        params, grads = {"w": np.array([3.0, 4.0])}, {"w": np.array([6.0, 8.0])}
        rule = optim.lars(trust_coefficient=e, trust_clip=(0.3, 0.4), **chosen)
        return plain.run(rule, params, [grads], [1.0])[1].report.trust_ratio[0]

    assert [ratio(0.7), ratio(0.5), ratio(0.9)] == [0.35, 0.3, 0.4]
    assert ratio(0.7, trust_mask=False) == 1  # what has no ratio has none to clip


def test_settings_of_flavours():
    assert optim.lars_settings("nvidia", epsilon="auto", rate=None) == optim.FLAVOURS["nvidia"]
    assert optim.lars_settings("apex rate_clip=False", trust_skip=("bn",)).trust_skip == ("bn",)
    for wrong in (
        "mlperv",
        "optax denominator_decay='decay_times_peak'",
        "mlperf trust_clip=(2,1)",
    ):
        with pytest.raises(ConfigError, match=r"optimizer\.flavour"):
            optim.lars_settings(wrong)
