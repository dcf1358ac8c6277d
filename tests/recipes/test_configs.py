"""Every recipe of configs/: its resolved form, its sources, and a short run at laptop scale."""

import math
from pathlib import Path

import jax
import pytest

from largebatch.config import Config, Facts, options
from largebatch.config.facts import KNOWN_SETS
from largebatch.config.recipes import load_recipe
from largebatch.config.resolution import resolve
from largebatch.config.sections.model import RESNET_OPTIONS
from largebatch.tools.recipe_text import resolved_text
from largebatch.training import session
from tests.training import worlds

CONFIGS = Path(__file__).parents[2] / "configs"
GOLDEN = Path(__file__).parent / "golden"
PATHS = sorted(CONFIGS.glob("*.py"))
PUBLISHED = [path for path in PATHS if load_recipe(path).published]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_resolved_text_is_golden(path):
    """A recipe changes on purpose only: scripts/recipes.py --write_golden writes the texts."""
    assert resolved_text(load_recipe(path)) == (GOLDEN / f"{path.stem}.txt").read_text()


def test_no_golden_text_without_its_recipe():
    assert {path.stem for path in GOLDEN.glob("*.txt")} == {path.stem for path in PATHS}


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_every_value_has_a_source(path):
    """Each option that changes the mathematics and differs from its default."""
    recipe = load_recipe(path)
    without = {
        key
        for key, value, field in options(recipe.config)
        if value != field.default and field.metadata["mathematics"] and key not in recipe.sources
    }
    assert without <= {"data.source", "run.seed"}
    assert set(recipe.published.provenance) <= set("SADMCU+")


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
@pytest.mark.parametrize("to", ["node", "laptop"])
def test_shrunk_recipes_keep_steps_of_an_epoch_and_shape(path, to):
    full, small = (load_recipe(path, [("run.scale_to", s)]).config for s in ("full", to))
    plans = []
    for config in (full, small):
        known, size = KNOWN_SETS[config.data.source], config.data.image_size
        facts = Facts(known.train, known.validation, known.classes, (size, size, 3), devices=1)
        plans.append(resolve(config, facts))
    whole, shrunk = plans
    assert len(shrunk.stages) == len(whole.stages)
    assert shrunk.epochs == pytest.approx(whole.epochs, rel=0.05)
    if to == "node":
        assert all(stage.workers % 8 == 0 for stage in shrunk.stages)
    per_epoch = [plan.epoch_samples / plan.first_stage.samples_per_step for plan in plans]
    least = {"node": 64, "laptop": 16}[to]
    if (
        whole.first_stage.samples_per_step * KNOWN_SETS[small.data.source].train / 1_281_167
        > 2 * least
    ):
        assert per_epoch[1] == pytest.approx(per_epoch[0], rel=0.25)
    # The same multiple of the peak in the middle of each tenth of the training.
    shares = [
        [_rate(plan, (i + 0.5) / 10) / plan.schedule.peak for i in range(10)] for plan in plans
    ]
    assert shares[1] == pytest.approx(shares[0], abs=0.15)


def _rate(plan, share):
    samples = share * plan.samples
    stage = next(s for s in reversed(plan.stages) if samples >= s.first_sample)
    step = 1 + stage.first_step + int((samples - stage.first_sample) / stage.samples_per_step)
    return plan.rates(step).learning_rate


# It is for a laptop already and takes a minute.
RUN = [path for path in PATHS if path.stem != "batch81920_tiny"]


ALWAYS = ("fujitsu2019_81920", "lamb2019_32k")


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=() if path.stem in ALWAYS else pytest.mark.slow)
        for path in RUN
    ],
)
def test_every_recipe_runs_end_to_end(path, tmp_path):
    """With a network of one convolution."""
    usual = [(key, str(value)) for key, value, _ in options(Config()) if key in RESNET_OPTIONS]
    runs_end_to_end(path, tmp_path, [*usual, ("model.name", worlds.SMALL["name"])])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *("digits", "fastai2018_16n", "ffcv_rn50", "fujitsu2019_81920", "goyal2017_8k"),
        *("lamb2019_32k", "nado2021_nesterov_32k", "siat07_16k_160px", "timm_rsb_a3"),
    ],
)
def test_recipes_run_end_to_end_with_a_resnet(name, tmp_path):
    """All different sets of options of ResNets that recipes have; mixed images."""
    runs_end_to_end(CONFIGS / f"{name}.py", tmp_path, [("model.name", "resnet10")])


def runs_end_to_end(path, tmp_path, model):
    """All stages, evaluation and checkpoint included; a few steps of a tiny network."""
    scale = "full" if load_recipe(path).config.data.source == "digits" else "laptop"
    config = load_recipe(path, [("run.scale_to", scale), ("run.scale_length", "1")]).config
    steps = resolve(config, Facts(*KNOWN_SETS["digits"][:3], (8, 8, 1), devices=1)).steps
    wanted = 24 if config.batch.stages else 6  # at least one of each stage
    overrides = [
        ("run.scale_to", scale),
        ("run.scale_length", f"{wanted / steps:.6g}"),
        ("run.evaluate_every", "100 epochs"),
        *model,
    ]
    config = load_recipe(path, overrides).config
    request = session.Request(path, tmp_path)
    summary = session.run(config, request, devices=jax.devices()[:1])
    assert summary.status == "complete"
    assert math.isfinite(summary.loss)
    assert summary.steps >= wanted - 2
    assert (tmp_path / "checkpoints" / f"{summary.steps}.safetensors").exists()
