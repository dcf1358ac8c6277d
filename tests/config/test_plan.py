import dataclasses
import itertools
import math

import pytest

from largebatch.config import Facts, freeze
from largebatch.config.checks import span_fits
from largebatch.config.plan import microbatch_candidates
from largebatch.config.resolution import resolve
from largebatch.errors import ConfigError

FACTS = Facts(
    train_examples=1000, validation_examples=100, classes=10, image_shape=(8, 8, 1), devices=4
)


def config(**sections):
    sections.setdefault("schedule", {}).setdefault("peak", 1.0)
    sections["schedule"].setdefault("length", "10 epochs")
    sections["schedule"].setdefault("warmup", "1 epochs")
    return freeze(sections)


def plan(devices=4, microbatch=None, **sections):
    facts = dataclasses.replace(FACTS, devices=devices)
    return resolve(config(**sections), facts, microbatch=microbatch)


@pytest.mark.parametrize("span", [1, 2, 4, 8, 16, "all"])
@pytest.mark.parametrize("devices", [1, 2, 4, 8])
def test_workers_devices_and_spans_always_add_up(devices, span):
    for m in microbatch_candidates(
        config(batch={"workers": 16}, norm={"span": span}),
        dataclasses.replace(FACTS, devices=devices),
    ):
        whole = plan(devices, batch={"workers": 16, "microbatch": m}, norm={"span": span})
        made = whole.first_stage
        assert made.microbatch * made.microbatches * devices == 16
        # A span is what the members of a group compute together, or part of a device's microbatch.
        together = made.members * made.microbatch
        assert made.spans_per_microbatch * made.span == max(together, made.microbatch)
        assert devices % made.members == 0


def test_spans_fit_exactly_when_they_can_be_formed():
    for m, devices, span in itertools.product(range(1, 9), range(1, 9), range(1, 17)):
        # By hand: workers of consecutive devices in one microbatch, cut into runs of `span`.
        owner = [d for d in range(devices) for _ in range(m)]
        runs = [owner[i : i + span] for i in range(0, len(owner), span)]
        whole = len(owner) % span == 0
        inside = whole and all(len(set(run)) == 1 for run in runs)
        across = whole and span >= m and all(len(set(run)) * m == span for run in runs)
        assert span_fits(m, devices, span) == (inside or across), (m, devices, span)


def test_actions_are_due_at_the_steps_nearest_to_their_interval():
    made = plan(
        batch={"workers": 4, "images_per_worker": 16},
        schedule={"length": "10 epochs"},
        run={
            "log_every": "1 samples",
            "checkpoint_every": "1 epochs",
            "evaluate_every": "5 epochs",
            "stop_after": "3 steps",
        },
    )
    steps, stage = range(1, made.steps + 1), made.first_stage
    assert all(made.is_due(step, stage.log_every) for step in steps)
    # An epoch has 15.625 steps. Ten times the 16 of the first one would be 160 and not 156.
    nearest = [round(1000 / 64 * epoch) for epoch in range(1, 11)]
    # The last step, the 157th, ends what the 10 epochs began; nothing is due just before it.
    assert (made.steps, nearest[9]) == (157, 156)
    ends = [*nearest[:9], 157]
    assert [s for s in steps if made.is_due(s, stage.checkpoint_every)] == ends
    assert [s for s in steps if made.evaluates_at(s)] == [ends[4], ends[9]]
    assert made.stop_after_step == 3


def test_the_first_evaluation_does_not_move_those_after_it():
    made = plan(
        batch={"workers": 4, "images_per_worker": 16},
        schedule={"length": "10 epochs"},
        run={"evaluate_every": "3 epochs", "evaluate_first": "2 epochs"},
    )
    # After 2, 5 and 8 epochs of 15.625 steps, and at the end.
    found = [s for s in range(1, made.steps + 1) if made.evaluates_at(s)]
    assert found == [31, 78, 125]
    assert made.evaluations == 4
    assert plan().stop_after_step == plan().steps


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"batch": {"workers": 10}}, ["batch.workers=10", "8 or 12", "2"]),
        ({"batch": {"workers": 16, "microbatch": 3}}, ["batch.microbatch=3", "2 or 4"]),
        (
            {"batch": {"workers": 16, "microbatch": 1}, "norm": {"span": 8}},
            ["batch.microbatch=1", "norm.span=8", "use 2"],
        ),
        ({"batch": {"workers": 16}, "norm": {"span": 3}}, ["norm.span=3", "2 or 4"]),
        ({"batch": {"workers": 16}, "norm": {"span": 32}}, ["norm.span=32", "16"]),
        (
            {"batch": {"workers": 64, "images_per_worker": 32}, "data": {"epoch_end": "drop"}},
            ["data.epoch_end=drop", "use continue"],
        ),
        ({"loss": {"label_smoothing": 1.0}}, ["loss.label_smoothing=1.0"]),
        ({"schedule": {"length": "9000000 epochs"}}, ["schedule.length", "2,147,483,648"]),
        ({"schedule": {"peak": 0.0}}, ["schedule.peak", "schedule.per_256"]),
        ({"schedule": {"per_256": 0.1}}, ["schedule.peak", "schedule.per_256"]),
        ({"schedule": {"warmup": "20 epochs"}}, ["schedule.warmup"]),
        ({"run": {"seed": 2**31}}, ["run.seed=2147483648"]),
    ],
)
def test_the_impossible_is_refused_with_the_option_and_the_remedy(sections, words):
    with pytest.raises(ConfigError) as caught:
        resolve(config(**sections), FACTS)
    for word in words:
        assert word in str(caught.value)


def test_every_remedy_for_workers_works():
    for workers, devices in itertools.product(range(1, 40), range(1, 9)):
        if workers % devices == 0:
            continue
        with pytest.raises(ConfigError) as caught:
            plan(devices, batch={"workers": workers, "images_per_worker": 1})
        numbers = [
            int(word) for word in str(caught.value).split("; use ")[1].split() if word.isdigit()
        ]
        *suggested, near = numbers
        for better in suggested:
            plan(devices, batch={"workers": better, "images_per_worker": 1})
        plan(near, batch={"workers": workers, "images_per_worker": 1})


@pytest.mark.parametrize(
    ("text", "batch", "kept"),
    [
        ("30000000 samples", 1024, 1 - 2e-5 * 1024 / 600),  # torchvision: 0.99998, 600 epochs
        ("5000 steps", 24, 0.9998),  # timm
        ("1 epochs", 250, math.exp(-0.25)),
    ],
)
def test_the_horizon_does_not_depend_on_the_batch(text, batch, kept):
    made = config(schedule={"ema": text}, batch={"workers": 1, "images_per_worker": batch})
    plan = resolve(made, Facts(2000 if batch > 1000 else 1000, 100, 10, (8, 8, 1), devices=1))
    # exp(−x) instead of 1 − x: 6e-10 for torchvision's x, 2e-8 for timm's
    assert plan.first_stage.ema_kept == pytest.approx(kept, abs=3e-8)


def test_a_horizon_in_steps_is_refused_where_the_batch_grows():
    stages = {"images_per_worker": 3, "stages": ("4 steps: batch.images_per_worker=6",)}
    facts = Facts(1000, 100, 10, (8, 8, 1), devices=1)
    with pytest.raises(ConfigError, match=r"schedule\.ema"):
        resolve(config(schedule={"ema": "9 steps", "length": "2 epochs"}, batch=stages), facts)
    plan = resolve(config(schedule={"ema": "1 epochs", "length": "2 epochs"}, batch=stages), facts)
    before, after = (stage.ema_kept for stage in plan.stages)
    assert after == pytest.approx(before**2, rel=1e-12)
