"""Every parameter has exactly one kind, and masks follow from kinds."""

import collections

import jax
import optax
import pytest

from largebatch.errors import ConfigError
from largebatch.models import Model
from largebatch.optim import KINDS, kinds, mask, with_kinds


def resnet50():
    return jax.eval_shape(Model("resnet50", classes=1000).init, 0)[0]


def test_kinds_of_resnet50():
    counts = collections.Counter(jax.tree.leaves(kinds(resnet50())))
    assert counts == {"conv": 53, "bn": 106, "fc": 1, "bias": 1}


@pytest.mark.parametrize("path", ["head/scale", "neck/head/kernel", "stem/conv/bias"])
def test_a_path_without_a_rule_is_named(path):
    tree = 0
    for name in reversed(path.split("/")):
        tree = {name: tree}
    with pytest.raises(ConfigError, match=path):
        kinds(tree)


def test_a_path_with_two_rules_is_named():
    rules = (("kernel", ".*/kernel"), ("head", "head/.*"), ("stem", "stem/.*bias"))
    with pytest.raises(ConfigError, match="head/kernel"):
        kinds({"head": {"kernel": 0}}, rules)
    assert kinds({"head": {"bias": 0}}, rules) == {"head": {"bias": "head"}}


def test_mask():
    params = resnet50()
    applies = mask(params, ("bn", "bias"))
    assert applies["head"] == {"kernel": True, "bias": False}
    assert applies["stem"] == {"conv": {"kernel": True}, "bn": {"scale": False, "bias": False}}
    assert sum(jax.tree.leaves(applies)) == 54
    assert all(jax.tree.leaves(mask(params, ())))
    assert not any(jax.tree.leaves(mask(params, KINDS)))
    with pytest.raises(ConfigError, match="'bias'"):
        mask(params, ("bn", "bais"))


def test_a_rule_takes_the_kinds_that_a_network_declares():
    params = {"body": {"gamma": 2.0, "w": 3.0}, "head": {"kernel": 5.0}}
    declared = {"body/gamma": "bias", "body/w": "fc", "head/kernel": "conv"}
    rule = with_kinds(
        optax.add_decayed_weights(1.0, mask=lambda tree: mask(tree, ("bias", "conv"))), declared
    )
    zeros = jax.tree.map(lambda _: 0.0, params)
    decay, _ = rule.update(zeros, rule.init(params), params)
    assert decay == {"body": {"gamma": 0.0, "w": 3.0}, "head": {"kernel": 0.0}}
    with pytest.raises(ConfigError, match="rule"):  # outside of the rule
        kinds(params)
