"""Any command line and any recipe gives a configuration, or one line that names the option."""

import dataclasses
import math
import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from largebatch.cli import split_overrides
from largebatch.config import Config, Facts, freeze, load, override
from largebatch.config.resolution import resolve
from largebatch.config.schema import options
from largebatch.errors import ConfigError, UserError
from tests.properties.profile import PROPERTIES

OPTIONS = {key: (value, field) for key, value, field in options(Config())}
SECTIONS = sorted({key.partition(".")[0] for key in OPTIONS})
RECIPE = None
"""What the recipe file of these tests returns."""

# fmt: off
_NASTY = [
    *("", " ", "nan", "inf", "-inf", "-1", "0", "-0.0", "1e999", "1e-999", "5e-324", "0x10"),
    *("9" * 400, "9" * 4299, "9" * 5000, "-" + "9" * 5000, "1" + "_0" * 3000, "1__0", "0" * 5000),
    *("(" * 300, "[" * 3000, "{[]: 1}", "1is 1", "'\\d'", "1if 1else 2", "()", "(,)", ",,,"),
    *("auto", "all", "true", "TRUE", "None", "[1, 2", "b'1'", "__import__('os')", "1;2"),
    *("\n", "a\nb", "\r", "\x85", "\u2028", "\x00", "\udcff", "é", "٣", "𝟛", "1\u00a0000"),
]
# fmt: on


def nasty(number):
    """Return a text by its number, since Hypothesis shows all that it samples from."""
    return _NASTY[number]


NASTY = st.integers(0, len(_NASTY) - 1).map(nasty)
NUMBERS = st.one_of(
    st.integers(-3, 300).map(str),
    st.integers(-(2**70), 2**70).map(str),
    st.floats().map(repr),
    NASTY,
)
DURATIONS = st.one_of(
    st.builds(
        "{}{}{}".format,
        st.one_of(st.integers(0, 200), st.integers(0, 2**40), NASTY),
        st.sampled_from(["", " ", "  ", "\n"]),
        st.sampled_from(["epochs", "epoch", "steps", "samples", "%", "s", "", "Epochs"]),
    ),
    NASTY,
)
KEYS = st.one_of(
    st.sampled_from(sorted(OPTIONS)),
    st.builds("{}.{}".format, st.sampled_from(SECTIONS), st.text(max_size=6)),
    st.sampled_from(
        ["batch.", ".", "..", ".workers", "batch", "batch.workers.x", "batch.\nworkers"]
    ),
    st.text(max_size=8),
)
CHANGES = st.builds(
    "{}={}".format,
    st.one_of(
        st.sampled_from(
            ["batch.workers", "batch.images_per_worker", "data.image_size", "rate", "norm.span"]
        ),
        KEYS,
    ),
    st.one_of(st.integers(1, 9).map(str), NUMBERS),
)
STAGES = st.one_of(
    st.builds(
        "{}{}{}".format,
        DURATIONS,
        st.sampled_from([":", ": ", "", " "]),
        st.lists(CHANGES, max_size=3).map(" ".join),
    ),
    NASTY,
)
TEXTS = st.one_of(NUMBERS, DURATIONS, STAGES, st.text(max_size=12))


class Odd:
    """A value without a representation."""

    def __repr__(self):
        raise RuntimeError("no")


def odd(number):
    """Return a value that no option can have, or a number of another library."""
    plain = [10**5000, -(10**5000), Fraction(1, 3), 1j, b"1", Odd(), Odd, object()]
    return [*plain, np.arange(3), np.float32("nan"), np.int64(3), np.str_("x")][number]


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-3, 300),
        st.integers(-(2**70), 2**70),
        st.floats(),
        TEXTS,
        st.integers(0, 11).map(odd),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.text(max_size=3), st.integers()), inner, max_size=2),
    ),
    max_leaves=4,
)
SMALL = Facts(1437, 360, 10, (8, 8, 1), devices=1)
FACTS = st.sampled_from(
    [
        SMALL,
        dataclasses.replace(SMALL, devices=6, processes=3),
        Facts(1_281_167, 50_000, 1000, (224, 224, 3), devices=2048, processes=512),
    ]
)


def one_line(error, pattern=""):
    text = str(error)
    assert re.search(pattern, text), text
    assert len(text.splitlines()) == 1, text
    assert len(text) < 7000  # what was typed may be repeated, not multiplied
    return text


def check_values(config):
    """Check that a configuration holds plain, finite values."""
    assert isinstance(config, Config)
    for _, value, field in options(config):
        plain = [value] if not isinstance(value, tuple) else list(value)
        assert all(type(v) in (int, float, bool, str) for v in plain), field.name
        assert all(math.isfinite(v) for v in plain if isinstance(v, float))


def check_plan(config, facts):
    """Check that there is a plan that can be run, or one line that names an option."""
    try:
        plan = resolve(config, facts)
    except ConfigError as error:
        one_line(error, rf"\b({'|'.join(SECTIONS)})\.[a-z_]+")
        return
    for stage in plan.stages:
        assert min(stage.steps, stage.microbatch, stage.microbatches, stage.members) >= 1
        assert min(stage.log_every, stage.evaluate_every) >= 1
        assert min(stage.layers_every, stage.checkpoint_every) >= 1
        assert facts.devices * stage.microbatch * stage.microbatches == stage.workers
    assert 1 <= plan.stop_after_step <= plan.steps
    assert 0 < plan.samples <= 2**31
    for step in {1, plan.steps}:
        assert all(math.isfinite(rate) and rate >= 0 for rate in plan.rates(step))


@PROPERTIES
@given(
    st.lists(
        st.one_of(
            st.builds("--config.{}={}".format, KEYS, TEXTS),
            st.builds("--config.{}".format, KEYS),
            TEXTS,
            st.sampled_from(["--config", "--config.", "--config.=", "--lr=3", "-x", "--\n"]),
        ),
        max_size=4,
    )
)
def test_a_command_line(arguments):
    try:
        pairs, others = split_overrides(arguments)
    except ConfigError as error:
        one_line(error)
        return
    assert all(isinstance(word, str) for pair in pairs for word in pair)
    assert 2 * len(pairs) >= len(arguments) - len(others) >= len(pairs)


@PROPERTIES
@given(st.sampled_from(sorted(OPTIONS)), TEXTS)
def test_a_value_on_the_command_line(key, text):
    try:
        config = override(Config(), key, text)
    except ConfigError as error:
        one_line(error, re.escape(key))
        return
    check_values(config)


@pytest.fixture(scope="module")
def recipe_file(tmp_path_factory):
    """A recipe that returns RECIPE."""
    path = tmp_path_factory.mktemp("recipe") / "recipe.py"
    path.write_text(f"import sys\ndef get_config():\n    return sys.modules[{__name__!r}].RECIPE\n")
    return path


@st.composite
def nearly_right(draw):
    """A recipe that can be run but for a few options, with values near the edges."""
    base = {"schedule.peak": 1.0, "schedule.length": "5 epochs", "schedule.warmup": "1 epochs"}
    keys = draw(st.lists(st.sampled_from(sorted(OPTIONS)), max_size=3))
    stages = draw(st.lists(STAGES, max_size=2)) if draw(st.booleans()) else []
    for key in keys:
        default, _ = OPTIONS[key]
        kinds = {
            bool: st.booleans(),
            int: st.one_of(st.integers(-2, 64), st.sampled_from([2**31, 2**62, 2**63, -(2**70)])),
            float: st.one_of(st.floats(0, 4), st.floats()),
            tuple: st.lists(TEXTS, max_size=2),
        }
        near = kinds.get(type(default), st.one_of(st.just(default), NUMBERS, DURATIONS))
        base[key] = draw(st.one_of(near, near, VALUES))
    recipe = {}
    for key, value in base.items():
        section, _, name = key.partition(".")
        recipe.setdefault(section, {})[name] = value
    if stages:
        recipe.setdefault("batch", {})["stages"] = stages
    return recipe


@settings(PROPERTIES, max_examples=60)
@given(
    nearly_right(),
    st.lists(
        st.tuples(
            st.sampled_from(
                ["run.scale_to", "run.scale_length", "schedule.length", "batch.workers"]
            ),
            st.one_of(st.sampled_from(["laptop", "node", "full", "0.1", "1e300", "1e-300"]), TEXTS),
        ),
        max_size=2,
    ),
    FACTS,
)
def test_a_recipe_near_one_that_runs(recipe_file, recipe, others, facts):
    globals()["RECIPE"] = recipe
    try:
        config = load(recipe_file, others)
    except UserError as error:
        one_line(error)
        return
    check_values(config)
    check_plan(config, facts)


SCHEDULE = {"peak": 1.0, "length": "5 epochs", "warmup": "1 epochs"}


@pytest.mark.parametrize(
    ("sections", "option"),
    [
        ({"run": {"seed": 10**5000}}, r"run\.seed"),
        ({"data": {"shift": np.arange(3)}}, r"data\.shift"),
        ({"model": {"name": Odd()}}, r"model\.name"),
        ({"batch": {"wor\nkers": 1}}, r"batch\.wor\\nkers"),
        ({"batch": {"stages": 5 * [[[]]]}}, r"batch\.stages"),
        # The search for its divisors would take minutes.
        ({"batch": {"workers": 2**61 + 1}, "data": {"epoch_end": "repeat"}}, r"batch\.workers"),
        ({"schedule": SCHEDULE | {"length": "9" * 4300 + " epochs"}}, r"schedule\.length"),
        ({"batch": {"stages": ["9\nepochs: rate=2"]}}, r"batch\.stages"),
    ],
)
def test_values_that_once_failed_otherwise(sections, option):
    with pytest.raises(ConfigError, match=option) as caught:
        resolve(freeze({"schedule": SCHEDULE} | sections), SMALL)
    one_line(caught.value)
