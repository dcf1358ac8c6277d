"""Every published recipe at laptop scale: on any number of devices, and trained completely."""

from pathlib import Path

import jax
import pytest

from largebatch.config import Facts, load
from largebatch.config.facts import KNOWN_SETS
from largebatch.config.recipes import load_recipe
from largebatch.config.resolution import resolve
from largebatch.errors import ConfigError
from largebatch.training import session

CONFIGS = Path(__file__).parents[2] / "configs"
PUBLISHED = [p for p in sorted(CONFIGS.glob("*.py")) if load_recipe(p).published]
LAPTOP = ("run.scale_to", "laptop")
BAR = 0.5
"""Top-1 of a recipe that trains; a guess has 0.1."""


def plan(path, devices, *overrides, scale=LAPTOP):
    known = KNOWN_SETS["digits"]
    facts = Facts(known.train, known.validation, known.classes, (8, 8, 1), devices=devices)
    return resolve(load(path, [scale, *overrides]), facts)


@pytest.mark.parametrize("devices", [1, 2, 3, 4, 8])
def test_devices_share_the_workers_of_every_recipe(devices):
    """The nearest multiple of the devices, and on one device what the scaling chose."""
    for path in PUBLISHED:
        made, chosen = plan(path, devices), load(path, [LAPTOP]).batch.workers
        first = made.first_stage
        for stage in made.stages:
            assert stage.workers == devices * stage.microbatch * stage.microbatches, path
        off = abs(first.workers - chosen)
        if first.span == 1:
            assert 2 * off <= devices or first.workers == devices, path
        if devices == 1:
            assert (off, made.rounding) == (0, ""), path
        assert bool(made.rounding) == bool(off), path
        assert made.config.batch.workers == first.workers  # what config.json and checkpoints hold


def test_the_rounding_is_named():
    made = plan(CONFIGS / "fujitsu2019_81920.py", 2)
    assert (made.first_stage.workers, made.asked_workers) == (24, 23)
    assert "batch.workers=24 " in made.rounding


def test_rounded_workers_can_be_asked_for_on_other_devices():
    """Then nothing of the mathematics differs."""
    path = CONFIGS / "fujitsu2019_81920.py"
    two, one = plan(path, 2), plan(path, 1, ("batch.workers", "24"))
    assert two.config == one.config
    assert two.first_stage.norm_momentum == one.first_stage.norm_momentum


def test_workers_of_stages_are_rounded_too():
    stages = ("batch.stages", "('30 epochs: batch.workers=9 rate=2', '60 epochs: norm.span=3')")
    made = plan(CONFIGS / "goyal2017_8k.py", 2, ("batch.workers", "5"), stages)
    assert [stage.workers for stage in made.stages] == [6, 10, 12]
    assert made.stages[1].rate == 2


@pytest.mark.parametrize(("recipe", "to"), [("digits", "laptop"), ("imagenette_resnet50", "node")])
def test_a_recipe_for_the_dataset_of_the_scale_is_refused(recipe, to):
    with pytest.raises(ConfigError, match=rf"run\.scale_to={to}"):
        load(CONFIGS / f"{recipe}.py", [("run.scale_to", to)])


def test_workers_at_full_scale_are_never_rounded():
    full = [("data.source", "digits")]
    with pytest.raises(ConfigError, match=r"2048 .* 3"):
        plan(CONFIGS / "fujitsu2019_81920.py", 3, *full, scale=("run.scale_to", "full"))


@pytest.mark.parametrize(
    ("recipe", "scale", "peak"),
    [
        ("goyal2017_8k", "laptop", 0.1 * 16 / 256),
        ("goyal2017_8k", "node", 0.1 * 64 / 256),
        ("fujitsu2019_81920", "laptop", 13 / 4),
        ("fujitsu2019_81920", "node", 13),
        ("lamb2019_32k", "laptop", 0.04 / 4),
    ],
)
def test_rates_without_trust_ratios_follow_the_batch(recipe, scale, peak):
    """By the linear scaling rule; LARS and LAMB keep theirs, a quarter or less on a laptop."""
    config = load(CONFIGS / f"{recipe}.py", [("run.scale_to", scale)])
    assert config.schedule.peak == pytest.approx(peak, rel=0.02)


def test_the_rate_of_rmsprop_is_a_quarter_on_a_laptop():
    assert load(CONFIGS / "akiba2017_32k.py", [LAPTOP]).optimizer.rmsprop_rate == 3e-4 / 4


def test_digits_are_evaluated_as_large_as_they_are_trained():
    """They have no random crops, for which a larger evaluation makes up."""
    for path in PUBLISHED:
        for stage in plan(path, 1).stages:
            assert stage.config.data.evaluation_size == 0, path
            assert stage.images_per_worker >= 4, path
            assert stage.config.data.image_size in (7, 8, 9), path
    assert load(CONFIGS / "siat07_32k_160px.py", [("run.scale_to", "node")]).data.evaluation_size


@pytest.mark.accuracy
@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_every_recipe_trains_to_well_above_chance(path, tmp_path):
    """All of its epochs on one device, by the default options; about a minute each."""
    overrides = [LAPTOP, ("run.checkpoint_every", "100 %"), ("run.evaluate_every", "100 %")]
    request = session.Request(path, tmp_path, tuple(overrides))
    summary = session.run(load(path, overrides), request, devices=jax.devices()[:1])
    assert summary.status == "complete"
    assert summary.top1 >= BAR
