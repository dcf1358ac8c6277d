"""Proposals between published points."""

import itertools
import math
import shlex
from pathlib import Path

import pytest

from largebatch.config import Facts, load, resolve
from largebatch.errors import ConfigError
from largebatch.planning import ladder
from largebatch.tools import recipe_docs as document


def test_published_points_come_back_as_they_are():
    for point in ladder.POINTS:
        found = ladder.propose(point.batch)
        assert found.kind == "published"
        assert found.epochs == point.epochs
        assert (found.peak, found.momentum) == pytest.approx((point.peak, point.momentum))
        assert found.uncertainty == point.spread


def test_between_two_points_lies_between_them():
    for low, high in itertools.pairwise(ladder.POINTS):
        middle = round(math.sqrt(low.batch * high.batch))
        found = ladder.propose(middle)
        assert found.kind == "interpolated"
        assert found.between == (low, high)
        for name in ("peak", "warmup_epochs", "momentum", "epochs"):
            ends = sorted((getattr(low, name), getattr(high, name)))
            assert ends[0] - 1e-9 <= getattr(found, name) <= ends[1] + 1e-9
        # Half way in the logarithm of the batch; rounding it to whole images moves it by 1e-4.
        assert found.epochs == pytest.approx((low.epochs + high.epochs) / 2, rel=1e-4)
        assert found.peak == pytest.approx(math.sqrt(low.peak * high.peak), rel=1e-3)
        assert found.weight_decay in (low.weight_decay, high.weight_decay)


def test_the_deviation_is_that_of_points_left_out():
    # Two of three points on a line over log2(batch), the middle one 3 epochs off it.
    points = [
        ladder.Point(2**i * 1024, 10, 5, 0.9, 1e-4, epochs, 1.0, "")
        for i, epochs in ((1, 40.0), (2, 48.0), (3, 50.0))
    ]
    assert ladder.deviation(points) == pytest.approx(3.0)


def test_beyond_the_last_point_it_says_so_and_is_less_sure():
    near, far = ladder.propose(90_000), ladder.propose(131_072)
    assert {near.kind, far.kind} == {"extrapolated"}
    inside = ladder.propose(81_920)
    assert inside.kind == "interpolated"
    assert inside.uncertainty < near.uncertainty < far.uncertainty
    assert inside.epochs < near.epochs < far.epochs
    assert 0 < far.momentum < 1


@pytest.mark.parametrize("batch", [0, 256, 1_631, 131_073])
def test_a_batch_out_of_range(batch):
    with pytest.raises(ConfigError, match=r"outside of 1,632 to 131,072"):
        ladder.propose(batch)


def test_workers_make_up_the_batch():
    for batch in (1_632, 40_000, 81_920, 131_072):
        workers, images = ladder.workers_of(batch)
        assert workers * images == batch
        assert 8 <= images <= 64
    with pytest.raises(ConfigError, match=r"cannot be shared by workers .* try"):
        ladder.workers_of(40_009)  # a prime


@pytest.mark.parametrize("batch", [p.batch for p in ladder.POINTS] + [4_160, 40_000, 131_072])
def test_every_proposal_can_be_run(batch):
    """The command's options, resolved."""
    line = shlex.split(document.proposal(ladder.propose(batch))[-1])
    path = Path(__file__).parents[2] / line[2].removeprefix("--config=")
    overrides = [tuple(word.removeprefix("--config.").split("=", 1)) for word in line[3:]]
    config = load(path, overrides)
    plan = resolve(config, Facts(1_281_167, 50_000, 1_000, (224, 224, 3), devices=1))
    assert plan.first_stage.samples_per_step == batch
    assert plan.epochs > ladder.propose(batch).epochs - 1e-9


def test_a_proposal_names_what_it_is_made_of_and_the_command():
    lines = document.proposal(ladder.propose(100_000))
    assert "extrapolated from 67,840" in lines[0]
    assert "nobody has published" in lines[1]
    assert lines[-1].startswith("python train.py --config=configs/mlperf40_nvidia_40k.py")
    assert "--config.batch.workers=" in lines[-1]
