"""What a run does after a step, as a table."""

import dataclasses

import pytest

from largebatch.config import Facts, freeze
from largebatch.config.plan import Due
from largebatch.config.resolution import resolve

FACTS = Facts(100, 10, 10, (8, 8, 1), devices=1)


def plan(**run):
    return resolve(
        freeze(
            {
                "batch": {"workers": 1, "images_per_worker": 10},
                "schedule": {"length": "12 steps", "warmup": "1 steps", "peak": 0.1},
                "run": {"evaluate_every": "4 steps", "checkpoint_every": "3 steps", **run},
            }
        ),
        FACTS,
    )


EVALUATION = Due(evaluates=True, keeps_statistics=True)
CHECKPOINT = Due(saves=True, checkpoint_is_due=True)
BOTH = Due(evaluates=True, keeps_statistics=True, saves=True, checkpoint_is_due=True)
ONLY_EVALUATED = Due(evaluates=True, keeps_statistics=True, saves=True)
NOT_KEPT = Due(evaluates=True, saves=True)
LEAVE = Due(saves=True, stops_early=True)


@pytest.mark.parametrize(
    ("step", "stop_after", "stop_requested", "expected"),
    [
        (1, "", False, Due()),
        (4, "", False, EVALUATION),
        (3, "", False, CHECKPOINT),
        (12, "", False, BOTH),
        (5, "5 steps", False, NOT_KEPT),
        (8, "8 steps", False, ONLY_EVALUATED),
        (1, "", True, LEAVE),
        (3, "", True, dataclasses.replace(CHECKPOINT, stops_early=True)),
        (4, "", True, dataclasses.replace(ONLY_EVALUATED, stops_early=True)),
        (12, "", True, BOTH),
        (5, "5 steps", True, NOT_KEPT),
    ],
)
def test_after_a_step(step, stop_after, stop_requested, expected):
    found = plan(stop_after=stop_after).due(step, stop_requested=stop_requested)
    assert found == expected
    assert found.synchronizes is (found.evaluates or found.saves)
    # A row that only a stop adds: the next one continues the means of the one before.
    assert (found.has_row, found.row_is_due) == (
        found.evaluates or step % 3 == 0,
        step % 4 == 0 or step % 3 == 0,
    )
