"""The log of a run: rows and events of its steps, its summary, and the trackers that take them."""

import contextlib
import dataclasses
import math
import platform
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from largebatch import data, tracking
from largebatch.checkpoint.file import Progress
from largebatch.config.plan import Plan
from largebatch.config.registries import OPTIMIZERS
from largebatch.files import write_json
from largebatch.tracking import Tracker
from largebatch.training.noise_scale import NoiseScale
from largebatch.training.stage import Stage, stage_at
from largebatch.training.state import Metrics, TrainState
from largebatch.training.timing import Clock

AVERAGED = ("loss", "top1", "top5")
"""Columns of a row that are means over the images since the row before it."""


@dataclasses.dataclass
class RowInMaking:
    """What has happened since the last row; a checkpoint holds it, so that a resume continues it.

    A row that only a stop adds (``run.stop_after``) does not end it.
    """

    step: int = 0
    """The step of the last row."""
    train_s: float = 0.0
    """Seconds of training of all attempts until then."""
    wait_s: float = 0.0
    """Seconds of these that were waits for data."""
    images: float = 0.0
    """Images of the finite steps since then."""
    loss: float = math.nan
    """Mean over these images, as are the accuracies."""
    top1: float = math.nan
    top5: float = math.nan
    left_out: float = 0.0
    """Share of the microbatches left out, summed over the steps since then."""

    def add(self, metrics: Metrics, images: float) -> None:
        """Add the means of a step over this number of images.

        A step that is not finite, whose update is skipped, is left out.
        """
        new = {name: float(getattr(metrics, name)) for name in AVERAGED}
        if not math.isfinite(new["loss"]) or images <= 0:
            return
        self.images += images
        share = images / self.images  # 1 for the first, so that a row of one step is exact
        for name, value in new.items():
            mean = getattr(self, name) if share < 1 else value
            setattr(self, name, mean + (value - mean) * share)

    def memory(self) -> dict[str, float]:
        """Return the finite numbers for a checkpoint."""
        return {k: v for k, v in dataclasses.asdict(self).items() if math.isfinite(v)}


class Log:
    """The rows and events of one run attempt, on process 0 in its files and trackers."""

    def __init__(self, plan: Plan, stages: Sequence[Stage], warn: Callable[[str], None]) -> None:
        """Write nothing before `open`, which only process 0 calls.

        Args:
          plan: of the run.
          stages: of the run.
          warn: prints a warning of one line.
        """
        self._plan, self._stages, self._warn = plan, stages, warn
        self.target = tracking.Target(0.0)
        """What the evaluations of all attempts have reached."""
        self.files: tracking.JsonlTracker | None = None
        """The logs in the run directory, which are one of the trackers."""
        self.trackers: tuple[Tracker, ...] = ()
        """Receive rows and events."""
        self.loss = math.nan
        """Mean over the images since the last row; at a row, the row's."""
        self.pace: dict[str, float] = {}
        """``images_per_s`` and ``input_wait`` of the newest row of this attempt."""
        self._ended: tuple[int, float, float] = (-1, 0.0, 0.0)
        """The newest step that was seen to have ended, and the seconds of both kinds then."""
        self._layers: tuple[int, jax.Array] | None = None
        """A step and the numbers of its row in ``layers.jsonl``, on their way to the host."""

    def begin(self, clock: Clock, progress: Progress) -> None:
        """Start at the progress of the earlier attempts."""
        self._clock = clock
        begun = RowInMaking(progress.step, clock.train_s, clock.wait_s)
        self._row = dataclasses.replace(begun, **progress.memory.get("row", {}))
        self.noise = NoiseScale(self._plan.epoch_samples, **progress.memory.get("noise", {}))
        """Takes every step that has been judged."""

    def ended(self, step: int) -> None:
        """Note that a step has been computed now.

        `step` logs it later: when the host has dispatched the next step, which takes nearly as long
        as that step if it has many microbatches.
        """
        if step != self._ended[0]:
            self._ended = step, self._clock.now(), self._clock.wait_s

    def step(
        self,
        step: int,
        metrics: Metrics,
        extra: dict[str, float] | None = None,
        *,
        is_due: bool = True,
    ) -> bool:
        """Log a step that has been computed.

        Args:
          step: its number, from 1.
          metrics: on the host.
          extra: further columns of the row; None writes a row only if one is due.
          is_due: whether an uninterrupted run has this row too, so that the next row begins here.

        Returns:
          Whether it has a row.
        """
        plan, row = self._plan, self._row
        stage = plan.stage_at(step)
        images = stage.samples_per_step
        if metrics.left_out is not None:
            row.left_out += float(metrics.left_out) / (plan.facts.devices * stage.microbatches)
            images -= float(metrics.left_out) * stage.local_images
        row.add(metrics, images)
        self.loss = row.loss
        is_due = plan.is_due(step, stage.log_every) or (is_due and extra is not None)
        if extra is None and not is_due:
            return False
        rates, rule = plan.rates(step), plan.config.optimizer.name
        self.ended(step)
        _, now, waited = self._ended
        seconds = max(now - row.train_s, 1e-9)
        self.pace = {
            "images_per_s": (plan.position(step) - plan.position(row.step)) / seconds,
            "input_wait": (waited - row.wait_s) / seconds,
        }
        values = {
            "samples": plan.position(step),
            "epoch": self.epoch(step),
            **{name: getattr(row, name) for name in AVERAGED},
            "learning_rate": rates.learning_rate,
            # Of other rules, such as optax's, the momentum is unknown.
            **({"momentum": rates.momentum} if rule in OPTIMIZERS else {}),
            "batch": stage.samples_per_step,
            "image_size": stage.facts.image_shape[0],
            "gradient_norm": float(metrics.gradient_norm),
            "fingerprint": self._fingerprint(step),
            **self.pace,
            "seconds": self._clock.wall_s(),
            **(extra or {}),
        }
        values |= self.noise.columns()
        if plan.config.batch.deadline_s:
            values["left_out"] = row.left_out / max(1, step - row.step)
        for tracker in self.trackers:
            tracker.scalars(step, values)
        if is_due:
            self._row = RowInMaking(step, now, waited)
        return True

    def memory(self) -> dict[str, float]:
        """Return the row in the making, for a checkpoint."""
        return self._row.memory()

    def event(self, name: str, step: int, **values: float | str) -> None:
        """Record an event that happens now, after ``step`` steps; see `Tracker.event`."""
        for tracker in self.trackers:
            tracker.event(name, step, self._plan.position(step), **values)

    def close(self) -> None:
        """Close all trackers, also if one of them fails."""
        with contextlib.ExitStack() as stack:
            for tracker in self.trackers:
                stack.callback(tracker.close)

    def layers(self, step: int, state: TrainState) -> None:
        """Begin to log the norms of each parameter and the statistics of each BatchNorm.

        The device copies them before the next step replaces them, and `write_layers` writes the
        row, so that the host does not wait for the step.

        Args:
          step: has been dispatched.
          state: after it.
        """
        self.write_layers()
        report = stage_at(self._stages, step).layer_report
        numbers = report(state.optimizer.report, state.stats)
        numbers.copy_to_host_async()
        self._layers = step, numbers

    def write_layers(self) -> None:
        """Write the row that `layers` has begun, if there is one; waits for its step."""
        if self._layers is None:
            return
        (step, numbers), self._layers = self._layers, None
        values = stage_at(self._stages, step).read_layers(jax.device_get(numbers))
        if self.files:
            self.files.layers(step, self._plan.position(step), values)

    def flush(self) -> None:
        """Write everything logged so far to the disk."""
        self.write_layers()
        if self.files:
            self.files.flush()

    def times(self, step: int, compile_s: float) -> None:
        """Log what the seconds of this attempt were spent on, ``compile_s`` on compilation."""
        spent = {"compile_s": compile_s, **self._clock.spent_in_attempt()}
        other = self._clock.attempt_s() - sum(spent.values()) + spent["wait_s"]
        self.event("times", step, **spent, other_s=other)  # waits are a part of training

    def epoch(self, step: int) -> float:
        """Return the epochs consumed after ``step`` steps."""
        return self._plan.position(step) / self._plan.epoch_samples

    def _fingerprint(self, step: int) -> str:
        """Return a hash of the ids of a step's examples, which shows where two runs diverge."""
        plan = self._plan
        positions = np.arange(plan.position(step - 1), plan.position(step))
        return data.fingerprint(stage_at(self._stages, step).order.ids(positions))

    def open(
        self,
        workdir: Path,
        resolved: Mapping[str, Any],
        progress: Progress,
        began: float,
        callbacks: Tracker | None = None,
        *,
        resumes: bool = False,
    ) -> None:
        """Write ``config.json`` and open the logs and trackers.

        Args:
          workdir: run directory.
          resolved: the content of ``config.json``.
          progress: where training starts.
          began: the ``time.perf_counter()`` at which this attempt started.
          callbacks: a further tracker, which calls the user's functions.
          resumes: whether the run continues from a checkpoint, which may be that of step 0.

        Raises:
          UserError: a tracker is not installed or cannot be reached.
        """
        plan, options = self._plan, self._plan.config.run
        kind = self._stages[0].mesh.devices.flat[0].device_kind
        write_json(workdir / "config.json", resolved)
        where = {"workdir": workdir, "resume_step": progress.step}
        self.files = tracking.JsonlTracker(**where, again=bool(progress.evaluation_due))
        # Only a target needs the rows of earlier attempts.
        rows = tracking.read_rows(workdir / "metrics.jsonl") if options.target else ()
        self.target = tracking.Target(options.target, rows)
        trackers: list[Tracker] = [self.files, tracking.TensorBoardTracker(**where)]
        if options.mlperf_log:
            log = tracking.MlperfTracker(
                workdir / f"result_{options.seed}.txt",
                plan,
                division=options.mlperf_log,
                platform=f"{plan.facts.devices} × {kind}",
                target=options.target,
                began=time.time() - (time.perf_counter() - began),
            )
            trackers.append(log)
        hosted = [
            tracking.hosted_tracker(
                name, workdir, resumes=resumes, config=resolved, warn=self._warn
            )
            for name in options.trackers
        ]
        trackers += [each for each in (*hosted, callbacks) if each is not None]
        self.trackers = tuple(trackers)
        self.event(
            "attempt",
            progress.step,
            devices=plan.facts.devices,
            processes=plan.facts.processes,
            device_kind=kind,
            jax=jax.__version__,
            python=platform.python_version(),
            host=socket.gethostname(),
        )
