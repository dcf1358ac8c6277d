"""What a record sets side by side, and what it does not."""

import dataclasses
import math
from pathlib import Path
from types import SimpleNamespace

import pytest

from largebatch.config import load
from largebatch.config.recipes import load_recipe
from largebatch.config.resolution import resolve
from largebatch.tools.recipe_text import facts_of
from largebatch.tools.reproduce import page, record
from largebatch.tools.reproduce.record import SeedResult, estimate, olympic_mean
from largebatch.tracking import Summary

RECIPE = Path(__file__).parents[3] / "configs" / "fujitsu2019_81920.py"
SUMMARY = Summary(
    "complete", 0.7512, 0.92, 1.0, 9, 72, 300.0, 20.0, 440_000.0, 268.0, 0.5, 2.0, 0.0
)
RESULT = SeedResult(
    seed=0,
    summary=SUMMARY,
    reached=True,
    clock_s=270.5,
    epochs=86.0,
    initialisation_s=30.0,
    accepted=True,
)
ABOUT = {
    "recipe": "fujitsu2019_81920",
    "scale": "full",
    "command": "python scripts/reproduce.py fujitsu2019_81920",
    "environment": {"device": "NVIDIA H100 80GB HBM3", "versions": {"jax": "1"}, "commit": None},
    "cluster": "dgx-h100",
}
H100 = [SimpleNamespace(device_kind="NVIDIA H100 80GB HBM3")] * 64


def plan(*overrides):
    recipe = load_recipe(RECIPE)
    config = load(RECIPE, overrides)
    return recipe, config, resolve(config, dataclasses.replace(facts_of(recipe), devices=64))


def kept(results=(RESULT,), *, target="0.749"):
    recipe, config, made = plan(("run.target", target))
    return record.record(
        ABOUT,
        made,
        results,
        recipe.published,
        record.prediction(RECIPE, recipe.published),
        record.prediction_here(made, H100, "dgx-h100"),
        record.other_task(config, made, recipe),
    )


def test_own_cluster_beside_the_published_run():
    found = kept()
    assert found["comparable"] is True
    # Of scripts/plan.py --devices=64 --cluster=dgx-h100, and of the published hardware.
    assert found["prediction_here"]["clock_s"] == pytest.approx(264.6, abs=0.1)
    assert found["prediction"]["clock_s"] == pytest.approx(72.7, abs=0.1)
    _, rows = page.table_of(found)
    (clock,) = [row[1:] for row in rows if row[0] == "time on the clock"]
    for cell, seconds in zip(clock, ("270.5 s", "264.6 s", "74.7 s", "72.7 s"), strict=True):
        assert seconds in cell
    assert "installed" in page.page(found)  # no commit, but the version


def test_runs_that_miss_the_target_or_break_off_have_no_time():
    missed = dataclasses.replace(RESULT, reached=False)
    found = kept([missed])
    assert found["clock_s"]["mean"] is None
    assert (found["clock_s"]["not_reached"], found["clock_s"]["not_finished"]) == (1, None)
    assert found["epochs_to_target"] is None
    ended = dataclasses.replace(RESULT, reached=None)
    failed = dataclasses.replace(ended, summary=dataclasses.replace(SUMMARY, status="failed"))
    assert [each.scored_s for each in (ended, failed, missed)] == [RESULT.clock_s, None, None]


@pytest.mark.parametrize(
    ("overrides", "option"),
    [
        ([("run.target", "0.749")], None),
        ([("run.target", "0.749"), ("model.dtype", "bfloat16"), ("comm.wire", "bfloat16")], None),
        ([("run.target", "0.5")], "run.target=0.5"),
        ([("model.name", "resnet18"), ("run.target", "0.749")], "model.name=resnet18"),
    ],
)
def test_what_makes_another_task(overrides, option):
    recipe, config, made = plan(*overrides)
    found = record.other_task(config, made, recipe)
    if option is None:
        assert found == []
    else:
        assert found[0].startswith(option)


def test_interval_of_five_runs():
    """The five final accuracies of Fujitsu's v0.6 submission; t of 4 degrees is 2.776 (tables)."""
    found = estimate([75.98, 75.93, 75.95, 75.94, 76.11])
    deviations = (-0.002, -0.052, -0.032, -0.042, 0.128)
    half = 2.776 * math.sqrt(sum(d * d for d in deviations) / 4) / math.sqrt(5)
    # Three decimals of t in the table.
    expected = {"mean": 75.982, "low": 75.982 - half, "high": 75.982 + half, "runs": 5}
    assert found == pytest.approx(expected, abs=2e-4 * half)
    assert estimate([3.0]) == {"mean": 3.0, "low": None, "high": None, "runs": 1}


def test_time_without_best_and_worst():
    """Of five, the middle three; of fewer, all."""
    assert olympic_mean([70.39, 70.45, 70.40, 70.42, 70.41]) == pytest.approx(70.41)
    assert olympic_mean([1.0, 2.0, 3.0, 6.0]) == 3.0
    # A run that did not reach the target counts as the slowest.
    assert olympic_mean([None, 2.0, 3.0, 4.0, 9.0]) == pytest.approx(16 / 3)
    assert olympic_mean([None, None, 3.0, 4.0, 9.0]) is None
