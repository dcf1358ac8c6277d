"""Each flavour of LARS against the published implementation, written down again in NumPy.

The functions below keep to the form of their sources, which scale, subtract and store in different
orders. Nothing is shared with the package but the rates of the steps. float64, five steps at a
learning rate that rises and falls; one weight is zero, one gradient is zero for a step, and there
are parameters of the kinds that are skipped.
"""

import functools
import itertools

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


@functools.cache
def ours(flavour):
    """Weights after each step and the last state; the state after the first step too."""
    settings, kinds = optim.FLAVOURS[flavour], plain.kinds(nested(problem()[0]))
    rule = optim.lars(
        flavour=flavour,
        trust_mask=optim.skipping(settings.trust_skip, kinds),
        decay_mask=optim.skipping(settings.decay_skip, kinds),
    )
    weights, gradients = (problem()[0], [nested(g) for g in problem()[1]])
    compiled = optax.GradientTransformationExtraArgs(rule.init, jax.jit(rule.update))
    given = rates(flavour)
    _, first = plain.run(compiled, nested(weights), gradients[:1], given[:1])
    return *plain.run(compiled, nested(weights), gradients, given), first


@pytest.mark.parametrize("flavour", SOURCES)
def test_equals_the_published_implementation(flavour):
    history, state, _ = ours(flavour)
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


def test_all_flavours_differ():
    """By far more than the tolerance, so that none passes for another."""
    ends = {flavour: ours(flavour)[0][-1] for flavour in optim.FLAVOURS}
    for one, other in itertools.combinations(ends, 2):
        apart = jax.tree.map(lambda a, b: np.abs(a - b).max(), ends[one], ends[other])
        assert max(jax.tree.leaves(apart)) > 1e-6, (one, other)


def test_a_zero_weight_stays_where_no_rule_frees_it():
    stays = {"mlperf": False, "you2017": True, "nvidia": False, "fujitsu": False}
    stays |= {"optax": False, "apex": False, "ascend": True}
    for flavour, expected in stays.items():
        history, _, state = ours(flavour)
        assert (not np.any(history[0]["conv2"]["kernel"])) == expected, flavour
        # The leaves in order: bn1/bias, bn1/scale, conv1, conv2, conv3, head/bias, head/kernel.
        assert float(state.report.trust_ratio[3]) == (0.0 if expected else 1.0)


@pytest.fixture
def take():
    """Of (3, 4) with gradient g: the first ratio, and the weight after one step."""

    def step(g, rate=1.0, decay=0.0, w=(3.0, 4.0), flavour="mlperf", peak_decay=0.0, **chosen):
        rule = optim.lars(flavour=flavour, **chosen)
        given = optim.Rates(rate, decay, 0.5, peak_decay=peak_decay)
        params, grads = ({"w": np.array(x, float)} for x in (w, g))
        (after,), state = plain.run(rule, params, [grads], [given])
        return float(state.report.trust_ratio[0]), after["w"]

    return step


def test_trust_clip_by_hand(take):
    # ‖w‖ = 5, ‖g‖ = 10: e / 2, within [0.3, 0.4] and without
    assert take((6, 8), trust_coefficient=0.7, trust_clip=(0.3, 0.4))[0] == 0.35
    assert take((6, 8), trust_coefficient=0.5, trust_clip=(0.3, 0.4))[0] == 0.3
    assert take((6, 8), trust_coefficient=0.9, trust_clip=(0.3, 0.4))[0] == 0.4
    # What has no ratio has none to clip.
    assert take((6, 8), trust_clip=(0.3, 0.4), trust_mask=False)[0] == 1


def test_rate_clip_by_hand(take):
    # ratio 0.25; n = 0.5: 0.25 / 0.5, a layer's rate of 0.25; n = 0.1: 1, a rate of 0.1
    ratio, after = take((6, 8), 0.5, trust_coefficient=0.5, rate_clip=True)
    assert ratio == 0.5
    np.testing.assert_allclose(after, (3 - 0.25 * 6, 4 - 0.25 * 8), rtol=1e-15)
    ratio, after = take((6, 8), 0.1, trust_coefficient=0.5, rate_clip=True)
    assert ratio == 1
    np.testing.assert_allclose(after, (2.4, 3.2), rtol=1e-15)
    with jax.debug_nans(True):
        assert take((6, 8), 0.0, trust_coefficient=0.5, rate_clip=True)[0] == 1


@pytest.mark.parametrize(
    ("rule", "weight", "gradient", "ratio"),
    [
        # (3, 4) and (0, 0): ‖g‖ + 0.1·5 = 0.5 and so e·5 / 0.5 = 10·e, where a zero does not count
        ("either", (3, 4), (0, 0), 1.0),
        ("weight", (3, 4), (0, 0), 5.0),
        ("undecayed", (3, 4), (0, 0), 0.0),
        ("none", (3, 4), (0, 0), 5.0),
        ("either", (0, 0), (3, 4), 1.0),
        ("weight", (0, 0), (3, 4), 1.0),
        ("undecayed", (0, 0), (3, 4), 1.0),
        ("none", (0, 0), (3, 4), 0.0),
        ("none", (0, 0), (0, 0), 0.0),
        ("weight", (0, 0), (0, 0), 1.0),
    ],
)
def test_zero_norms_by_hand(take, rule, weight, gradient, ratio):
    with jax.debug_nans(True):  # stops at 0 / 0, even where it is not used
        found, after = take(gradient, decay=0.1, w=weight, zero_norm=rule, trust_coefficient=0.5)
    assert found == pytest.approx(ratio, rel=1e-15)
    moved = ratio * (np.array(gradient) + 0.1 * np.array(weight))
    np.testing.assert_allclose(after, weight - moved, rtol=1e-14)


def test_outside_rates_scale_the_whole_velocity():
    # v = 0.5·(1, 1)·r + r·(1, 1) for ratios of 1: outside, the second step is 2·(0.5 + 1).
    rule = optim.lars(flavour="mlperf", rate="outside", trust_mask=False)
    grads = [{"w": np.ones(2)}] * 2
    (_, after), state = plain.run(rule, {"w": np.zeros(2)}, grads, (1.0, 2.0), momentum=0.5)
    np.testing.assert_allclose(after["w"], -1.0 - 2 * 1.5, rtol=1e-15)
    np.testing.assert_allclose(state.momentum["w"], 1.5, rtol=1e-15)


def test_settings_of_flavours():
    assert optim.lars_settings("nvidia", epsilon="auto", rate=None) == optim.FLAVOURS["nvidia"]
    assert optim.lars_settings("apex", trust_skip=("bn",)).trust_skip == ("bn",)
    with pytest.raises(ConfigError, match="'mlperf'"):
        optim.lars_settings("mlperv")
    with pytest.raises(ConfigError, match="decay_times_peak"):
        optim.lars_settings("optax", denominator_decay="decay_times_peak")
    for clip in ((1.0,), (2.0, 1.0)):
        with pytest.raises(ConfigError, match=r"trust_clip="):
            optim.lars_settings("mlperf", trust_clip=clip)
