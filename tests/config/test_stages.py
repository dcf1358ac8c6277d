"""Stages: positions, changed options, and errors."""

import pytest

from largebatch.config import Facts, freeze
from largebatch.config.resolution import resolve
from largebatch.errors import ConfigError

FACTS = Facts(1000, 100, 10, (8, 8, 1), devices=2)


def config(*stages, **sections):
    base = {
        "batch": {"workers": 4, "images_per_worker": 5, "stages": stages},
        "schedule": {"length": "10 epochs", "warmup": "1 epochs", "peak": 2.0},
    }
    for section, chosen in sections.items():
        base[section] = {**base.get(section, {}), **chosen}
    return freeze(base)


def plan(*stages, **sections):
    return resolve(config(*stages, **sections), FACTS)


def test_a_change_holds_in_the_following_stages():
    made = plan(
        "2 epochs: batch.workers=8",
        "45 %: batch.images_per_worker=7 data.image_size=12",
        "9000 samples: batch.workers=2 data.shuffle=false",
    )
    sizes = [(s.workers, s.images_per_worker, s.facts.image_shape[0]) for s in made.stages]
    assert sizes == [(4, 5, 8), (8, 5, 8), (8, 7, 12), (2, 7, 12)]
    assert [s.config.data.shuffle for s in made.stages] == [True, True, True, False]


def test_the_learning_rate_is_that_of_the_position_times_the_factor_of_the_stage():
    plain, made = plan(), plan("5 epochs: batch.workers=8 rate=1.5", "8 epochs: rate=0.5")
    for step in range(1, made.steps + 1):
        position = made.position(step - 1)
        factor = 1.0 if position < 5000 else 1.5 if position < 8000 else 0.5
        same = position // 20 + 1  # the step of the plain plan that begins there
        rates = made.rates(step), plain.rates(same)
        if position % 20 == 0:
            assert rates[0].learning_rate == pytest.approx(
                factor * rates[1].learning_rate, rel=1e-12, abs=1e-9
            )


def test_intervals_are_counted_from_where_the_batch_changes():
    made = plan(
        "4 epochs: batch.workers=8",
        "8 epochs: data.shuffle=false",
        run={"evaluate_every": "2 epochs", "evaluate_first": "1 epochs"},
    )
    found = [step for step in range(1, made.steps + 1) if made.evaluates_at(step)]
    # 50 steps an epoch, then 25. The last stage has the same batch as the one before it.
    assert found == [50, 150, 200 + 50, 200 + 100, 200 + 150]


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ("5 epochs", [200 + 25, 200 + 75, 200 + 125]),
        ("4 epochs", [200, 250, 300, 350]),
        # Nearest to the last step before the change of the batch, and to the first one after it.
        ("4009 samples", [200, 250, 300, 350]),
        ("4011 samples", [201, 251, 301]),
    ],
)
def test_the_first_evaluation_may_follow_a_change_of_the_batch(first, expected):
    made = plan(
        "4 epochs: batch.workers=8",
        run={"evaluate_every": "2 epochs", "evaluate_first": first},
    )
    assert [step for step in range(1, made.steps + 1) if made.evaluates_at(step)] == expected


@pytest.mark.parametrize(
    ("stage", "word"),
    [
        ("2 epochs: optimizer.momentum=0.5", r"optimizer\.momentum"),
        ("2 epochs: batch.workers", r"batch\.workers=VALUE"),
        ("2 epochs: batch.workers=3", r"batch\.workers=3"),
        ("0 epochs: batch.workers=8", r"batch\.stages: .*'0 epochs'"),
        ("12 epochs: batch.workers=8", "12 epochs"),
    ],
)
def test_impossible_stages_are_named(stage, word):
    with pytest.raises(ConfigError, match=word):
        plan(stage)


@pytest.mark.parametrize(
    ("sections", "option"),
    [
        ({"data": {"epoch_end": "repeat"}}, r"data\.epoch_end=repeat"),
        ({"schedule": {"warmup": "3 steps"}}, r"schedule\.warmup='3 steps'"),
    ],
)
def test_options_that_depend_on_the_size_of_a_step(sections, option):
    with pytest.raises(ConfigError, match=option):
        plan("2 epochs: batch.workers=8", **sections)
    plan("2 epochs: data.shuffle=false", **sections)  # the batch stays
