"""A run that is interrupted anywhere gets the verdicts of the uninterrupted one."""

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from largebatch.config import Facts
from largebatch.config.resolution import resolve
from largebatch.errors import HealthError
from largebatch.fault_tolerance.health import Health
from tests.training import worlds

STEPS = 60
GUESS = math.log(worlds.CLASSES)
LEVELS = st.sampled_from([GUESS - 0.5, GUESS - 0.02, GUESS, GUESS + 0.1, GUESS + 0.7, 1e30])
ACCURACIES = st.sampled_from([0.0, 0.1, 1 / worlds.CLASSES, 0.15, 0.18, 0.5])
EVALUATIONS = st.tuples(ACCURACIES, LEVELS, st.just((60,) * worlds.CLASSES) | st.just((1, 2, 900)))


def plan(policy, window, mixed):
    """Of 60 steps of 800 images."""
    made = worlds.config(
        health={"policy": policy, "window": window, "stuck_after": "10 %"},
        schedule={"length": f"{STEPS} steps", "warmup": "4 steps"},
        batch={"workers": 8, "images_per_worker": 100},
        augment={"mixup": 0.5 if mixed else 0.0},
    )
    return resolve(made, Facts(1000, 100, worlds.CLASSES, worlds.SHAPE, devices=8))


@st.composite
def histories(draw):
    """For each step: its numbers, whether the state is finite where saved, and an evaluation."""
    level, top1, history = draw(LEVELS), draw(ACCURACIES), []
    for step in range(1, STEPS + 1):
        if draw(st.integers(0, 9)) == 0:
            level, top1 = draw(LEVELS), draw(ACCURACIES)
        loss = math.nan if draw(st.integers(0, 40)) == 0 else level * (1 + 0.01 * math.sin(step))
        finite = draw(st.integers(0, 40)) > 0
        evaluation = draw(EVALUATIONS) if draw(st.integers(0, 5)) == 0 else None
        history.append((loss, top1, finite, evaluation))
    return history


def judged(made, history, cuts):
    """The verdicts on a history, of a run that is stopped and resumed after the steps ``cuts``."""
    keeps = {"newest": lambda step: f"c/{step // 7 * 7}" if step >= 7 else None}
    health, found = Health(made, **keeps), []
    try:
        for step, (loss, top1, finite, evaluation) in enumerate(history, 1):
            found.append(health.look(step, loss, 1.0, top1, 800))
            if step % 7 == 0:
                found.append(health.look_at_state(step, finite))
            if evaluation is not None:
                health.look_at_evaluation(step, *evaluation)
            if step in cuts:
                memory = json.dumps(health.memory(), allow_nan=False)
                health = Health(made, memory=json.loads(memory), **keeps)
    except HealthError as error:
        found.append(str(error))
    return found, health.memory()


@given(
    st.sampled_from(["stop", "skip", "rollback"]),
    st.sampled_from([1, 5, 20]),
    st.booleans(),
    histories(),
    st.sets(st.integers(1, STEPS)),
)
def test_verdicts_do_not_depend_on_interruptions(policy, window, mixed, history, cuts):
    made = plan(policy, window, mixed)
    assert judged(made, history, cuts) == judged(made, history, ())
