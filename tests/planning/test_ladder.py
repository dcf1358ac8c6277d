"""Proposals between published points."""

import itertools
import math
import shlex
from pathlib import Path

import pytest

import tests.scripts  # noqa: F401 - puts scripts/ on the path
from largebatch.config import Facts, load
from largebatch.config.resolution import resolve
from largebatch.errors import ConfigError
from largebatch.planning import ladder
from largebatch.tools import recipe_text

ROOT = Path(__file__).parents[2]


def test_published_points_are_proposed_unchanged():
    for point in ladder.POINTS:
        found = ladder.propose(point.batch)
        assert (found.kind, found.epochs) == ("published", point.epochs)
        assert (found.peak, found.momentum) == pytest.approx((point.peak, point.momentum))
        assert found.uncertainty == point.spread


def test_a_proposal_lies_between_its_points():
    for low, high in itertools.pairwise(ladder.POINTS):
        found = ladder.propose(round(math.sqrt(low.batch * high.batch)))
        assert (found.kind, found.between) == ("interpolated", (low, high))
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


def test_extrapolation_has_a_growing_error():
    inside, near, far = (ladder.propose(batch) for batch in (81_920, 90_000, 131_072))
    assert [p.kind for p in (inside, near, far)] == ["interpolated", *["extrapolated"] * 2]
    assert inside.uncertainty < near.uncertainty < far.uncertainty
    assert inside.epochs < near.epochs < far.epochs
    assert 0 < far.momentum < 1


def test_workers_make_up_the_batch():
    for batch in (1_632, 40_000, 81_920, 131_072):
        workers, images = ladder.workers_of(batch)
        assert workers * images == batch
        assert 8 <= images <= 64
    for batch, act in (
        (40_009, ladder.workers_of),  # a prime
        (1_631, ladder.propose),
        (131_073, ladder.propose),
    ):
        with pytest.raises(ConfigError, match=r"--batch: "):
            act(batch)


@pytest.mark.parametrize("batch", [1_632, 86_016, 4_160, 40_000, 131_072])
def test_every_proposal_can_be_run(batch):
    """The command's options, resolved."""
    line = shlex.split(recipe_text.proposal(ladder.propose(batch))[-1])
    overrides = [tuple(word.removeprefix("--config.").split("=", 1)) for word in line[3:]]
    config = load(ROOT / line[2].removeprefix("--config="), overrides)
    plan = resolve(config, Facts(1_281_167, 50_000, 1_000, (224, 224, 3), devices=1))
    assert plan.first_stage.samples_per_step == batch
    assert plan.epochs > ladder.propose(batch).epochs - 1e-9
