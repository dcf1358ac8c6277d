"""The log of a run: rows and events of its steps, its summary, and the trackers that take them."""

import dataclasses
import platform
import socket
import time
from pathlib import Path

import jax
import numpy as np

from largebatch import data, tracking
from largebatch.checkpoint.manifest import Progress
from largebatch.config.recipe_file import find, split_argument
from largebatch.config.registries import OPTIMIZERS
from largebatch.environment import ROOT
from largebatch.files import write_json
from largebatch.tracking import Summary, Target, Tracker
from largebatch.tracking.summary import Status
from largebatch.training import description
from largebatch.training.evaluation import Result, averaged_columns
from largebatch.training.run import Run
from largebatch.training.state import Metrics, TrainState
from largebatch.training.timing import Clock


class Journal:
    """The rows, events and summary of one run attempt."""

    def __init__(self, run: Run, tracker: Tracker, clock: Clock, first: int) -> None:
        """Start after ``first`` steps, which earlier attempts have done."""
        self._run, self._tracker, self._clock = run, tracker, clock
        self._logged = (clock.train_s, 0.0, first)
        """Seconds of training and of waiting for data, and the number of the last row's step."""
        self._ended: tuple[int, float, float] = (-1, 0.0, 0.0)
        """The newest step that was seen to have ended, and the seconds of both kinds then."""
        self._trained = clock.train_s
        self._left_out = 0.0
        """Share of the microbatches left out, summed over the steps since the last row."""
        self._layers: tuple[int, jax.Array] | None = None
        """A step and the numbers of its row in ``layers.jsonl``, on their way to the host."""

    def ended(self, step: int) -> None:
        """Note that a step has been computed now.

        `step` logs it later: when the host has dispatched the next step, which takes nearly as long
        as that step if it has many microbatches.
        """
        if step != self._ended[0]:
            self._ended = step, self._clock.now(), self._clock.wait_s

    def step(self, step: int, metrics: Metrics, extra: dict[str, float] | None = None) -> bool:
        """Log a step that has been computed.

        Args:
          step: its number, from 1.
          metrics: on the host.
          extra: further columns of the row; None writes a row only if one is due.

        Returns:
          Whether it has a row.
        """
        plan = self._run.plan
        stage = plan.stage_at(step)
        if metrics.left_out is not None:
            self._left_out += float(metrics.left_out) / (plan.facts.devices * stage.microbatches)
        if extra is None and not plan.is_due(step, stage.log_every):
            return False
        rates, rule = plan.rates(step), plan.config.optimizer.name
        self.ended(step)
        _, now, waited = self._ended
        then, waited_then, logged = self._logged
        seconds = max(now - then, 1e-9)
        values = {
            "samples": plan.position(step),
            "epoch": self.epoch(step),
            "loss": float(metrics.loss),
            "top1": float(metrics.top1),
            "top5": float(metrics.top5),
            "learning_rate": rates.learning_rate,
            # Of other rules, such as optax's, the momentum is unknown.
            **({"momentum": rates.momentum} if rule in OPTIMIZERS else {}),
            "batch": stage.samples_per_step,
            "image_size": stage.facts.image_shape[0],
            "gradient_norm": float(metrics.gradient_norm),
            "images_per_s": (plan.position(step) - plan.position(logged)) / seconds,
            "fingerprint": self._fingerprint(step),
            "input_wait": (waited - waited_then) / seconds,
            "seconds": self._clock.wall_s(),
            **(extra or {}),
        }
        if plan.config.batch.deadline_s:
            values["left_out"] = self._left_out / max(1, step - logged)
        self._tracker.scalars(step, values)
        self._logged = (now, waited, step)
        self._left_out = 0.0
        return True

    def event(self, name: str, step: int, **values: float | str) -> None:
        """Log an event that happens now, after ``step`` steps."""
        self._tracker.event(name, step, self._run.plan.position(step), **values)

    def layers(self, step: int, state: TrainState) -> None:
        """Begin to log the norms of each parameter and the statistics of each BatchNorm.

        The device copies them before the next step replaces them, and `write_layers` writes the
        row, so that the host does not wait for the step.

        Args:
          step: has been dispatched.
          state: after it.
        """
        self.write_layers()
        report = self._run.stage_at(step).programs.layer_report
        numbers = report(state.optimizer.report, state.stats)
        numbers.copy_to_host_async()
        self._layers = step, numbers

    def write_layers(self) -> None:
        """Write the row that `layers` has begun, if there is one; waits for its step."""
        if self._layers is None:
            return
        (step, numbers), self._layers = self._layers, None
        values = self._run.stage_at(step).programs.steps.layer_rows.read(jax.device_get(numbers))
        self._tracker.layers(step, self._run.plan.position(step), values)

    def flush(self) -> None:
        """Write everything logged so far to the disk."""
        self.write_layers()
        self._tracker.flush()

    def times(self, step: int) -> None:
        """Log what the seconds of this attempt were spent on."""
        clock = self._clock
        spent = {
            "compile_s": self._run.compile_s,
            "train_s": clock.now() - self._trained,
            "evaluation_s": clock.evaluation_s,
            "checkpoint_s": clock.checkpoint_s,
        }
        other = clock.attempt_s() - sum(spent.values())
        self.event("times", step, **spent, wait_s=clock.wait_s, other_s=other)

    def summary(
        self, status: Status, progress: Progress, result: Result | None, target: Target
    ) -> Summary:
        """Return the summary of the run.

        Args:
          status: how this attempt ended.
          progress: where the run is now.
          result: the newest evaluation of this attempt.
          target: what the evaluations of all attempts have reached.
        """
        clock = self._clock
        return Summary(
            status=status,
            top1=result and result.top1,
            top5=result and result.top5,
            loss=result and result.loss,
            steps=progress.step,
            samples=progress.samples,
            wall_s=progress.wall_s,
            compile_s=progress.compile_s,
            images_per_s=self.images_per_s(progress.step),
            train_s=clock.now() - self._trained,
            wait_s=clock.wait_s,
            evaluation_s=clock.evaluation_s,
            checkpoint_s=clock.checkpoint_s,
            skips=progress.skips,
            rollbacks=progress.rollbacks,
            unreadable=sum(split.count for split in self._run.unreadable.values()),
            target_top1=target.top1 or None,
            target_step=target.step,
            target_s=target.seconds,
            **averaged_columns(result),
            sets=result.set_columns if result else {},
        )

    def images_per_s(self, step: int) -> float | None:
        """Return the throughput of all processes, without compilation and evaluation."""
        seconds = self._clock.now()
        return self._run.plan.position(step) / seconds if seconds > 0 else None

    @property
    def input_wait(self) -> float:
        """Share of the training time of this attempt that was waiting for data."""
        return self._clock.wait_s / max(self._clock.now() - self._trained, 1e-9)

    def epoch(self, step: int) -> float:
        """Return the epochs consumed after ``step`` steps."""
        return self._run.plan.position(step) / self._run.plan.epoch_samples

    def _fingerprint(self, step: int) -> str:
        """Return a hash of the examples of a step, which shows where two runs diverge."""
        plan = self._run.plan
        positions = np.arange(plan.position(step - 1), plan.position(step))
        return data.fingerprint(self._run.stage_at(step).order.ids(positions))


@dataclasses.dataclass(frozen=True)
class History:
    """The files and trackers of a run; empty on processes other than 0.

    Attributes:
      tracker: receives rows and events.
      target: holds what earlier attempts have reached.
    """

    tracker: tracking.Tracker
    target: tracking.Target


def nothing() -> History:
    """Return the history of a process that writes nothing."""
    return History(tracking.Composite(()), tracking.Target(0.0))


def opened(
    run: Run,
    workdir: Path,
    progress: Progress,
    began: float,
    recipe: Path | None = None,
    callbacks: Tracker | None = None,
) -> History:
    """Write ``config.json`` and open the logs and trackers of a run.

    Args:
      run: about to train.
      workdir: run directory.
      progress: where training starts.
      began: the ``time.perf_counter()`` at which this attempt started.
      recipe: the recipe file; None if there is none.
      callbacks: a further tracker, which calls the user's functions.

    Raises:
      UserError: a tracker is not installed or cannot be reached.
    """
    resolved = description.resolved(run)
    if recipe is not None:  # the user's own modules may be beside it
        file = find(split_argument(recipe)[0]).resolve()
        resolved["recipe"] = str(file.relative_to(ROOT) if file.is_relative_to(ROOT) else file)
    write_json(workdir / "config.json", resolved)
    where = {"workdir": workdir, "resume_step": progress.step}
    options = run.plan.config.run
    trackers: list[tracking.Tracker] = [
        tracking.JsonlTracker(**where, again=bool(progress.evaluation_due)),
        tracking.TensorBoardTracker(**where),
    ]
    # Only a target needs the rows of earlier attempts.
    rows = tracking.read_rows(workdir / "metrics.jsonl") if options.target else ()
    if options.mlperf_log:
        facts, kind = run.plan.facts, run.first_stage.mesh.devices.flat[0].device_kind
        log = tracking.MlperfTracker(
            workdir / f"result_{options.seed}.txt",
            run.plan,
            division=options.mlperf_log,
            platform=f"{facts.devices} × {kind}",
            target=options.target,
            organisation=options.mlperf_organisation,
            began=time.time() - (time.perf_counter() - began),
        )
        trackers.append(log)
    trackers += [
        tracking.hosted_tracker(name, **where, config=resolved, warn=run.console.warn)
        for name in options.trackers
    ]
    trackers += [callbacks] if callbacks else []
    tracker = tracking.Composite(trackers)
    tracker.event(
        "attempt",
        progress.step,
        progress.samples,
        devices=run.plan.facts.devices,
        processes=run.plan.facts.processes,
        device_kind=run.first_stage.mesh.devices.flat[0].device_kind,
        jax=jax.__version__,
        python=platform.python_version(),
        host=socket.gethostname(),
    )
    return History(tracker, tracking.Target(options.target, rows))
