"""Schedules: bounded, continuous, and a function of the sample position."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from largebatch.config.durations import samples
from largebatch.config.load import adjusted
from largebatch.config.schema import Config, options
from largebatch.optim import Schedule

DECAYS = (
    "polynomial",
    "linear",
    "cosine",
    "pieces",
    "lines",
    "constant",
)
POSITIONS = st.integers(0, 10**7)


@st.composite
def schedules(draw, decays=DECAYS):
    """A valid schedule."""
    decay = draw(st.sampled_from(decays))
    peak = draw(st.floats(1e-6, 1e3))
    warmup = draw(st.one_of(st.just(0), st.integers(1, 10**5)))
    length = draw(st.integers(4, 10**6))
    inside = st.integers(warmup + 1, warmup + length - 1)
    low = st.floats(0, 1)
    fields = {
        "peak": peak,
        "warmup": warmup,
        "decay_end": warmup + length,
        "decay": decay,
        "start": peak * draw(low) if warmup else 0.0,
        "warmup_shape": draw(st.sampled_from(["linear", "quadratic", "cosine"])),
        "power": draw(st.floats(1, 4)),
    }
    if decay in ("polynomial", "linear", "cosine"):
        fields["end"] = peak * draw(low)
    if decay in ("pieces", "lines"):
        places = sorted(draw(st.sets(inside, min_size=1, max_size=4)))
        fields["points"] = tuple((place, draw(low)) for place in places)
    return Schedule(**fields)


@given(schedules(), POSITIONS)
def test_a_rate_lies_between_0_and_the_peak(schedule, position):
    """Rounding may exceed the peak by two ulp."""
    assert 0 <= schedule(position) <= schedule.peak * (1 + 1e-15)
    assert 0 <= schedule.share(position) <= 1 + 1e-15
    assert 0 <= schedule.warmed(position) <= 1 + 1e-15


@given(schedules(), POSITIONS)
def test_the_last_value_stays(schedule, beyond):
    last = max([schedule.decay_end, *(place for place, _ in schedule.points)])
    assert schedule(last + beyond) == schedule(last)
    if schedule.decay in ("polynomial", "linear", "cosine"):
        assert schedule(last) == schedule.end


@given(schedules(), st.integers(2, 1000), POSITIONS)
def test_with_positions_in_another_unit_it_is_the_same_curve(schedule, unit, position):
    """1e-9 of the peak: a cube of a ratio, and differences of numbers near one another."""
    fields = {name: unit * getattr(schedule, name) for name in ("warmup", "decay_end")}
    fields["points"] = tuple((unit * place, value) for place, value in schedule.points)
    stretched = dataclasses.replace(schedule, **fields)
    assert stretched(unit * position) == pytest.approx(
        schedule(position), rel=1e-9, abs=1e-9 * schedule.peak
    )


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 99), st.integers(1, 400))
def test_scale_length_stretches_every_duration(per_step, per_epoch, percent, tenths):
    """To half a sample, and to the 1e-9 of a unit that is written."""
    factor = tenths / 10
    chosen = {
        "schedule.length": "90 epochs",
        "schedule.warmup": "1_000 samples",
        "schedule.decay_end": f"{percent} %",
        "schedule.decay": "pieces",
        "schedule.points": "16.5 epochs: 0.5, 33 steps: 0.25",
        "run.evaluate_every": "4 steps",
        "run.checkpoint_every": "0.3 epochs",
        "batch.stages": "7 epochs: batch.images_per_worker=4",
    }
    per = {"per_step": per_step, "per_epoch": per_epoch, "length": 10**9}
    recipe = adjusted(Config(), chosen.items())
    scaled = adjusted(recipe, [("run.scale_length", str(factor))])
    for (key, old, _), (_, new, _) in zip(options(recipe), options(scaled), strict=True):
        if key not in chosen or key == "schedule.decay":
            continue
        pairs = zip(old, new, strict=True) if isinstance(old, tuple) else [(old, new)]
        for a, b in pairs:
            assert a.partition(":")[2] == b.partition(":")[2]
            a, b = a.partition(":")[0], b.partition(":")[0]
            stretch = 1.0 if "%" in a else factor
            unit = {"e": per_epoch, "s": per_step}[a.split()[1][0]] if "%" not in a else 1
            found, wanted = samples(b, key, **per), stretch * samples(a, key, **per)
            assert abs(found - wanted) <= 0.5 + 0.5 * stretch + 1e-9 * unit * 10
