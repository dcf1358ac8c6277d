"""Transformations of optax as update rules: the same numbers, and what is refused."""

import jax
import numpy as np
import optax
import pytest

from largebatch import optim
from largebatch.config import Facts, freeze
from largebatch.config.resolution import resolve
from largebatch.errors import ConfigError
from largebatch.training.rules import optimizer_of
from tests.optim import plain

STEPS = 6
KINDS = {
    "conv/kernel": "conv",
    "bn/scale": "bn",
    "bn/bias": "bn",
    "head/kernel": "fc",
    "head/bias": "bias",
}


def tree(seed):
    return plain.random_tree(np.random.default_rng(seed))


def rates(step):
    """Rates that change with every step, in no simple way."""
    return 0.1 * (1.5 + np.sin(step)), 0.02 * (1.2 + np.cos(2 * step))


def decayed(params):
    return {
        "conv": {"kernel": True},
        "bn": {"scale": False, "bias": False},
        "head": {"kernel": True, "bias": False},
    }


def by_hand(make):
    """Parameters after some steps of ``make(learning rate, weight decay)``."""

    @jax.jit
    def update(grads, state, params, rates):
        updates, state = make(*rates).update(grads, state, params)
        return optax.apply_updates(params, updates), state

    params = jax.tree.map(jax.numpy.asarray, tree(0))
    state = jax.jit(make(1.0, 0.0).init)(params)
    for step in range(STEPS):
        params, state = update(tree(1 + step), state, params, rates(step))
    return params


def ours(**optimizer):
    rule = optimizer_of(freeze({"optimizer": optimizer}), KINDS)
    grads = [tree(1 + step) for step in range(STEPS)]
    given = [optim.Rates(*rates(step)) for step in range(STEPS)]
    history, state = plain.run(rule, tree(0), grads, given)
    return history[-1], state


CASES = {
    "optax:adamw": (
        "b1=0.8 b2=0.95, nesterov=True",
        lambda n, wd: optax.adamw(n, b1=0.8, b2=0.95, nesterov=True, weight_decay=wd, mask=decayed),
    ),
    "optax:lars": (
        "momentum=0.8",
        lambda n, wd: optax.lars(n, momentum=0.8, weight_decay=wd, weight_decay_mask=decayed),
    ),
    "optax:adafactor": (
        "min_dim_size_to_factor=2",
        lambda n, _: optax.adafactor(n, min_dim_size_to_factor=2),
    ),
    "optax:contrib.schedule_free_sgd": (
        "b1=0.8",
        lambda n, wd: optax.contrib.schedule_free_sgd(n, b1=0.8, weight_decay=wd),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_same_as_optax_by_hand(name):
    text, make = CASES[name]
    with jax.enable_x64(True):
        expected = by_hand(make)
        found, state = ours(name=name, options=text)
        plain.assert_close(found, expected, 1e-14)
        # The report is of the last gradients.
        norms = [np.linalg.norm(g) for g in jax.tree.leaves(tree(STEPS))]
        np.testing.assert_allclose(state.report.gradient_norm, norms, rtol=1e-13)
    assert (np.asarray(state.report.trust_ratio) == 1).all()


def test_decay_skip_chooses_what_is_decayed():
    everywhere = {"decay_skip": ()}, lambda n, wd: optax.adamw(n, weight_decay=wd)
    nowhere = {"weight_decay": 0.0}, lambda n, _: optax.adam(n)
    with jax.enable_x64(True):
        for options, make in (everywhere, nowhere):
            found, _ = ours(name="optax:adamw", **options)
            plain.assert_close(found, by_hand(make), 1e-14)


def with_keys(learning_rate):
    noise = optax.GradientTransformation(
        lambda params: jax.random.key(0), lambda grads, state, params: (grads, state)
    )
    return optax.chain(noise, optax.sgd(learning_rate))


def growing(learning_rate):
    return optax.GradientTransformation(
        lambda params: (), lambda grads, state, params: (grads, (*state, 1.0))
    )


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        ({"name": "optax:adamx"}, ["optax:adamx", "'adam"]),
        ({"name": "optax:adamw", "options": "epss=1"}, ["optimizer.options", "'epss'", "'eps'"]),
        ({"name": "optax:adamw", "options": "learning_rate=1"}, ["schedule.peak"]),
        ({"name": "optax:adamw", "options": "mu_dtype='no'"}, ["optax:adamw"]),
        ({"name": "optax:sgd", "weight_decay": 5e-5}, ["weight_decay=5e-05", "loss.l2"]),
        ({"name": f"{__name__}:with_keys"}, ["with_keys"]),
        ({"name": f"{__name__}:growing"}, ["growing"]),
        ({"name": f"{__name__}:KINDS"}, ["KINDS"]),
        ({"name": f"{__name__}:clipped"}, ["limit", "optimizer.options"]),
    ],
)
def test_what_is_refused(optimizer, words):
    with pytest.raises(ConfigError) as caught:  # noqa: PT012
        config = freeze({"optimizer": optimizer, "schedule": {"peak": 1.0}})
        resolve(config, Facts(1000, 100, 7, (16, 16, 2), devices=8))
        optimizer_of(config, KINDS)
    for word in words:
        assert word in str(caught.value)


def test_a_schedule_of_decay_needs_decay():
    sections = {"schedule": {"peak": 1.0, "weight_decay": "follow"}}
    facts = Facts(1000, 100, 7, (16, 16, 2), devices=8)
    resolve(freeze({**sections, "optimizer": {"name": "optax:adamw"}}), facts)
    with pytest.raises(ConfigError, match=r"schedule\.weight_decay=follow"):
        resolve(freeze({**sections, "optimizer": {"name": "optax:adam"}}), facts)


def clipped(learning_rate, limit):
    return optax.chain(optax.clip_by_global_norm(limit), optax.sgd(learning_rate))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("optax:adafactor", ""),
        (f"{__name__}:clipped", "limit=1e6"),
    ],
)
def test_rules_that_look_at_whole_arrays_are_not_sharded(name, options):
    optimizer = {"name": name, "options": options}
    optimizer_of(freeze({"optimizer": optimizer}), KINDS)
    with pytest.raises(ConfigError, match=r"optimizer\.update=sharded"):
        optimizer_of(freeze({"optimizer": {**optimizer, "update": "sharded"}}), KINDS)
