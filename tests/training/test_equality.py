"""The same mathematics on any number of devices, proved in float64 (`worlds.EQUAL`)."""

import functools

import jax
import numpy as np
import pytest

from largebatch.errors import ConfigError
from largebatch.training.stage import Stage
from tests.training import worlds
from tests.training.worlds import assert_equal, errors, slow, trained

SGD = {"name": "sgd", "momentum": 0.9, "weight_decay": 0.0}
"""Its velocity sums raw gradients: it would show a factor, which LARS hides."""
OPTIMIZERS = {
    "sgd": SGD,
    "lars": {"name": "lars", "flavour": "mlperf"},
    "nesterov": {"name": "lars", "flavour": "optax", "nesterov": True},
    "apex": {"name": "lars", "flavour": "apex"},
    "lamb": {"name": "lamb", "trust_coefficient": "auto", "epsilon": 1e-2},
    "clipped": SGD | {"clip_norm": 0.1},
    "rmsprop_sgd": {"name": "rmsprop_sgd", "trust_coefficient": "auto", "epsilon": 1e-2},
}


pytestmark = pytest.mark.usefixtures("float64")


def programs(span, devices, microbatch, optimizer, comm=None, model=worlds.RESNET, **sections):
    """A ResNet of two blocks, reduced in several buckets."""
    made = worlds.config(
        model=model,
        comm={"bucket_mib": 0.001} | (comm or {}),
        norm={"span": span} | sections.pop("norm", {}),
        optimizer=optimizer,
        **sections,
    )
    return Stage(worlds.steps(made, devices, microbatch))


@functools.cache
def initial(name):
    """The state that all begin with, on the host: no plan has a part in it."""
    return jax.device_get(programs(1, 1, 8, OPTIMIZERS[name]).init(np.int32(0)))


@functools.cache
def whole(span, name):
    """All workers at once on one device."""
    return trained(programs(span, 1, 8, OPTIMIZERS[name]), initial(name))


@pytest.mark.parametrize(
    ("span", "devices", "microbatch"),
    # Microbatches, a span over devices with microbatches, and one without.
    [(4, 4, 1), ("all", 8, 1)]
    + [slow(*case) for case in ((1, 4, 1), (1, 1, 2), (1, 2, 4), (4, 2, 2), (4, 8, 1))]
    + [slow("all", 2, 4)],
)
def test_gradients_statistics_and_parameters_do_not_depend_on_the_devices(
    span, devices, microbatch
):
    run = programs(span, devices, microbatch, SGD)
    plan = run.plan
    assert len(run.steps.buckets) > 1
    assert plan.microbatches == 8 // (devices * microbatch)
    assert plan.members == max(1, plan.span // microbatch)
    found = trained(run, initial("sgd"))
    assert found[1][0].stop is found[1][0].left_out is None  # one process has nobody to tell
    assert_equal(found, whole(span, "sgd"))


@pytest.mark.parametrize(
    ("name", "devices", "microbatch"),
    [
        ("lars", 4, 1),
        *(slow(*case) for case in (("sgd", 2, 2), ("nesterov", 2, 1), ("apex", 2, 2))),
        *(slow(*case) for case in (("lamb", 4, 1), ("rmsprop_sgd", 8, 1), ("clipped", 4, 1))),
    ],
)
def test_the_update_may_be_sharded(name, devices, microbatch):
    run = programs(1, devices, microbatch, OPTIMIZERS[name] | {"update": "sharded"})
    found = trained(run, initial(name))
    velocities = jax.tree.leaves(run.state.optimizer.momentum)
    assert {v.sharding.shard_shape(v.shape)[0] for v in velocities} == {1}
    assert {v.shape[0] for v in velocities} == {devices}
    assert_equal(found, whole(1, name))
    if name == "clipped":
        assert all(m.gradient_norm > 2 * OPTIMIZERS[name]["clip_norm"] for m in found[1])


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "buckets"), [("leaf", 20), ("tree", 1)])
def test_the_way_of_reducing_does_not_matter(scheme, buckets):
    run = programs(1, 4, 1, SGD, comm={"allreduce": scheme})
    assert len(run.steps.buckets) == buckets
    assert_equal(trained(run, initial("sgd")), whole(1, "sgd"))


def test_spans_are_not_all_the_same():
    """What the tests above would miss if every span were computed as one and the same."""
    for one, other in ((1, 4), (4, "all")):
        a, b = whole(one, "sgd")[0], whole(other, "sgd")[0]
        assert max(errors(a.params, b.params).values()) > 1e-3
        assert max(errors(a.stats, b.stats).values()) > 1e-3


@pytest.mark.parametrize(
    ("span", "rule", "unbiased"),
    [(1, "lars_mlperf", False), (4, "lars_optax", True), slow("all", "sgd", True)],
)
def test_equal_to_a_reference_that_loops_over_workers(span, rule, unbiased):
    if rule == "sgd":
        options = SGD | {"nesterov": True, "weight_decay": 1e-3}
    else:
        skipped = dict.fromkeys(("trust_skip", "decay_skip"), ("bn", "bias"))
        flavour = rule.removeprefix("lars_")
        options = {"name": "lars", "flavour": flavour, "epsilon": 1e-6, **skipped}
    norm = {"momentum": 0.7, "running_variance": "unbiased" if unbiased else "biased"}
    # The statistics' memory is full, or still that of 3 steps.
    kept, step = (0.7, 400) if unbiased else (2 / 43, 3)
    worlds.assert_equal_to_reference(programs(span, 1, 8, options, norm=norm), rule, kept, step)


def test_the_average_of_the_weights_is_its_recurrence():
    """First steps, with their short memory, and later ones; rounding of four sums."""
    run = programs(
        1, 4, 1, OPTIMIZERS["lars"] | {"update": "sharded"}, model=worlds.SMALL_TWO,
        schedule={"ema": "300 samples"},
    )  # fmt: skip
    state = run.init(np.int32(0))
    expected, share = jax.device_get(tuple(state.ema)), np.exp(-24 / 300)
    for step in (1, 2, 600, 601):
        images, labels = worlds.batch(step, 24)
        state, _ = worlds.run_step(run, state, images, labels, 0.3, step)
        kept = min(share, (step - 1) / (step + 40))
        assert (kept == share) == (step >= 600)
        now = jax.device_get((state.params, state.stats))
        expected = jax.tree.map(lambda a, x, k=kept: k * a + (1 - k) * x, expected, now)
    assert_equal(tuple(jax.device_get(state.ema)), expected, 1e-14)
    assert max(errors(expected, now).values()) > 1e-3


# ---- batch.deadline_s: microbatches that a late process leaves out


def late(deadline_s, workers=16):
    batch = {"workers": workers, "images_per_worker": 3, "deadline_s": deadline_s}
    return programs(1, 2, 2, SGD, model=worlds.SMALL_TWO, batch=batch)


def test_with_nothing_left_out_it_is_bitwise_the_plain_step():
    begin = jax.device_get(late(0).init(np.int32(3)))
    (plain, metrics), (never, told) = (trained(late(s), begin) for s in (0, 1e6))
    jax.tree.map(np.testing.assert_array_equal, plain, never)
    assert metrics[0].left_out is None
    for one, other in zip(metrics, told, strict=True):
        assert (other.left_out, other.loss) == (0, one.loss)
        assert other.gradient_norm == one.gradient_norm


def test_what_is_left_out_is_as_if_it_had_not_been_in_the_batch():
    begin = jax.device_get(late(0).init(np.int32(3)))
    # Of four microbatches of 12 images the first two come too late.
    found, (metrics,) = trained(late(1e-9), begin, [0.5])
    half, (expected,) = trained(
        late(0, workers=8), begin, [0.5], lambda *_: [x[24:] for x in worlds.batch(0, 48)]
    )
    assert metrics.left_out == 4  # on two devices
    assert_equal(found, half)
    np.testing.assert_allclose(metrics.values[:4], expected.values[:4], rtol=1e-12)


def test_what_a_deadline_excludes():
    with pytest.raises(ConfigError, match=r"batch\.deadline_s=1 .*norm\.span=4"):
        worlds.steps(worlds.config(batch={"deadline_s": 1.0}, norm={"span": 4}), 4, 1)
    replayed = worlds.config(batch={"deadline_s": 1.0}, health={"replay_every": "5 steps"})
    with pytest.raises(ConfigError, match=r"health\.replay_every"):
        worlds.steps(replayed, 2, 2)


# ---- loss.scale


def changes(dtype, scale, microbatch=1):
    """How two steps on two devices change the parameters; the metrics."""
    model, comm = worlds.RESNET | {"dtype": dtype}, {"wire": "float32"}
    run = programs(1, 2, microbatch, SGD, comm, model, loss={"scale": scale})
    begin = jax.device_get(run.init(np.int32(0)))
    state, metrics = trained(run, begin, [0.01, 0.01])
    change = jax.tree.map(np.subtract, state.params, begin.params)
    return np.concatenate([x.ravel() for x in jax.tree.leaves(change)]), metrics


def test_a_power_of_two_changes_no_bit():
    """It commutes with every rounding, also with those of accumulation and all-reduce."""
    plain, scaled = (changes("float32", scale, microbatch=2) for scale in (1.0, 2.0**12))
    jax.tree.map(np.testing.assert_array_equal, scaled, plain)


@pytest.mark.slow
def test_float16_keeps_its_gradients_by_the_scale():
    """Without it, the gradients of a batch of 81,920 are below the numbers of float16."""
    exact, _ = changes("float32", 1.0)

    def error(scale):
        return np.linalg.norm(changes("float16", scale)[0] - exact) / np.linalg.norm(exact)

    # Two steps; each product rounds its operands at 2⁻¹¹, a few layers deep.
    assert error("auto") < 0.02
    assert error(2.0**-14) > 0.2
