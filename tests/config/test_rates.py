"""From the options of a configuration to the hyperparameters of each step."""

import pytest

from largebatch.config import Facts, freeze
from largebatch.config.rates import rates_of
from largebatch.config.resolution import resolve
from largebatch.errors import ConfigError
from largebatch.optim import FLAVOURS, Blend
from largebatch.optim.lars import lars_of

PER = {"per_step": 100, "per_epoch": 1000, "length": 90_000}


def config(**sections):
    base = {"schedule": {"peak": 4.0, "warmup": "5 epochs"}}
    for section, options in sections.items():
        base[section] = {**base.get(section, {}), **options}
    return freeze(base)


def made(**sections):
    return rates_of(config(**sections), **PER)


# RECIPES: 86,016 images a step, 15 steps an epoch, 90 epochs; the values are published to three
# digits.
FUJITSU = {18: 6.5, 36: 13.0, 50: 6.54, 60: 3.35, 70: 1.29, 80: 0.244, 86: 0.0425, 90: 0.0325}


def test_the_rates_of_a_published_run():
    """Fujitsu's submission to MLPerf v0.6, written as a recipe has it."""
    chosen = config(
        optimizer={"flavour": "fujitsu", "momentum": 0.96, "weight_decay": 5e-5},
        schedule={
            "length": "1350 steps",
            "peak": 13.0,
            "warmup": "540 steps",
            "power": 2.2,
            "end": 0.0325,
            "decay_end": "1320 steps",
            "weight_decay": "follow",
        },
    )
    batch = 86_016
    found = rates_of(chosen, per_step=batch, per_epoch=15 * batch, length=1350 * batch)
    for epoch, rate in FUJITSU.items():
        given = found.at(15 * epoch * batch, 15 * epoch * batch - batch, 15 * epoch + 1)
        assert float(f"{given.learning_rate:.3g}") == rate
        # Its own warm-up is as long as that of the rate: constant.
        assert given.weight_decay == pytest.approx(5e-5, rel=1e-15)
        assert given.momentum == 0.96
        assert given.peak_decay == pytest.approx(6.5e-4, rel=1e-15)


def test_a_factory_of_optax_has_no_momentum_of_ours():
    assert made(optimizer={"name": "optax:lion"}).at(0, None, 1).momentum == 0


def test_points_are_durations():
    lines = {"decay": "lines", "points": ("16 epochs: 0.5", " 50 %:1e-1", "89 epochs: 0")}
    found = made(schedule=lines).learning_rate
    assert found.points == ((16_000, 0.5), (45_000, 0.1), (89_000, 0.0))
    cosine = {"warmup_shape": "cosine", "warmup_start": 0.8, "warmup": "7.6 epochs"}
    assert made(schedule=cosine).learning_rate(3800) == pytest.approx(2.4, rel=1e-15)
    power = {"warmup_shape": "quadratic"}
    assert made(schedule=power).learning_rate(2500) == 1.0


@pytest.mark.parametrize(
    ("options", "corrected"),
    [
        ({}, False),
        ({"flavour": "nvidia"}, True),
        ({"flavour": "nvidia", "rate": "inside"}, False),
        ({"name": "sgd", "rate": "inside_corrected"}, True),
        ({"name": "lamb"}, False),
    ],
)
def test_which_optimizers_correct_momentum(options, corrected):
    assert made(optimizer=options).corrected is corrected


def test_weight_decay():
    assert made().at(0, None, 1).weight_decay == 1e-4
    follow = {"weight_decay": "follow", "warmup_start": 1.0}
    found = made(schedule=follow)
    own, warmed = 0.5, found.at(2500, None, 1).learning_rate / found.learning_rate.peak
    assert found.at(2500, None, 1).weight_decay == pytest.approx(1e-4 * own / warmed, rel=1e-15)
    assert found.at(5000, None, 1).weight_decay == pytest.approx(1e-4, rel=1e-15)


def test_blend_of_two_optimizers():
    assert made().blend is None
    found = made(optimizer={"name": "rmsprop_sgd"})
    assert found.blend == Blend(10_000, 5_000)  # epochs of 1,000 samples
    shorter = made(optimizer={"name": "rmsprop_sgd"}, run={"scale_length": 0.1})
    assert shorter.blend == Blend(1_000, 500)


@pytest.mark.parametrize(
    ("sections", "option"),
    [
        ({"optimizer": {"flavour": "mlperf trust_clip=(1.0,)"}}, r"optimizer\.flavour: trust_clip"),
        (
            {"optimizer": {"flavour": "mlperf zero_norm='no'"}},
            r"optimizer\.flavour: zero_norm='no'",
        ),
        ({"optimizer": {"flavour": "apex trust_skip='bn'"}}, r"optimizer\.flavour: trust_skip"),
        ({"optimizer": {"flavour": "apex trust_klip=()"}}, r"optimizer\.flavour: .*trust_klip"),
        ({"schedule": {"decay": "pieces", "points": ("16 epochs: much",)}}, r"schedule\.points"),
    ],
)
def test_contradictions_and_wrong_values_are_named(sections, option):
    with pytest.raises(ConfigError, match=option):
        made(**sections)


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_auto_is_the_choice_of_the_flavour(flavour):
    assert lars_of(config(optimizer={"flavour": flavour}).optimizer) == FLAVOURS[flavour]


def test_a_plan_gives_the_rates_of_its_steps():
    facts = Facts(1000, 100, 10, (8, 8, 1), devices=1)
    stages = {"workers": 4, "images_per_worker": 25, "microbatch": 1}
    stages["stages"] = ("2 epochs: batch.images_per_worker=50 rate=2",)
    plan = resolve(
        config(
            batch=stages,
            optimizer={"flavour": "nvidia"},
            schedule={"length": "4 epochs", "warmup": "1 epochs", "decay": "linear"},
        ),
        facts,
    )
    assert plan.schedule is plan.rate_schedule.learning_rate
    # Ten steps of 100 samples in each of the first two epochs, then five of 200 in each.
    assert plan.rates(1).momentum == plan.rates(2).momentum == 0.9  # the first rate is 0
    assert plan.rates(6).learning_rate == 2.0
    assert plan.rates(6).momentum == pytest.approx(0.9 * 2.0 / 1.6, rel=1e-15)
    before, after = plan.schedule(1900), plan.schedule(2000)
    assert plan.rates(21).learning_rate == 2 * after
    assert plan.rates(21).momentum == pytest.approx(0.9 * 2 * after / before, rel=1e-15)
    assert plan.rates(22).momentum == pytest.approx(0.9 * plan.schedule(2200) / after, rel=1e-15)
    assert plan.rates(22).step == 22
