"""Durations, stages and plans: the sums agree."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from largebatch.config import Facts, freeze
from largebatch.config.durations import epoch_samples, samples
from largebatch.config.resolution import resolve
from largebatch.errors import ConfigError

SIZES = st.integers(1, 10**7)


@st.composite
def amounts(draw):
    """A decimal number, as text and exactly."""
    whole = draw(st.integers(0, 10**6))
    digits = draw(st.text("0123456789", max_size=6))
    text = f"{whole:_}" if draw(st.booleans()) else str(whole)
    return text + (f".{digits}" if digits else ""), Fraction(f"{whole}.{digits or 0}")


@given(amounts(), st.sampled_from(["sample", "step", "epoch", "%"]), SIZES, SIZES, SIZES)
def test_a_duration_is_the_nearest_number_of_samples(amount, unit, per_step, per_epoch, length):
    text, exact = amount
    per = {"per_step": per_step, "per_epoch": per_epoch, "length": length}
    size = {"sample": 1, "step": per_step, "epoch": per_epoch, "%": Fraction(length, 100)}[unit]
    words = [unit] if unit == "%" else [unit, f"{unit}s"]
    forms = [
        f"{pad}{text}{gap}{word}{pad}" for pad in ("", " ") for gap in ("", " ") for word in words
    ]
    found = {samples(form, "x", **per) for form in forms}
    assert len(found) == 1
    assert abs(found.pop() - exact * size) <= Fraction(1, 2)


@given(st.integers(1, 10**7), st.integers(1, 10**6))
def test_an_epoch_is_all_examples_or_the_nearest_whole_steps(examples, batch):
    assert epoch_samples(examples, batch, "continue") == examples
    repeated = epoch_samples(examples, batch, "repeat")
    assert repeated % batch == 0
    assert examples <= repeated < examples + batch
    if examples < batch:
        with pytest.raises(ConfigError, match="epoch_end=drop"):
            epoch_samples(examples, batch, "drop")
    else:
        dropped = epoch_samples(examples, batch, "drop")
        assert dropped % batch == 0
        assert examples - batch < dropped <= examples


@st.composite
def staged(draw):
    """A plan of one to four stages, with the requested beginning of each."""
    devices = draw(st.sampled_from([1, 2, 4]))
    begins = sorted(draw(st.sets(st.integers(1, 1_999), max_size=3)))
    texts = []
    for begin in begins:
        workers = devices * draw(st.integers(1, 6))
        images = draw(st.integers(1, 12))
        texts.append(f"{begin} samples: batch.workers={workers} batch.images_per_worker={images}")
    every = [f"{draw(st.integers(1, 400))} samples" for _ in range(3)]
    config = freeze(
        {
            "batch": {
                "workers": devices * draw(st.integers(1, 6)),
                "images_per_worker": draw(st.integers(1, 12)),
                "stages": texts,
            },
            "schedule": {"length": "2000 samples", "warmup": "100 samples", "peak": 1.0},
            "run": dict(
                zip(("log_every", "evaluate_every", "checkpoint_every"), every, strict=True)
            ),
        }
    )
    facts = Facts(1437, 360, 10, (8, 8, 1), devices=devices)
    try:
        return resolve(config, facts), begins
    except ConfigError as error:  # two stages may begin at the same step
        assume("has no step" not in str(error))
        raise


@given(staged())
def test_stages_share_out_all_steps_and_samples(made):
    plan, begins = made
    assert sum(stage.steps for stage in plan.stages) == plan.steps
    assert min(stage.steps for stage in plan.stages) >= 1
    assert sum(s.steps * s.samples_per_step for s in plan.stages) == plan.samples
    last = plan.stages[-1].samples_per_step
    assert plan.samples - last < 2_000 <= plan.samples
    for before, stage, begin in zip(plan.stages, plan.stages[1:], begins, strict=False):
        # Each begins at the whole step that is nearest to where it should.
        assert abs(stage.first_sample - begin) * 2 <= before.samples_per_step
    positions = [plan.position(step) for step in range(plan.steps + 1)]
    owners = [plan.stage_at(step) for step in range(1, plan.steps + 1)]
    assert positions[0] == 0
    assert np.diff(positions).tolist() == [stage.samples_per_step for stage in owners]
    for stage in plan.stages:
        assert stage.facts.devices * stage.microbatch * stage.microbatches == stage.workers
        assert sum(owner is stage for owner in owners) == stage.steps
        assert positions[stage.first_step] == stage.first_sample


@given(staged(), st.data())
def test_steps_until_a_position_are_the_fewest_that_reach_it(made, data):
    plan, _ = made
    position = data.draw(st.integers(0, plan.samples + 100))
    steps = plan.steps_until(position)
    if position > plan.samples:
        assert steps == plan.steps
        return
    assert plan.position(steps) >= position
    assert steps == 0 or plan.position(steps - 1) < position
    if position:
        # The sample number `position`, from 1, is consumed by the last of these steps.
        assert plan.stage_of(position) is plan.stage_at(steps)


@settings(max_examples=80)
@given(staged())
def test_actions_are_due_at_their_interval_and_evaluations_are_counted(made):
    plan, _ = made
    steps = range(1, plan.steps + 1)
    half = Fraction(1, 2)
    for name in ("log_every", "evaluate_every", "checkpoint_every"):
        expected = set()
        for stage in plan.stages:
            start, every = plan.position(stage.counted_from), getattr(stage, name)
            for multiple in range(every, plan.samples + every, every):
                # The step nearest to it, or the last step if that begins before it.
                step = math.ceil(Fraction(multiple, stage.samples_per_step) - half)
                step += stage.counted_from
                if start + multiple > plan.position(plan.steps - 1):
                    step = max(step, plan.steps)
                if step <= plan.steps and plan.stage_at(step) is stage:
                    expected.add(step)
        assert [s for s in steps if plan.is_due(s, getattr(plan.stage_at(s), name))] == sorted(
            expected
        )
    due = [step for step in steps if plan.evaluates_at(step)]
    assert plan.evaluations == len({*due, plan.steps})
