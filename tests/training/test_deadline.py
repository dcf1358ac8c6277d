"""Microbatches that a late process leaves out: the step is the mean over what was computed."""

import jax
import numpy as np
import pytest

from largebatch.errors import ConfigError
from largebatch.training.stage import Stage
from tests.training import worlds


@pytest.fixture(scope="module", autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def step(batch, images, labels, *, options=None, dtype="float64", microbatch=2):
    made = worlds.steps(worlds.config(model=worlds.SMALL_TWO, batch=batch), 2, microbatch, dtype)
    run = Stage(made, options)
    state = run.init(np.int32(3))
    state, metrics = worlds.run_step(run, state, images, labels, 0.5)
    return jax.device_get((state, metrics))


def leaves(state):
    return [np.asarray(x) for x in jax.tree.leaves(state)]


@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
def test_with_nothing_left_out_it_is_bitwise_the_plain_step(dtype):
    images, labels = worlds.batch(0, 48)
    batch = {"workers": 16, "images_per_worker": 3}
    plain, metrics = step(batch, images, labels, dtype=dtype)
    never, told = step({**batch, "deadline_s": 1e6}, images, labels, dtype=dtype)
    for a, b in zip(leaves(plain), leaves(never), strict=True):
        np.testing.assert_array_equal(a, b)
    assert metrics.left_out is None
    assert told.left_out == 0
    assert told.loss == metrics.loss
    assert told.gradient_norm == metrics.gradient_norm


def test_what_is_left_out_is_as_if_it_had_not_been_in_the_batch():
    images, labels = worlds.batch(1, 48)
    late = {"workers": 16, "images_per_worker": 3, "deadline_s": 1e-9}
    # Of four microbatches of 12 images the first two come too late.
    found, metrics = step(late, images, labels)
    half, expected = step({"workers": 8, "images_per_worker": 3}, images[24:], labels[24:])
    assert metrics.left_out == 4  # on two devices
    for a, b in zip(leaves(found), leaves(half), strict=True):
        # float64 sums of the same numbers, scaled by 2 in another place
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13)
    for name in ("loss", "top1", "top5", "gradient_norm"):
        np.testing.assert_allclose(
            getattr(metrics, name), getattr(expected, name), rtol=1e-12, err_msg=name
        )


def test_what_a_deadline_excludes():
    with pytest.raises(ConfigError, match=r"batch\.deadline_s=1 .*norm\.span=4"):
        worlds.steps(worlds.config(batch={"deadline_s": 1.0}, norm={"span": 4}), 4, 1)
    replayed = worlds.config(batch={"deadline_s": 1.0}, health={"replay_every": "5 steps"})
    with pytest.raises(ConfigError, match=r"health\.replay_every"):
        worlds.steps(replayed, 2, 2)
