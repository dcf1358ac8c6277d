import dataclasses
import itertools

import pytest

from largebatch.config import Config, Facts, freeze, microbatch_candidates, resolve
from largebatch.config.geometry import divisors, span_fits
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


def test_the_numbers_of_a_plan():
    made = plan(batch={"workers": 16, "images_per_worker": 4, "microbatch": 2}, norm={"span": 4})
    stage = made.first_stage
    assert stage.samples_per_step == 64
    assert (stage.microbatch, stage.microbatches) == (2, 2)
    assert (stage.span, stage.members, stage.spans_per_microbatch) == (4, 2, 1)
    assert stage.local_images == 8
    assert stage.microbatch_samples == 32
    assert made.steps == 157  # ceil(10,000 / 64)
    assert made.samples == 157 * 64
    assert made.schedule.warmup == 1000
    assert made.schedule.decay_end == made.samples


def test_steps_are_never_rounded_down():
    for batch in (1, 3, 7, 64, 999, 1000):
        made = plan(devices=1, batch={"workers": 1, "images_per_worker": batch})
        assert (made.steps - 1) * batch < 10_000 <= made.steps * batch


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


def test_auto_takes_the_largest_or_the_choice_made():
    assert plan(batch={"workers": 16}).first_stage.microbatch == 4
    assert plan(batch={"workers": 16}, microbatch=2).first_stage.microbatch == 2


def test_momentum_by_samples():
    made = plan(
        batch={"workers": 8, "images_per_worker": 32},
        norm={"momentum": 0.9, "momentum_samples": 128},
    )
    assert made.first_stage.norm_momentum == pytest.approx(
        0.81
    )  # 256 samples are two updates of 128
    assert plan(norm={"momentum": 0.9}).first_stage.norm_momentum == 0.9


def test_intervals_are_whole_steps_and_at_least_one():
    made = plan(
        batch={"workers": 4, "images_per_worker": 16},
        run={"log_every": "1 samples", "evaluate_every": "1 epochs", "stop_after": "3 steps"},
    )
    assert made.first_stage.log_every_steps == 1
    assert made.first_stage.evaluate_every_steps == 16  # 1000 / 64 = 15.6
    assert made.stop_after_step == 3
    assert plan().stop_after_step == plan().steps


def test_what_is_looked_for_has_steps_of_its_own_or_never():
    made = plan(
        batch={"workers": 4, "images_per_worker": 16},
        health={"hosts_every": "3 steps", "replay_every": "1 epochs", "stuck_after": "30 %"},
    )
    stage = made.first_stage
    assert (stage.hosts_every_steps, stage.replay_every_steps) == (3, 16)
    assert made.stuck_after_step == 47  # 3,014 of 10,048 samples are 47.1 steps of 64
    assert [s for s in range(1, 10) if made.is_due(s, stage.hosts_every_steps)] == [3, 6, 9]
    never = plan(health=dict.fromkeys(("hosts_every", "replay_every", "stuck_after"), ""))
    stage = never.first_stage
    assert (stage.hosts_every_steps, stage.replay_every_steps, never.stuck_after_step) == (0, 0, 0)
    assert not any(never.is_due(s, stage.hosts_every_steps) for s in range(10))


def test_the_step_at_which_the_warm_up_is_over():
    made = plan(batch={"workers": 4, "images_per_worker": 16})
    assert made.warmup_steps == 16  # 1,000 samples: in the middle of the sixteenth
    rates = [made.rates(step).learning_rate for step in range(1, made.steps + 1)]
    assert rates[:16] == sorted(rates[:16])
    assert rates[16:] == sorted(rates[16:], reverse=True)
    assert plan(schedule={"warmup": "0 epochs"}).warmup_steps == 0


def test_divisors():
    assert divisors(1) == (1,)
    assert divisors(36) == (1, 2, 3, 4, 6, 9, 12, 18, 36)


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        (
            {"batch": {"workers": 10}},
            ["batch.workers=10", "4 devices", "8 or 12 workers", "2 of the devices"],
        ),
        ({"batch": {"workers": 3}}, ["batch.workers=3", "4 workers", "3 of the devices"]),
        (
            {"batch": {"workers": 16, "microbatch": 3}},
            ["batch.microbatch=3", "4 workers of each device", "2 or 4"],
        ),
        (
            {"batch": {"workers": 16, "microbatch": 1}, "norm": {"span": 8}},
            ["batch.microbatch=1", "4 workers", "norm.span=8", "use 2"],
        ),
        (
            {"batch": {"workers": 16, "microbatch": 2}, "norm": {"span": "all"}},
            ["batch.microbatch=2", "8 workers", "norm.span=16", "use 4"],
        ),
        ({"batch": {"workers": 16}, "norm": {"span": 3}}, ["norm.span=3", "2 or 4"]),
        ({"batch": {"workers": 16}, "norm": {"span": 32}}, ["norm.span=32", "16"]),
        (
            {"batch": {"workers": 64, "images_per_worker": 32}},
            ["2,048", "1,000 training examples", "batch.workers=31", "data.repeat=true"],
        ),
        ({"batch": {"workers": 0}}, ["batch.workers=0", "above 0"]),
        ({"batch": {"images_per_worker": -4}}, ["batch.images_per_worker=-4", "above 0"]),
        ({"loss": {"label_smoothing": 1.0}}, ["loss.label_smoothing=1.0", "below 1"]),
        ({"optimizer": {"momentum": -0.1}}, ["optimizer.momentum=-0.1"]),
        ({"schedule": {"length": "0 epochs"}}, ["schedule.length='0 epochs'"]),
        ({"schedule": {"length": "9000000 epochs"}}, ["schedule.length", "2,147,483,648"]),
        ({"schedule": {"peak": 0.0}}, ["schedule.peak", "schedule.per_256"]),
        ({"schedule": {"per_256": 0.1}}, ["schedule.peak", "schedule.per_256"]),
        ({"schedule": {"warmup": "20 epochs"}}, ["schedule.warmup"]),
        ({"run": {"seed": 2**31}}, ["run.seed=2147483648", "below 2147483648"]),
        (
            {"run": {"evaluate_every": "often"}},
            ["run.evaluate_every='often'", "expected a duration"],
        ),
        (
            {"health": {"hosts_every": "often"}},
            ["health.hosts_every='often'", "expected a duration"],
        ),
        ({"health": {"stuck_after": "soon"}}, ["health.stuck_after='soon'", "expected a duration"]),
    ],
)
def test_the_impossible_is_one_line_with_numbers_and_remedy(sections, words):
    with pytest.raises(ConfigError) as caught:
        plan(**sections)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message


def test_space_to_depth_needs_even_images():
    made = config(model={"stem": "space_to_depth"}, batch={"workers": 4})
    with pytest.raises(ConfigError, match=r"space_to_depth.*7×8 pixels.*conv7"):
        resolve(made, dataclasses.replace(FACTS, image_shape=(7, 8, 1)))
    resolve(made, FACTS)


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


def test_a_larger_batch_than_the_data_needs_repeat():
    made = plan(batch={"workers": 64, "images_per_worker": 32}, data={"repeat": True})
    assert made.first_stage.samples_per_step == 2048
    assert made.steps == 5


def test_the_default_configuration_is_of_imagenet_shape():
    facts = Facts(1_281_167, 50_000, 1000, (224, 224, 3), devices=8)
    peak = dataclasses.replace(Config().schedule, per_256=0.1)
    made = resolve(dataclasses.replace(Config(), schedule=peak), facts)
    assert made.schedule.peak == pytest.approx(0.1)
    assert made.steps == -(-90 * 1_281_167 // 256)
