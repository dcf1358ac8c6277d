"""What is swept: axes from texts and recipes, their points, the check before anything starts."""

import contextlib
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from largebatch.config import adjusted, freeze, override
from largebatch.config.recipe_file import execute
from largebatch.errors import ConfigError
from largebatch.tools.sweep.space import (
    Range,
    check,
    from_recipe,
    from_text,
    grid,
    quasi,
)

ROOT = Path(__file__).parents[3]
DIGITS = freeze(execute(ROOT / "configs" / "digits.py")[0])
SWEEPS = sorted((ROOT / "configs" / "sweeps").glob("*.py"))


@pytest.mark.parametrize(
    ("said", "points"),
    [
        ("schedule.peak=log:0.5:8:6", ["0.5", "0.8706", "1.516", "2.639", "4.595", "8"]),
        ("batch.workers=lin:1:3:9", ["1", "2", "3"]),  # whole numbers, each once
        ("schedule.warmup=5 epochs, 40 %", ["5 epochs", "40 %"]),
        ("schedule.warmup=lin:1:3:3 epochs", ["1 epochs", "2 epochs", "3 epochs"]),
        ("optimizer.trust_skip=(bn,bias),(bn),auto", ["(bn,bias)", "(bn)", "auto"]),
    ],
)
def test_points_of_an_axis(said, points):
    axis = from_text(said)
    assert [point for (point,) in axis.points] == points
    check(DIGITS, [], [axis], grid([axis]))


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="schedule.pkwarmuv=,:0123459lognif -()%e", max_size=40))
def test_any_text_is_an_axis_or_a_mistake(said):
    for sweep in (said, f"schedule.peak={said}", f"batch.workers=log:{said}"):
        with contextlib.suppress(ConfigError):
            axis = from_text(sweep)
            assert axis.points or axis.range
            assert all(all(point) for point in axis.points)


@settings(max_examples=100, deadline=None)
@given(
    st.floats(1e-6, 1e6), st.floats(1.001, 1e6), st.floats(0, 1), st.sampled_from(["log", "lin"])
)
def test_a_range_stays_within_its_bounds_and_reads_back(low, factor, share, shape):
    found = Range(shape, low, low * factor)
    number = float(found.at(share))
    assert low <= number <= low * factor
    assert found.text(number) == found.at(share)  # what the study keeps comes out the same
    assert override(DIGITS, "schedule.peak", found.at(share)).schedule.peak == number


def test_the_last_axis_of_a_grid_is_the_fastest():
    axes = [from_text("schedule.peak=1,2"), from_text("run.seed=0,1,2")]
    found = [tuple(choice.values()) for choice in grid(axes)]
    assert found == [(p, s) for p in "12" for s in "012"]
    with pytest.raises(ConfigError, match="1,000,000"):
        grid([from_text(f"{key}=lin:0:99:100") for key in ("run.seed", "batch.workers", "x.y")])


def test_quasi_random_points_cover_every_axis_and_can_be_prolonged():
    axes = [from_text("schedule.peak=log:0.5:8"), from_text("run.seed=0,1,2,3")]
    found = quasi(axes, 16, 3)
    assert quasi(axes, 5, 3) == found[:5]
    assert quasi(axes, 16, 4) != found
    octaves = [int(math.log2(float(choice["schedule.peak"]) / 0.5)) for choice in found]
    # What a Sobol sequence is for: every quarter of each axis as often.
    assert sorted(octaves) == sorted([0, 1, 2, 3] * 4)
    assert sorted(choice["run.seed"] for choice in found) == sorted("0123" * 4)


@pytest.mark.parametrize(
    ("overrides", "axes", "named"),
    [
        ([], ["schedule.peak"], "schedule.peak"),
        ([], ["schedule.peak=1,,2"], "schedule.peak"),
        ([], ["schedule.peak=log:0:2:3"], "above 0"),
        ([], ["schedule.warmup=lin:1:2:3"], "unit"),
        ([], ["loss.label_smoothing=0.1,1.5"], "trial 1"),
        ([], ["schedule.peak=lin:0:1"], "--search=grid"),
        ([], ["schedule.peak=1,2", "schedule.peak=3,4"], "twice"),
        ([], ["optimizer.nesterov=true,True"], "optimizer.nesterov"),
        ([("schedule.peak", "1")], ["schedule.peak=1,2"], "--config.schedule.peak"),
        ([("norm.span", "7")], ["schedule.peak=1,2"], "norm.span=7"),
    ],
)
def test_wrong_axes_are_one_line(overrides, axes, named):
    with pytest.raises(ConfigError) as error:
        checked(overrides, axes)
    assert "\n" not in str(error.value)
    assert named in str(error.value)


def checked(overrides, texts):
    axes = [from_text(text) for text in texts]
    check(adjusted(DIGITS, []), overrides, axes, grid(axes))


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ("", "no sweep()"),
        ("def sweep():\n    return {('run.seed', 'norm.span'): [(1,)]}", "[(1,)]"),
        ("def sweep():\n    raise ValueError('no')", "ValueError"),
    ],
)
def test_a_wrong_recipe_is_one_line(tmp_path, body, word):
    path = tmp_path / "mine.py"
    path.write_text(f"def get_config():\n    return {{}}\n{body}\n")
    with pytest.raises(ConfigError) as error:
        from_recipe(path, DIGITS)
    assert "\n" not in str(error.value)
    assert word in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
@pytest.mark.parametrize("recipe", ["own", "goyal2017_8k", "fujitsu2019_81920"])
def test_sweeps_of_configs(path, recipe):
    """Each as it comes, and over recipes of a rate for 256 images and of LARS."""
    own = recipe == "own"
    base = freeze(execute(path if own else ROOT / "configs" / f"{recipe}.py")[0])
    if (path.stem, recipe) == ("lars_coefficient", "goyal2017_8k"):  # SGD
        with pytest.raises(ConfigError, match="no trust coefficient"):
            from_recipe(path, base)
        return
    overrides = []
    if (path.stem, recipe) == ("batch_ladder", "fujitsu2019_81920"):  # 1440 steps
        with pytest.raises(ConfigError, match=r"schedule\.length='1440 steps'.* in epochs"):
            from_recipe(path, base)
        overrides = [("schedule.length", "90 epochs"), ("schedule.warmup", "40 %")]
        overrides.append(("schedule.decay_end", "88 epochs"))
    swept = adjusted(base, overrides)
    axes = from_recipe(path, swept)
    planned = grid(axes)
    check(base, overrides, axes, planned)
    assert f"{len(planned)} trials" in path.read_text()
