"""Weights in place of fresh ones."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from largebatch.weights import WeightsError, initial
from tests.weights.samples import SMALL, same, sample


def fresh(model):
    weights = sample(model, seed=3)
    return weights.params, weights.stats


def test_all_arrays_are_replaced():
    weights = sample()
    params, stats, text = initial(weights, *fresh(SMALL), classes=weights.classes)
    assert same(dataclasses.replace(weights, params=params, stats=stats), weights)
    assert text == "resnet10 of drawn"


def test_another_number_of_classes_keeps_the_fresh_head():
    weights = sample()
    now = fresh(dataclasses.replace(SMALL, classes=9))
    params, _, text = initial(weights, *now)
    assert params["head"]["kernel"] is now[0]["head"]["kernel"]
    assert params["head"]["bias"] is now[0]["head"]["bias"]
    stem = weights.params["stem"]["conv"]["kernel"]
    np.testing.assert_array_equal(params["stem"]["conv"]["kernel"], stem)
    assert "9 classes" in text


def test_the_types_are_those_of_the_run_and_other_names_are_reported():
    params, stats = jax.tree.map(lambda x: jnp.asarray(x, jnp.bfloat16), fresh(SMALL))
    made, _, text = initial(sample(), params, stats, classes=tuple("abcde"))
    assert "other names" in text
    assert made["head"]["bias"].dtype == jnp.bfloat16


@pytest.mark.parametrize(
    ("run", "remedy"),
    [
        ({"width": 8}, r"\(3, 3, 1, 8\).*\(3, 3, 1, 4\).*width=4"),
        ({"channels": 3}, "images of 1 channel"),
        ({"name": "resnet50"}, "model.name=resnet10"),
    ],
)
def test_other_networks(run, remedy):
    with pytest.raises(WeightsError, match=remedy) as caught:
        initial(sample(), *fresh(dataclasses.replace(SMALL, **run)))
    assert "\n" not in str(caught.value)
