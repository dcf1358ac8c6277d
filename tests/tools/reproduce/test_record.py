"""What a record sets side by side, and what it does not."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest

from largebatch.config import load, resolve
from largebatch.config.recipes import load_recipe
from largebatch.errors import ConfigError
from largebatch.tools.recipe_text import facts_of
from largebatch.tools.reproduce import record
from largebatch.tools.reproduce.statistics import SeedResult

RECIPE = Path(__file__).parents[3] / "configs" / "fujitsu2019_81920.py"
RESULT = SeedResult(
    seed=0,
    status="complete",
    reached=True,
    top1=0.7512,
    top5=0.92,
    loss=1.0,
    clock_s=270.5,
    epochs=86.0,
    initialisation_s=30.0,
    compile_s=20.0,
    train_s=268.0,
    wait_s=0.5,
    evaluation_s=2.0,
    checkpoint_s=0.0,
    images_per_s=440_000.0,
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


def kept(results=(RESULT,), *, target="0.749", here=True):
    recipe, config, made = plan(("run.target", target))
    return record.record(
        ABOUT,
        made,
        results,
        recipe.published,
        record.prediction(RECIPE, recipe.published),
        record.prediction_here(made, H100, "dgx-h100") if here else None,
        record.other_task(config, made, recipe),
    )


def test_own_cluster_beside_the_published_run():
    found = kept()
    assert found["comparable"] is True
    # Of scripts/plan.py --devices=64 --cluster=dgx-h100, and of the published hardware.
    assert found["prediction_here"]["clock_s"] == pytest.approx(264.6, abs=0.1)
    assert found["prediction"]["clock_s"] == pytest.approx(72.7, abs=0.1)
    heads, rows = record.table_of(found)
    assert heads[1:] == ["measured", "predicted here (dgx-h100)", "published", "predicted for abci"]
    cells = {row[0]: dict(zip(heads[1:], row[1:], strict=True)) for row in rows}
    clock = cells["time on the clock"]
    assert "270.5 s" in clock["measured"]
    assert clock["predicted here (dgx-h100)"].startswith("264.6 s")
    assert clock["published"].startswith("74.7 s")
    assert clock["predicted for abci"].startswith("72.7 s")
    assert cells["epochs to the target"]["measured"] == "86.00"
    page = record.page(found)
    assert "| 0 | True |" in page
    assert "installed" in page  # no commit: it says which version
    assert "another task" not in page
    assert "270.5 s" in dict(record.closing_rows(found))["time on the clock"]


def test_without_a_cluster_there_is_no_prediction_of_ones_own():
    heads, _ = record.table_of(kept(here=False))
    assert heads[1:] == ["measured", "published", "predicted for abci"]


def test_runs_that_miss_the_target_or_break_off_have_no_time():
    missed = dataclasses.replace(RESULT, reached=False)
    found = kept([missed])
    assert found["clock_s"]["mean"] is None
    assert (found["clock_s"]["not_reached"], found["clock_s"]["not_finished"]) == (1, None)
    assert found["epochs_to_target"] is None
    ended = dataclasses.replace(RESULT, reached=None)
    assert ended.scored_s == RESULT.clock_s
    assert dataclasses.replace(ended, status="failed").scored_s is None
    assert missed.scored_s is None


@pytest.mark.parametrize(
    ("overrides", "option"),
    [
        ([("run.target", "0.749")], None),
        ([("run.target", "0.749"), ("model.dtype", "bfloat16"), ("comm.wire", "bfloat16")], None),
        ([("run.target", "0.749"), ("model.stem", "space_to_depth")], None),
        ([("run.target", "0.5")], "run.target=0.5"),
        ([("run.scale_length", "0.5"), ("run.target", "0.749")], "run.scale_length=0.5"),
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


def test_other_data_are_another_task():
    recipe, config, made = plan(("run.target", "0.749"))
    small = dataclasses.replace(made, facts=dataclasses.replace(made.facts, train_examples=1000))
    (found,) = record.other_task(config, small, recipe)
    assert found == "1,000 train examples, published 1,281,167"


def test_a_cluster_of_other_devices_is_refused():
    _, _, made = plan()
    with pytest.raises(ConfigError, match=r"dgx-h100 has h100.*'NVIDIA A100'"):
        record.prediction_here(made, [SimpleNamespace(device_kind="NVIDIA A100")], "dgx-h100")
