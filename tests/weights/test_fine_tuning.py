"""Weights in place of fresh ones."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from largebatch.models import Model
from largebatch.trees import flatten_paths
from largebatch.weights import WeightsError, initial
from tests.weights.samples import SMALL, sample


def fresh(model, seed=3):
    weights = sample(model, seed)
    return weights.params, weights.stats


def test_all_is_taken():
    weights = sample()
    params, stats, text = initial(weights, *fresh(SMALL), classes=weights.classes)
    for ours, given in ((params, weights.params), (stats, weights.stats)):
        flat, wanted = flatten_paths(ours), flatten_paths(given)
        assert list(flat) == list(wanted)
        assert all(flat[path].tobytes() == wanted[path].tobytes() for path in flat)
    assert text == "resnet10 of drawn"


def test_another_number_of_classes_keeps_the_fresh_head():
    weights = sample()
    now = fresh(dataclasses.replace(SMALL, classes=9))
    params, _, text = initial(weights, *now)
    assert params["head"]["kernel"] is now[0]["head"]["kernel"]
    assert params["head"]["bias"] is now[0]["head"]["bias"]
    np.testing.assert_array_equal(
        params["stem"]["conv"]["kernel"], weights.params["stem"]["conv"]["kernel"]
    )
    assert text == "resnet10 of drawn, with a fresh head: 9 classes, the weights have 5"


def test_other_names_are_reported():
    weights = sample()
    _, _, text = initial(weights, *fresh(SMALL), classes=tuple("abcde"))
    assert "other names: 5 and 5 classes" in text


def test_the_types_are_those_of_the_run():
    params, stats = jax.tree.map(lambda x: jnp.asarray(x, jnp.bfloat16), fresh(SMALL))
    made, _, _ = initial(sample(), params, stats)
    assert made["head"]["bias"].dtype == jnp.bfloat16


def test_the_computation_of_the_stem_may_differ():
    model = Model("resnet10", classes=3, width=4)
    initial(sample(model), *fresh(dataclasses.replace(model, stem="space_to_depth")))


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (
            {"width": 8},
            r"stem/conv/kernel has shape \(3, 3, 1, 4\), the run's has \(3, 3, 1, 8\).*width=4",
        ),
        (
            {"stem": "conv7"},
            r"stem/conv/kernel has shape \(3, 3, 1, 4\), the run's .*; use model.stem=small",
        ),
        ({"channels": 3}, "use data of 1 channel"),
        ({"name": "resnet18"}, "use model.name=resnet10"),
        ({"name": "resnet50"}, "use model.name=resnet10"),
    ],
)
def test_other_networks(run, message):
    with pytest.raises(WeightsError, match=message) as caught:
        initial(sample(), *fresh(dataclasses.replace(SMALL, **run)))
    assert "\n" not in str(caught.value)
