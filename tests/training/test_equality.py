"""The same mathematics on any number of devices, proved in float64.

Rounding in float64 leaves about 1e-15 of the largest value of an array; three steps through seven
layers amplify that to less than 5e-13. EQUAL is two hundred times that, and a million
times below the least mistake known: statistics of a wrong span move gradients by more than 1e-3.
"""

import functools

import jax
import numpy as np
import pytest

from largebatch.training.stage import Stage
from largebatch.trees import flatten_paths
from tests import reference
from tests.optim import plain
from tests.training import worlds

EQUAL = 1e-10
STEPS = 3
SGD = {"name": "sgd", "momentum": 0.9, "weight_decay": 0.0}
LARS = {"name": "lars", "flavour": "mlperf"}
OPTIMIZERS = {
    "sgd": SGD,
    "lars": LARS,
    "nesterov": {"name": "lars", "flavour": "optax", "nesterov": True},
    "apex": {"name": "lars", "flavour": "apex"},
    "lamb": {"name": "lamb", "trust_coefficient": "auto", "epsilon": 1e-2},
    "clipped": SGD | {"clip_norm": 0.1},
    "rmsprop_sgd": {"name": "rmsprop_sgd", "trust_coefficient": "auto", "epsilon": 1e-2},
}
RATES = (0.5, 0.3, 0.4)

# span: (devices, workers at a time); members of a span lie on several devices where m < span.
WORLDS = {
    1: [(1, 1), (1, 2), (2, 4), (4, 1), (8, 1)],
    4: [(1, 4), (2, 2), (4, 1), (8, 1)],
    "all": [(2, 4), (4, 2), (8, 1)],
}
FAST = {(1, 4, 1), (4, 4, 1), ("all", 8, 1)}
"""Microbatches, a span over devices with microbatches, and one without."""
CASES = [
    pytest.param(*case, marks=[] if case in FAST else pytest.mark.slow)
    for case in ((span, *world) for span, worlds_ in WORLDS.items() for world in worlds_)
]


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def config(comm=None, model=worlds.RESNET, **sections):
    """A ResNet of two blocks, reduced in several buckets."""
    return worlds.config(model=model, comm={"bucket_mib": 0.001} | (comm or {}), **sections)


def programs(span, devices, microbatch, optimizer, **sections):
    made = config(norm={"span": span}, optimizer=optimizer, **sections)
    return Stage(worlds.steps(made, devices, microbatch))


@functools.cache
def initial(name):
    """The state that all begin with, on the host: no plan has a part in it."""
    return jax.device_get(programs(1, 1, 8, OPTIMIZERS[name]).init(np.int32(0)))


def trained(run):
    """The state after three steps, and the metrics of each."""
    state = worlds.place(run, initial(run.steps.plan.config.optimizer.name))
    losses = []
    for step in range(STEPS):
        images, labels = worlds.batch(step, run.steps.plan.samples_per_step)
        state, metrics = worlds.run_step(run, state, images, labels, RATES[step])
        losses.append(jax.device_get(metrics))
    return jax.device_get(run.steps.to_checkpoint(state)), losses


@functools.cache
def whole(span, name):
    """All workers at once on one device."""
    return trained(programs(span, 1, 8, OPTIMIZERS[name]))


def error(a, b):
    """Largest difference of two trees, as a share of the largest value of each array; by path."""
    a, b = flatten_paths(a), flatten_paths(b)
    assert a.keys() == b.keys()
    return {
        path: float(np.abs(a[path] - b[path]).max() / max(np.abs(b[path]).max(), 1e-300))
        for path in a
    }


def worst_by_kind(a, b):
    """The largest error of conv, bn, fc and bias parameters."""
    of = plain.kinds(a)
    errors, worst = error(a, b), {}
    for path, value in errors.items():
        worst[of[path]] = max(worst.get(of[path], 0.0), value)
    assert set(worst) == {"conv", "bn", "fc", "bias"}
    return worst


def assert_equal(got, expected):
    (state, metrics), (state_, metrics_) = got, expected
    found = {
        "parameters": worst_by_kind(state.params, state_.params),
        # With SGD the velocity sums raw gradients: it would show a factor, which LARS hides.
        "velocity": worst_by_kind(state.optimizer.momentum, state_.optimizer.momentum),
        "statistics": {"bn": max(error(state.stats, state_.stats).values())},
    }
    for what, by_kind in found.items():
        for kind, value in by_kind.items():
            assert value < EQUAL, (what, kind, value)
    for one, other in zip(metrics, metrics_, strict=True):
        assert one.stop is one.left_out is None  # one process has nobody to tell
        for name in ("loss", "top1", "top5", "gradient_norm"):
            np.testing.assert_allclose(
                getattr(one, name), getattr(other, name), rtol=EQUAL, err_msg=name
            )


@pytest.mark.parametrize(("span", "devices", "microbatch"), CASES)
def test_gradients_statistics_and_parameters_do_not_depend_on_the_devices(
    span, devices, microbatch
):
    run = programs(span, devices, microbatch, SGD)
    plan = run.steps.plan
    assert len(run.steps.buckets) > 1
    assert plan.microbatches == 8 // (devices * microbatch)
    assert plan.members == max(1, plan.span // microbatch)
    assert_equal(trained(run), whole(span, "sgd"))


@pytest.mark.parametrize(
    ("name", "devices", "microbatch"),
    [
        ("lars", 4, 1),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                *(("sgd", 2, 2), ("lars", 8, 1), ("nesterov", 2, 1)),
                *(("apex", 2, 2), ("lamb", 4, 1), ("rmsprop_sgd", 8, 1)),
            )
        ),
    ],
)
def test_the_update_may_be_sharded(name, devices, microbatch):
    options = OPTIMIZERS[name] | {"update": "sharded"}
    run = programs(1, devices, microbatch, options)
    state, metrics = trained(run)
    velocities = jax.tree.leaves(run.state.optimizer.momentum)
    assert {v.sharding.shard_shape(v.shape)[0] for v in velocities} == {1}
    assert {v.shape[0] for v in velocities} == {devices}
    assert_equal((state, metrics), whole(1, name))


@pytest.mark.slow
def test_the_gradient_is_clipped_to_the_same_norm():
    """Over microbatches, and over devices that each have a part of the gradient."""
    options = OPTIMIZERS["clipped"]
    state, metrics = trained(programs(1, 4, 1, options | {"update": "sharded"}))
    assert all(m.gradient_norm > 2 * options["clip_norm"] for m in metrics)
    assert_equal((state, metrics), whole(1, "clipped"))


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["leaf", "tree"])
def test_the_way_of_reducing_does_not_matter(scheme):
    run = programs(1, 4, 1, SGD, comm={"allreduce": scheme})
    assert len(run.steps.buckets) == {"leaf": 20, "tree": 1}[scheme]
    assert_equal(trained(run), whole(1, "sgd"))


def test_spans_are_not_all_the_same():
    """What the tests above would miss if every span were computed as one and the same."""
    for one, other in ((1, 4), (4, "all")):
        a, b = whole(one, "sgd")[0], whole(other, "sgd")[0]
        assert worst_by_kind(a.params, b.params)["conv"] > 1e-3
        assert max(error(a.stats, b.stats).values()) > 1e-3


@pytest.mark.parametrize(
    ("span", "optimizer", "unbiased", "depth"),
    [
        (1, "lars_mlperf", False, 6),
        (4, "lars_optax", True, 6),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                (1, "lars_mlperf", True, 6),
                (4, "lars_optax", False, 6),
                ("all", "sgd", True, 10),
                ("all", "sgd", False, 6),
            )
        ),
    ],
)
def test_equal_to_a_reference_that_loops_over_workers(span, optimizer, unbiased, depth):
    if optimizer == "sgd":
        options = SGD | {"nesterov": True, "weight_decay": 1e-3}
    else:
        skipped = dict.fromkeys(("trust_skip", "decay_skip"), ("bn", "bias"))
        flavour = optimizer.removeprefix("lars_")
        options = {"name": "lars", "flavour": flavour, "epsilon": 1e-6, **skipped}
    norm = {"momentum": 0.7, "running_variance": "unbiased" if unbiased else "biased"}
    begin = 400 if unbiased else 3  # the statistics' memory is full, or still that of 3 steps
    model = {"name": "resnet10", "width": 4, "stem": "small"} if depth == 10 else worlds.RESNET
    made = config(norm={"span": span, **norm}, optimizer=options, model=model)
    run = Stage(worlds.steps(made, 1, 8))
    plan, chosen = run.steps.plan, run.steps.plan.config
    params, stats = reference.random_params(
        5, depth=depth, width=4, channels=2, classes=worlds.CLASSES, dtype="float64"
    )
    fresh = jax.device_get(run.init(np.int32(0)))
    state = worlds.place(run, fresh._replace(params=params, stats=stats))
    velocity = jax.tree.map(np.zeros_like, params)
    steps = STEPS if unbiased else 1
    for step in range(steps):
        images, labels = worlds.batch(step, plan.samples_per_step)
        state, metrics = worlds.run_step(run, state, images, labels, RATES[step], begin + step)
        expected = reference.step(
            params,
            stats,
            velocity,
            images,
            labels,
            workers=plan.workers,
            span=plan.span,
            depth=depth,
            mean=worlds.MEAN,
            std=worlds.STD,
            epsilon=chosen.norm.epsilon,
            norm_momentum=0.7 if unbiased else 2 / 43,
            unbiased=unbiased,
            label_smoothing=chosen.loss.label_smoothing,
            optimizer=optimizer,
            learning_rate=RATES[step],
            trust_coefficient=chosen.optimizer.trust_coefficient,
            lars_epsilon=chosen.optimizer.epsilon,
            momentum=chosen.optimizer.momentum,
            weight_decay=chosen.optimizer.weight_decay,
            nesterov=chosen.optimizer.nesterov,
        )
        params, stats, velocity = expected.params, expected.stats, expected.velocity
        np.testing.assert_allclose(metrics.loss, expected.loss, rtol=EQUAL)
        assert round(float(metrics.top1) * plan.samples_per_step) == expected.correct
        norm = np.sqrt(sum((g**2).sum() for g in jax.tree.leaves(expected.gradients)))
        np.testing.assert_allclose(metrics.gradient_norm, norm, rtol=EQUAL)
    got = jax.device_get(state)
    for what, ours, theirs in (
        ("parameters", got.params, params),
        ("velocity", got.optimizer.momentum, velocity),
    ):
        for kind, value in worst_by_kind(ours, theirs).items():
            assert value < EQUAL, (what, kind, value)
    assert max(error(got.stats, stats).values()) < EQUAL
