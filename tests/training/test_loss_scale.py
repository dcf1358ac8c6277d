"""The scale of the loss: no part of the mathematics, and what keeps float16 gradients from zero."""

import jax
import numpy as np
import pytest

from largebatch.training.stage import Stage
from largebatch.trees import flatten_paths
from tests.training import worlds

PLAIN = {"name": "sgd", "weight_decay": 0.0}


def change(dtype, scale, microbatch=1):
    """By path, how two steps on two devices change the parameters, and the losses."""
    with jax.enable_x64(True):
        made = worlds.config(
            model=worlds.RESNET | {"dtype": dtype},
            optimizer=PLAIN,
            loss={"scale": scale},
            comm={"wire": "float32"},
        )
        stage = Stage(worlds.steps(made, 2, microbatch))
        state = first = jax.device_get(stage.init(np.int32(0)))
        state = worlds.place(stage, state)
        losses = []
        for step in range(2):
            images, labels = worlds.batch(step, 24)
            state, metrics = worlds.run_step(stage, state, images, labels, 0.01, step)
            losses.append(float(metrics.loss))
        old, new = (flatten_paths(jax.device_get(each).params) for each in (first, state))
    return {path: new[path] - old[path] for path in old}, losses


@pytest.mark.slow
@pytest.mark.parametrize("microbatch", [1, 4])
def test_a_power_of_two_changes_no_bit(microbatch):
    """It commutes with every rounding, also with those of accumulation and all-reduce."""
    plain, losses = change("float32", 1.0, microbatch=microbatch)
    scaled, same = change("float32", 2.0**12, microbatch=microbatch)
    assert same == losses
    for path, value in plain.items():
        np.testing.assert_array_equal(scaled[path], value)
        assert np.abs(value).max() > 0


@pytest.mark.slow
def test_float16_keeps_its_gradients_by_the_scale():
    """Without it, the gradients of a batch of 81,920 are below the numbers of float16."""
    exact, _ = change("float32", 1.0)

    def error(scale):
        found, _ = change("float16", scale)
        size = np.sqrt(sum(np.square(value).sum() for value in exact.values()))
        return np.sqrt(sum(np.square(found[p] - exact[p]).sum() for p in exact)) / size

    # Two steps; each product rounds its operands at 2⁻¹¹, a few layers deep.
    assert error("auto") < 0.02
    assert error(2.0**-14) > 0.2
