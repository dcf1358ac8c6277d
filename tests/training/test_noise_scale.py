"""The noise scale: what a step measures of it, and what is estimated from that."""

import dataclasses
import json
import math

import jax
import numpy as np
import pytest

from largebatch.training.noise_scale import NoiseScale
from largebatch.training.stage import Stage
from tests.training import worlds
from tests.training.worlds import slow

WORKERS, IMAGES = 8, 3
SGD = {"name": "sgd", "momentum": 0.9, "weight_decay": 0.0}


def options(**sections):
    return worlds.config(model=worlds.RESNET, **{"optimizer": SGD, **sections})


def squares_of_microbatches(state, microbatch, **sections):
    """‖g‖² of each microbatch, from a step of that microbatch alone."""
    images, labels = worlds.batch(0, WORKERS * IMAGES)
    small = options(batch={"workers": microbatch, "images_per_worker": IMAGES}, **sections)
    objective = worlds.steps(small, 1).objective
    gradients = jax.jit(objective.gradients)
    found = []
    for some in np.split(np.arange(WORKERS * IMAGES), WORKERS // microbatch):
        of_some, _ = gradients(state.params, state.stats, images[some], labels[some])
        found.append(sum(float((g**2).sum()) for g in jax.tree.leaves(of_some)))
    return found


@pytest.mark.parametrize(
    ("devices", "microbatch", "update", "comm"),
    [
        (2, 2, "sharded", {}),
        # Norms are of gradients before they are rounded for the wire.
        slow(2, 1, "replicated", {"wire": "bfloat16"}),
        slow(1, 1, "replicated", {}),
        slow(8, 1, "sharded", {}),
        slow(4, 2, "replicated", {"allreduce": "tree"}),
    ],
)
def test_a_step_measures_the_gradient_of_each_microbatch(
    float64, devices, microbatch, update, comm
):
    made = options(comm=comm, optimizer=SGD | {"update": update})
    run = Stage(worlds.steps(made, devices, microbatch))
    state = run.init(np.int32(3))
    expected = np.mean(squares_of_microbatches(jax.device_get(state), microbatch))
    _, metrics = worlds.run_step(run, state, *worlds.batch(0, WORKERS * IMAGES), 0.5)
    # Sums in float64, in another order.
    np.testing.assert_allclose(metrics.small_square, expected, rtol=1e-11)


@pytest.mark.slow
def test_a_scaled_loss_does_not_scale_it():
    """float16, whose gradients differ from float64's by a share of 1e-2."""
    made = worlds.config(model=worlds.RESNET | {"dtype": "float16"})
    run = Stage(worlds.steps(made, 2, 2, "float32"))
    assert run.steps.plan.loss_scale != 1
    state = run.init(np.int32(3))
    with jax.enable_x64(True):
        expected = np.mean(squares_of_microbatches(jax.device_get(state), 2))
    _, metrics = worlds.run_step(run, state, *worlds.batch(0, WORKERS * IMAGES), 0.5)
    np.testing.assert_allclose(metrics.small_square, expected, rtol=0.1)


def test_microbatches_that_are_left_out_do_not_count(float64):
    late = {"batch": {"workers": WORKERS, "images_per_worker": IMAGES, "deadline_s": 1e-9}}
    run = Stage(worlds.steps(options(**late), 2, 1))
    state = run.init(np.int32(3))
    # Of four microbatches of each device the first two come too late.
    expected = np.mean(squares_of_microbatches(jax.device_get(state), 1)[-4:])
    _, metrics = worlds.run_step(run, state, *worlds.batch(0, WORKERS * IMAGES), 0.5)
    assert metrics.left_out == 4
    np.testing.assert_allclose(metrics.small_square, expected, rtol=1e-11)


@pytest.mark.parametrize(
    ("devices", "microbatch", "sections", "remedy"),
    [
        (1, 8, {}, "batch.microbatch=4"),
        (1, 8, {"norm": {"span": "all"}}, "norm.span"),
        (4, 1, {"norm": {"span": 4}}, "norm.span"),
        (2, 1, {"loss": {"l2": 1e-4}}, "loss.l2=0"),
        (1, 1, {"batch": {"workers": 1, "images_per_worker": 3}}, "workers"),
    ],
)
def test_it_is_not_measured_where_that_says_nothing(devices, microbatch, sections, remedy):
    steps = worlds.steps(options(**sections), devices, microbatch)
    assert not steps.measures_noise
    assert remedy in steps.why_no_noise


def draw(rng, estimator, small, count, steps, size=400, scale=12.0):
    """Feed gradients G + noise, where ‖G‖² = 1 and tr(Σ) is the square of ``scale``."""
    mean = np.zeros(size)
    mean[0] = 1.0
    for _ in range(steps):
        noise = rng.normal(size=(count, size)) * scale / math.sqrt(size * small)
        gradients = mean + noise
        whole = gradients.mean(axis=0)
        squares = (gradients**2).sum(axis=1)
        estimator.add(squares.mean(), (whole**2).sum(), small, small * count)


def test_it_is_the_ratio_of_the_known_noise_and_gradient():
    """Over 200 trainings, the errors are as large as they are said to be."""
    rng = np.random.default_rng(1)
    deviations = []
    for _ in range(200):
        estimator = NoiseScale(window=40 * 64)
        draw(rng, estimator, small=8, count=8, steps=120)
        found = estimator.estimate()
        deviations.append((found.images - 144) / found.error)
    # Of 200 numbers of mean 0 and deviation 1 the mean is known to 0.07, the deviation to 0.05;
    # the quotient of two means has a bias of its own, of a fifth of its error here.
    assert abs(np.mean(deviations)) < 0.3
    assert 0.8 < np.std(deviations) < 1.25


def test_old_steps_are_forgotten():
    rng = np.random.default_rng(2)
    estimator = NoiseScale(window=20 * 64)
    draw(rng, estimator, small=8, count=8, steps=200, scale=30.0)
    draw(rng, estimator, small=8, count=8, steps=200, scale=5.0)
    found = estimator.estimate()
    assert abs(found.images - 25) < 4 * found.error < 15


def test_a_step_that_says_nothing_changes_nothing():
    estimator = NoiseScale(window=100)
    draw(np.random.default_rng(3), estimator, small=8, count=8, steps=5)
    before = dataclasses.replace(estimator)
    for small_square, square in ((math.nan, 1.0), (1.0, math.inf), (0.0, 1.0)):
        estimator.add(small_square, square, 8, 64)
    estimator.add(1.0, 1.0, 8, 8)  # a single microbatch was left
    assert estimator == before


def test_there_is_none_while_noise_hides_the_gradient():
    estimator = NoiseScale(window=1000)
    assert estimator.estimate() is None
    for _ in range(3):
        estimator.add(64.0, 1.0, 1, 64)  # as if the gradient were nothing but noise
    assert estimator.estimate() is None


def test_it_continues_from_a_checkpoint():
    rng = np.random.default_rng(4)
    whole = NoiseScale(window=300)
    draw(rng, whole, small=4, count=4, steps=9)
    stored = json.loads(json.dumps(whole.memory()))
    assert NoiseScale(window=300, **stored) == whole
