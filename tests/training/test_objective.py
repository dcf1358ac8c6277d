"""BatchNorm over a single value, which would make the output of a layer constant."""

import jax
import pytest

from largebatch.errors import ConfigError
from largebatch.tracking import Console
from largebatch.training.run import Run
from tests.training import worlds

SECTIONS = {
    "batch": {"workers": 4, "images_per_worker": 1},
    "data": {"source": "digits"},  # 8×8 pixels are 1×1 after three halvings
    "schedule": {"length": "2 steps", "warmup": "0 epochs", "peak": 0.5},
}


def check(**sections):
    opened = Run.open(worlds.config(**SECTIONS | sections), Console(quiet=True), jax.devices()[:2])
    for index in range(len(opened.plan.stages)):
        opened._stage(index).steps.objective.check_statistics()


def test_statistics_of_one_value_are_refused_before_compiling(monkeypatch):
    monkeypatch.setattr("largebatch.training.run.largest_microbatch", pytest.fail)
    monkeypatch.setattr("largebatch.training.stage.Stage._compile", pytest.fail)
    with pytest.raises(ConfigError, match=r"stages/3/blocks/0/bn1 .*norm\.span=2"):
        worlds.build(worlds.config(**SECTIONS), Console(quiet=True), jax.devices()[:2])


def test_a_stage_of_smaller_images_is_checked_too():
    batch = SECTIONS["batch"] | {"images_per_worker": 2}
    with pytest.raises(ConfigError, match=r"norm\.span=1"):
        check(
            batch=batch | {"stages": ("400 samples: batch.images_per_worker=1",)},
            schedule=SECTIONS["schedule"] | {"length": "1 epochs"},
        )


@pytest.mark.parametrize(
    "sections",
    [
        {"norm": {"span": 2}},
        {"data": {"source": "digits", "image_size": 16}},
        {"optimizer": {"trust_coefficient": 0.02, "lr_mults": ("stages/3/.*: 0",)}},
    ],
    ids=str,
)
def test_several_values_and_frozen_layers_are_not_refused(sections):
    check(**sections)
