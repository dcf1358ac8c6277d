"""Options of a recipe yield to what the user asks for; the user's own are refused."""

import pytest

from largebatch.config import Config, Facts, adjusted, load
from largebatch.config.checks import check_ranges
from largebatch.config.durations import samples
from largebatch.config.facts import KNOWN_SETS
from largebatch.config.resolution import resolve
from largebatch.config.schema import options, replaced
from largebatch.config.unused import settled
from largebatch.environment import ROOT
from largebatch.errors import ConfigError, UserError

RECIPES = sorted((ROOT / "configs").glob("*.py"))


def made(recipe, *overrides):
    notes = []
    return adjusted(recipe, overrides, notes.append), notes


def values(config):
    return {key: value for key, value, _ in options(config)}


def planned(config):
    known = KNOWN_SETS[config.data.source]
    side = config.data.image_size or known.side
    facts = Facts(known.train, known.validation, known.classes, (side, side, 3), devices=1)
    check_ranges(config)
    return resolve(config, facts)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_can_be_shortened(path):
    recipe = load(path)
    if recipe.data.source not in KNOWN_SETS:
        return
    for length in ("4 epochs", "1 epochs"):
        notes = []
        plan = planned(load(path, [("schedule.length", length)], notes.append))
        before = planned(recipe).rate_schedule.learning_rate
        after = plan.rate_schedule.learning_rate
        expected = before.warmup / before.decay_end * after.decay_end
        assert abs(after.warmup - expected) <= plan.first_stage.samples_per_step
        assert len(notes) <= 1
    assert planned(load(path, [("schedule.length", "400 epochs")])).steps > 0


def test_a_shorter_training_is_that_of_scale_length():
    short, scaled = (
        load("digits", [pair])
        for pair in (("schedule.length", "4 epochs"), ("run.scale_length", "0.1"))
    )
    for name in ("length", "warmup"):
        one, other = (getattr(each.schedule, name).split() for each in (short, scaled))
        assert float(one[0]) == float(other[0])
    assert load("digits", [("schedule.length", "80 epochs")]).schedule.warmup == "5 epochs"


def test_a_recipe_of_length_0_can_be_given_another_length():
    recipe = replaced(Config(), {"schedule.length": "0 epochs"})
    assert made(recipe, ("schedule.length", "4 epochs"))[0].schedule.length == "4 epochs"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("schedule.warmup", "5 epochs"),
        ("schedule.decay_end", "1 steps"),
    ],
)
def test_a_duration_that_the_user_gave_is_refused(key, value):
    config = load("digits", [("schedule.length", "4 epochs"), (key, value)])
    with pytest.raises(ConfigError, match=r"schedule\.warmup=.*use"):
        planned(config)


def test_positions_shrink_with_the_training():
    recipe = replaced(
        load("digits"),
        {
            "batch.stages": ("20 epochs: data.flip=true", "75 %: data.flip=false"),
            "run.evaluate_first": "10 epochs",
            "schedule.ema": "2 epochs",
            "schedule.decay": "pieces",
            "schedule.points": ("20 epochs: 0.1", "30 epochs: 0.01"),
        },
    )
    config, _ = made(recipe, ("schedule.length", "4 epochs"))
    assert config.batch.stages == ("2 epochs: data.flip=true", "75 %: data.flip=false")
    assert config.run.evaluate_first == "1 epochs"
    assert config.schedule.ema == "0.2 epochs"
    assert config.schedule.points == ("2 epochs: 0.1", "3 epochs: 0.01")
    kept, _ = made(
        recipe, ("schedule.length", "4 epochs"), ("batch.stages", "1 epochs: data.flip=true")
    )
    assert kept.batch.stages == ("1 epochs: data.flip=true",)


SIGMOID = {"loss.kind": "sigmoid", "loss.target_threshold": 0.2}
POINTS = {"schedule.decay": "pieces", "schedule.points": ("9 %: 0.1",)}
NVIDIA = {"optimizer.flavour": "nvidia", "optimizer.rate": "inside"}
OWN = {"optimizer.name": "mine:rule", "optimizer.options": "b=1"}


@pytest.mark.parametrize(
    ("recipe", "override", "ignored"),
    [
        ({"model.width": 16, "norm.gamma": 0.5}, "model.name=mine:net", 2),
        ({"optimizer.trust_coefficient": 0.1}, "optimizer.name=mine:rule", 1),
        (NVIDIA, "optimizer.name=lamb", 2),
        (OWN, "optimizer.name=sgd", 1),
        (POINTS, "schedule.decay=cosine", 1),
        ({"schedule.warmup_start": 0.1}, "schedule.warmup=0 epochs", 1),
        ({"schedule.per_256": 0.1}, "schedule.peak=2", 1),
        (SIGMOID, "loss.kind=softmax", 1),
        ({"data.validation_split": 0.2}, "data.source=digits", 1),
        ({"data.rectangular": True}, "data.source=synthetic", 1),
        ({"health.replay_every": "1 epochs"}, "batch.deadline_s=1", 1),
    ],
)
def test_options_of_the_recipe_without_effect_are_ignored(recipe, override, ignored):
    """The last ones of each recipe, with one note that names all."""
    config, notes = made(replaced(Config(), recipe), tuple(override.split("=")))
    (note,) = notes
    usual = values(Config())
    for key in list(recipe)[-ignored:]:
        assert values(config)[key] == usual[key]
        assert key in note
    again, none = made(config)
    assert again == config
    assert not none


@pytest.mark.parametrize(
    "overrides",
    [
        {"model.name": "mine:net", "model.width": "16"},
        {"optimizer.name": "sgd", "optimizer.trust_coefficient": "0.1"},
        {"optimizer.name": "optax:sgd", "optimizer.momentum": "0.8"},
        {"optimizer.options": "b=1"},
        {"loss.target_threshold": "0.2"},
        {"data.validation_split": "0.1"},
    ],
)
def test_options_of_the_user_without_effect_are_refused(overrides):
    with pytest.raises(ConfigError, match=r"use ") as caught:
        load("digits", list(overrides.items()))
    assert any(str(caught.value).startswith(f"{key}=") for key in overrides)


def test_a_part_of_a_stage_without_effect_is_ignored():
    recipe = replaced(
        Config(),
        {
            "batch.stages": (
                "1 epochs: data.rectangular=true data.image_size=9",
                "9 %: data.rectangular=false",
            )
        },
    )
    config, _ = made(recipe, ("data.source", "synthetic"))
    assert config.batch.stages == ("1 epochs: data.image_size=9",)
    with pytest.raises(ConfigError, match=r"data\.rectangular"):
        made(
            Config(),
            ("data.source", "synthetic"),
            ("batch.stages", "1 epochs: data.rectangular=true"),
        )


def test_a_lower_peak_lowers_the_ends_of_the_schedule():
    recipe = replaced(
        Config(), {"schedule.peak": 4.0, "schedule.warmup_start": 1.0, "schedule.end": 0.02}
    )
    config, notes = made(recipe, ("schedule.peak", "0.1"))
    assert (config.schedule.warmup_start, config.schedule.end) == (0.025, 0.02)
    assert len(notes) == 1
    assert made(recipe, ("schedule.peak", "2"))[0].schedule.warmup_start == 1.0


def test_an_error_that_only_the_dataset_shows_is_avoided_for_the_recipe():
    def use(config):
        if config.data.validation_split:
            raise UserError("taken", unused=("data.validation_split",))
        return 1

    recipe, notes = replaced(Config(), {"data.validation_split": 0.1}), []
    config, result = settled(recipe, {"run.seed"}, use, notes.append)
    assert (config, result, len(notes)) == (Config(), 1, 1)
    for given in ({"data.validation_split"}, None):
        with pytest.raises(UserError, match="taken"):
            settled(recipe, given, use, notes.append)


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("run.stop_after", "20", 2000),
        ("health.replay_every", " 1_0", 1000),
        ("run.log_every", "0", 0),
    ],
)
def test_a_plain_number_is_steps_of_a_run(key, text, expected):
    assert samples(text, key, per_step=100, per_epoch=7) == expected
