"""Masks of kinds of parameters, and learning rate multipliers."""

import jax
import numpy as np
import optax
import pytest

from largebatch import optim
from largebatch.errors import ConfigError
from largebatch.optim import skipping
from tests.optim import plain

PATHS = ("stem/conv/kernel", "stem/bn/scale", "head/kernel", "head/bias")
STATISTICS = ("stem/bn/mean", "stem/bn/var")


def test_a_mask_follows_the_declared_kinds():
    """Also of a part of the parameters, such as those that are not frozen."""
    declared = {"body/gamma": "bias", "body/w": "fc", "head/kernel": "conv"}
    params = {"body": {"gamma": 2.0, "w": 3.0}}
    assert skipping(("bias",), declared)(params) == {"body": {"gamma": False, "w": True}}


def test_an_unknown_kind_is_named():
    with pytest.raises(ConfigError, match="'bias'"):
        skipping(("bn", "bais"), {})


def test_the_first_pattern_that_matches_the_whole_name_decides():
    texts = (".*/bias: 2", "head/.*: 0.5", "stem/bn/.*:0")
    assert optim.multipliers(texts, PATHS, STATISTICS) == {
        "stem/conv/kernel": 1.0,
        "stem/bn/scale": 0.0,
        "stem/bn/mean": 0.0,
        "stem/bn/var": 0.0,
        "head/kernel": 0.5,
        "head/bias": 2.0,
    }
    assert set(optim.multipliers((), PATHS).values()) == {1.0}
    assert optim.multipliers((r"stem/(?:conv)/.*: 0",), PATHS)["stem/conv/kernel"] == 0
    assert optim.multipliers((".*/(mean|var): 0",), PATHS, STATISTICS)["stem/bn/scale"] == 1


@pytest.mark.parametrize(
    ("texts", "near"),
    [
        (("stem: 0",), r"'stem'.*'stem/\.\*', 'head/\.\*'"),
        ((".*/mean: 0.1",), "statistics"),
        (("head/.*: 0", "head/bias: 1"), "head/bias"),
        ((".*: 0",), r"\(\?!head/\)"),
        (("head/.*: -1",), "-1"),
        (("head/.*",), "FACTOR"),
        (("(head: 1",), "regular expression"),
    ],
)
def test_patterns_that_are_refused(texts, near):
    with pytest.raises(ConfigError, match=near) as error:
        optim.multipliers(texts, PATHS, STATISTICS)
    assert "optimizer.lr_mults" in str(error.value)


def test_equals_a_learning_rate_for_each_group():
    """optax.multi_transform in float64; tolerance: rounding of a product in each of four steps."""
    factors = {"conv/kernel": 0.1, "bn/scale": 1.0, "bn/bias": 1.0} | dict.fromkeys(
        ("head/kernel", "head/bias"), 3.0
    )
    rates = (0.5, 0.1, 0.3, 0.2)
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        params = plain.random_tree(rng)
        grads = [plain.random_tree(rng) for _ in rates]
        ours, _ = plain.run(optim.with_multipliers(optim.sgd(), factors), params, grads, rates)
        theirs, state = plain.device(params), None
        for found, g, rate in zip(ours, grads, rates, strict=True):
            rule = optax.multi_transform(
                {f: optax.sgd(f * rate, momentum=0.9) for f in (0.1, 1.0, 3.0)},
                {m: {n: factors[f"{m}/{n}"] for n in of} for m, of in plain.SHAPES.items()},
            )
            state = rule.init(theirs) if state is None else state
            updates, state = rule.update(plain.device(g), state, theirs)
            theirs = optax.apply_updates(theirs, updates)
            plain.assert_close(found, theirs, 1e-14)
