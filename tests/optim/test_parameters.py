"""Every parameter of every ResNet has exactly one kind, and masks follow from kinds."""

import collections

import jax
import optax
import pytest

from largebatch.errors import ConfigError
from largebatch.optim import KINDS, kinds, mask, path_names, with_kinds

STAGES = {18: (2, (2, 2, 2, 2)), 34: (2, (3, 4, 6, 3)), 50: (3, (3, 4, 6, 3))}
STAGES |= {101: (3, (3, 4, 23, 3)), 152: (3, (3, 8, 36, 3))}
# Convolutions: the stem, those of all blocks, and a projection where shapes change: in the first
# block of each stage, except stage 1 of the basic networks. One BatchNorm follows each.
CONVOLUTIONS = {
    18: 1 + 2 * 8 + 3,
    34: 1 + 2 * 16 + 3,
    50: 1 + 3 * 16 + 4,
    101: 1 + 3 * 33 + 4,
    152: 1 + 3 * 50 + 4,
}


def resnet(depth):
    """The parameter tree of a ResNet; leaves are placeholders."""
    norm = {"scale": 0, "bias": 0}
    tree = {"stem": {"conv": {"kernel": 0}, "bn": norm}, "head": {"kernel": 0, "bias": 0}}
    layers, stages = STAGES[depth]
    tree["stages"] = {}
    for i, blocks in enumerate(stages):
        tree["stages"][str(i)] = {"blocks": {}}
        for j in range(blocks):
            block = {f"conv{n}": {"kernel": 0} for n in range(1, layers + 1)}
            block |= {f"bn{n}": norm for n in range(1, layers + 1)}
            if j == 0 and (i > 0 or layers == 3):
                block |= {"downsample_conv": {"kernel": 0}, "downsample_bn": norm}
            tree["stages"][str(i)]["blocks"][str(j)] = block
    return tree


@pytest.mark.parametrize("depth", STAGES)
def test_counts_of_kinds(depth):
    counts = collections.Counter(jax.tree.leaves(kinds(resnet(depth))))
    n = CONVOLUTIONS[depth]
    assert counts == {"conv": n, "bn": 2 * n, "fc": 1, "bias": 1}
    if depth == 50:
        assert counts.total() == 161


def test_kinds_by_path():
    params, found = resnet(50), kinds(resnet(50))
    assert found["stem"] == {"conv": {"kernel": "conv"}, "bn": {"scale": "bn", "bias": "bn"}}
    assert found["head"] == {"kernel": "fc", "bias": "bias"}
    block = found["stages"]["1"]["blocks"]["0"]
    assert block["downsample_conv"] == block["conv2"] == {"kernel": "conv"}
    assert block["downsample_bn"] == block["bn3"] == {"scale": "bn", "bias": "bn"}
    paths = path_names(params)
    assert paths["stages"]["1"]["blocks"]["0"]["downsample_bn"]["scale"] == (
        "stages/1/blocks/0/downsample_bn/scale"
    )
    assert paths["head"]["bias"] == "head/bias"
    assert len(set(jax.tree.leaves(paths))) == 161


@pytest.mark.parametrize(
    "path",
    [
        "head/scale",
        "head/kernel2",
        "neck/head/kernel",
        "stem/conv/bias",
        "stem/bn/kernel",
        "stem/bn/scale/value",
        "stem/deconv/kernel",
        "dense/kernel",
    ],
)
def test_a_path_without_a_rule_is_named(path):
    tree = 0
    for name in reversed(path.split("/")):
        tree = {name: tree}
    with pytest.raises(ConfigError) as error:
        kinds({"head": {"bias": 0}} | tree)
    message = str(error.value)
    assert f"parameter '{path}' matches no rule" in message
    assert "fc='head/kernel'" in message
    assert "\n" not in message


def test_a_path_with_two_rules_is_named():
    rules = (("kernel", ".*/kernel"), ("head", "head/.*"), ("stem", "stem/.*bias"))
    message = r"parameter 'head/kernel' matches 2 rules \(kernel, head\).* head='head/\.\*'"
    with pytest.raises(ConfigError, match=message):
        kinds({"head": {"kernel": 0}}, rules)
    assert kinds({"head": {"bias": 0}}, rules) == {"head": {"bias": "head"}}


def test_mask():
    params = resnet(50)
    applies = mask(params, ("bn", "bias"))
    assert applies["head"] == {"kernel": True, "bias": False}
    assert applies["stem"] == {"conv": {"kernel": True}, "bn": {"scale": False, "bias": False}}
    assert sum(jax.tree.leaves(applies)) == 54
    assert all(jax.tree.leaves(mask(params, ())))
    assert not any(jax.tree.leaves(mask(params, KINDS)))
    assert mask(params, ["fc"])["head"] == {"kernel": False, "bias": True}
    assert {type(leaf) for leaf in jax.tree.leaves(applies)} == {bool}


def test_unknown_kind_to_skip():
    with pytest.raises(ConfigError, match=r"'bais'.* did you mean 'bias'\?$"):
        mask(resnet(18), ("bn", "bais"))
    with pytest.raises(ConfigError, match=r"'embedding'; known: conv, bn"):
        mask(resnet(18), ("embedding",))


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
