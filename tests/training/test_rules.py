"""The update rule of a configuration: which rule, and what it leaves out of what."""

import jax
import numpy as np
import optax
import pytest

from largebatch import optim
from largebatch.config import freeze
from largebatch.training.rules import optimizer_of

SHAPES = {"conv": {"kernel": (4,)}, "bn": {"scale": (4,)}, "head": {"kernel": (4,), "bias": (4,)}}
KINDS = {"conv": "conv/kernel", "bn": "bn/scale", "fc": "head/kernel", "bias": "head/bias"}
OF_PATHS = {path: kind for kind, path in KINDS.items()}


def tree(seed):
    draw = np.random.default_rng(seed)
    return jax.tree.map(
        lambda shape: draw.normal(0, 1, shape), SHAPES, is_leaf=lambda x: isinstance(x, tuple)
    )


def updated(rates=None, gradients=None, **sections):
    """Updates and the state after one step, of the rule of a configuration."""
    rule = optimizer_of(freeze(sections), OF_PATHS)
    with jax.enable_x64(True):
        params = jax.tree.map(jax.numpy.asarray, tree(1))
        gradients = jax.tree.map(jax.numpy.asarray, tree(2) if gradients is None else gradients)
        given = rates or optim.Rates(0.1, 0.05, 0.9, 0.5, 1)
        return rule.update(gradients, rule.init(params), params, rates=given)


def trusted(**options):
    """Kinds whose ratio is not 1."""
    _, state = updated(optimizer=options)
    rows = optim.by_path(state.report, jax.tree.leaves(optim.path_names(tree(1))))
    return {kind for kind, path in KINDS.items() if rows[path]["trust_ratio"] != 1}


def decayed(**options):
    """Kinds that move otherwise with weight decay than without."""
    rates = optim.Rates(0.1, 0.05, 0.9, 0.5, 1)
    changes = [
        updated(rates=r, optimizer=options)[0] for r in (rates, rates._replace(weight_decay=0))
    ]
    moved = jax.tree.map(lambda a, b: bool(np.any(a != b)), *changes)
    return {kind for kind, path in KINDS.items() if moved[path.split("/")[0]][path.split("/")[1]]}


KERNELS, ALL = {"conv", "fc"}, set(KINDS)


@pytest.mark.parametrize(
    ("options", "with_ratio", "with_decay"),
    [
        ({}, KERNELS, KERNELS),
        ({"flavour": "nvidia"}, KERNELS, KERNELS | {"bias"}),
        ({"flavour": "optax"}, ALL, ALL),
        ({"flavour": "optax", "trust_skip": ("bn",), "decay_skip": ("fc",)}, ALL - {"bn"}, None),
        ({"name": "sgd"}, set(), KERNELS),
        ({"name": "sgd", "weight_decay": 0.0}, set(), set()),
        ({"name": "lamb", "trust_skip": ()}, ALL, KERNELS),
    ],
)
def test_what_is_skipped(options, with_ratio, with_decay):
    assert trusted(**options) == with_ratio
    # Without ratio a parameter that is not decayed does not depend on decay at all.
    if with_decay is not None:
        assert decayed(**options) == with_decay


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        (
            {"name": "lamb", "second_momentum": 0.9, "epsilon": 0.1},
            optim.lamb(second_momentum=0.9, epsilon=0.1),
        ),
        (
            {"name": "rmsprop_sgd", "second_momentum": 0.5, "epsilon": 0.1, "rmsprop_rate": 0.2},
            optim.rmsprop_sgd(second_momentum=0.5, epsilon=0.1, rmsprop_rate=0.2),
        ),
        (
            {"name": "sgd", "nesterov": True, "rate": "inside"},
            optim.sgd(nesterov=True, rate="inside"),
        ),
        (
            {"name": "lars", "epsilon": 0.1, "nesterov": True, "rate": "outside"},
            optim.lars(epsilon=0.1, nesterov=True, rate="outside"),
        ),
    ],
)
def test_options_reach_the_rule(options, rule):
    made = optimizer_of(
        freeze({"optimizer": {"trust_skip": (), "decay_skip": (), **options}}), OF_PATHS
    )
    with jax.enable_x64(True):
        params, gradients = (jax.tree.map(jax.numpy.asarray, tree(s)) for s in (1, 2))
        ends = []
        for one in (made, rule):
            state, weights = one.init(params), params
            for step, n in enumerate((0.1, 0.4), start=1):
                rates = optim.Rates(n, 0.05, 0.9, 0.5, step)
                updates, state = one.update(gradients, state, weights, rates=rates)
                weights = optax.apply_updates(weights, updates)
            ends.append(weights)
        jax.tree.map(np.testing.assert_array_equal, *ends)


def test_l2_of_the_loss_is_added_to_gradients():
    gradients = tree(2)
    expected = jax.tree.map(lambda g, w: g + 0.3 * w, gradients, tree(1))
    expected["bn"] = gradients["bn"]
    found, state = updated(loss={"l2": 0.3})
    direct, other = updated(gradients=expected)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-14), found, direct)
    np.testing.assert_allclose(state.report.gradient_norm, other.report.gradient_norm, rtol=1e-14)
    found, _ = updated(loss={"l2": 0.3, "l2_skip": ("bn", "bias", "conv", "fc")})
    jax.tree.map(np.testing.assert_array_equal, found, updated()[0])


def test_the_gradient_is_clipped_after_the_l2_term_and_before_weight_decay():
    options = {"name": "sgd", "decay_skip": (), "clip_norm": 0.5}
    gradients = jax.tree.map(lambda g, w: g + 0.3 * w, tree(2), tree(1))
    norm = np.sqrt(sum(np.sum(g**2) for g in jax.tree.leaves(gradients)))
    expected = jax.tree.map(lambda g, w: -0.1 * (0.5 / norm * g + 0.05 * w), gradients, tree(1))
    found, state = updated(optimizer=options, loss={"l2": 0.3, "l2_skip": ()})
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-14), found, expected)
    np.testing.assert_allclose(np.linalg.norm(state.report.gradient_norm), norm, rtol=1e-14)
