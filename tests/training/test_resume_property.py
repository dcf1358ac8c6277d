"""A run that is interrupted or killed anywhere, any number of times, is the uninterrupted run.

Equal are the arrays of the last checkpoint, the rows of both logs, what the health checks found and
did, the checkpoints that are kept, and how the run ends.
"""

import random
import re

import jax
import pytest

from largebatch.checkpoint.checkpoints import progresses
from largebatch.checkpoint.place import LocalPlace
from largebatch.config.plan import Plan
from largebatch.errors import HealthError
from largebatch.fault_tolerance import Interrupted, Watchdog
from largebatch.tracking import read_rows
from largebatch.training import evaluation, loop, session
from largebatch.training.log import Log
from largebatch.training.run import Run
from largebatch.training.session import Request
from tests.training import worlds
from tests.training.test_policies import no_gradient, too_far
from tests.training.worlds import digests, rows

STEPS = 22
FAULTS = {
    "stop": {19: no_gradient},
    "skip": {4: no_gradient, 9: no_gradient, 16: no_gradient},
    "rollback": {9: too_far, 16: no_gradient},
}
"""By policy, the steps that fail each time they are computed."""
DECIDED = {"skipped", "rollback", "unhealthy", "eval_stop"}
"""Events that follow from what a run computes."""


class Killed(BaseException):
    """The process ends here, without a word."""


def config(policy):
    """Intervals that fall on different steps, so that there is something in the making anywhere.

    With two microbatches a step, a stage of smaller images, mixed images and averaged weights.
    """
    return worlds.config(
        model=worlds.SMALL,
        batch={
            "workers": 4,
            "images_per_worker": 10,
            "microbatch": 1,
            "stages": ("8 steps: data.image_size=6", "15 steps: data.image_size=8"),
        },
        data={"source": "digits", "shift": 1, "image_size": 8},
        augment={"mixup": 0.8, "cutmix": 1.0, "erase": 0.5},
        schedule={"length": f"{STEPS} steps", "warmup": "3 steps", "peak": 0.5, "ema": "5 steps"},
        run={
            "log_every": "4 steps",
            "layers_every": "5 steps",
            "evaluate_every": "7 steps",
            "checkpoint_every": "6 steps",
            "keep_checkpoints": 1,
            "keep_best": True,
        },
        health={"policy": policy, "window": 5},
    )


pytestmark = pytest.mark.usefixtures("built_once")


@pytest.fixture(autouse=True)
def _many_faults(monkeypatch):
    for most in ("MAX_SKIPS", "MAX_ROLLBACKS"):
        monkeypatch.setattr(f"largebatch.fault_tolerance.health.{most}", 9)


class Interruptions:
    """Places of a run at which it can be interrupted, counted while it runs."""

    def __init__(self, monkeypatch, faults):
        self.count, self.at, self.kills, self.watchdog = 0, None, False, None
        run_step = loop.run_step

        def faulty(stage, state, feed, rates, *rest):
            first, *others = (next(feed) for _ in range(stage.plan.microbatches))
            if (step := int(rates.step)) in faults:
                first, rates = faults[step](first, rates)
            return run_step(stage, state, iter([first, *others]), rates, *rest)

        monkeypatch.setattr(loop, "run_step", faulty)
        for owner, name in (
            (loop, "run_step"),
            (evaluation, "evaluate_batch"),
            (Run, "save"),
            (Log, "step"),
            (Plan, "due"),
        ):
            monkeypatch.setattr(owner, name, self._around(getattr(owner, name)))

    def _around(self, function):
        def called(*arguments, **options):
            self._pass()
            result = function(*arguments, **options)
            self._pass()
            return result

        return called

    def _pass(self):
        self.count += 1
        if self.count == self.at:
            if self.kills:
                raise Killed
            self.watchdog._reason = "SIGTERM"

    def attempt(self, made, workdir, at=None, kills=False):
        """Train; interrupt or kill the run at its ``at``-th place. Return how it ends."""
        self.count, self.at, self.kills, self.watchdog = 0, at, kills, Watchdog()
        request = Request(recipe=workdir, workdir=workdir)
        try:
            done = session.run(made, request, devices=jax.devices()[:2], watchdog=self.watchdog)
        except (Interrupted, Killed):
            return None
        except HealthError as error:
            return _unplaced(str(error), workdir)
        return done.status


def outcome(workdir, ending):
    """Everything that an interruption must not change."""
    left = worlds.summary(workdir)
    found = progresses(LocalPlace(workdir))
    kept = [step for step in found if not found[step].for_stop]
    events = read_rows(workdir / "events.jsonl")
    decided = {
        (row["event"], row["step"], row.get("top1"), _unplaced(row.get("why", ""), workdir))
        for row in events
        if row["event"] in DECIDED
    }
    return {
        "ending": ending,
        "arrays": digests(workdir, max(kept)),
        "kept": kept,
        "rows": rows(workdir),
        "layers": read_rows(workdir / "layers.jsonl"),
        "decided": decided,
        "summary": {
            key: left[key] for key in ("status", "steps", "samples", "top1", "skips", "rollbacks")
        },
    }


def _unplaced(text, workdir):
    """A message without its newest checkpoint: an interruption adds one."""
    return re.sub(rf"{workdir}/checkpoints/\d+\.safetensors", "CHECKPOINT", text)


def tear(workdir, draw):
    """Leave an incomplete last line in a log, as a kill may."""
    for name in ("events", "metrics", "layers"):
        path = workdir / f"{name}.jsonl"
        if path.exists() and draw.random() < 0.5:
            with path.open("ab") as stream:
                stream.write(b'{"time": 1.5, "event": "che'[: draw.randrange(1, 27)])


@pytest.mark.parametrize(
    "policy",
    [*(pytest.param(each, marks=pytest.mark.slow) for each in ("stop", "skip")), "rollback"],
)
@pytest.mark.parametrize(
    "runs", [4, pytest.param(50, marks=pytest.mark.accuracy)], ids=["some", "many"]
)
def test_interrupted_anywhere(policy, runs, tmp_path, monkeypatch):
    made, draw = config(policy), random.Random(f"{policy} {runs}")
    interruptions = Interruptions(monkeypatch, FAULTS[policy])
    alone = tmp_path / "alone"
    ending = interruptions.attempt(made, alone)
    places, expected = interruptions.count, outcome(alone, ending)
    assert expected["summary"]["status"] == ("failed" if policy == "stop" else "complete")
    happened = 0
    for number in range(runs):
        workdir, log = tmp_path / str(number), []
        for _ in range(draw.randint(1, 3)):
            at, kills = draw.randint(1, places), draw.random() < 0.4
            ending = interruptions.attempt(made, workdir, at, kills)
            log.append((at, "killed" if kills else "asked", ending))
            if ending is not None:
                break
            happened += 1
            if kills:
                tear(workdir, draw)
        else:
            ending = interruptions.attempt(made, workdir)
        assert outcome(workdir, ending) == expected, log
    print(f"{happened} interruptions of {runs} runs")
    assert happened >= runs
