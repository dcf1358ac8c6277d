"""The training loop: feed, dispatch, look at the previous step, evaluate, save."""

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from largebatch import data
from largebatch.optim import Rates, by_path
from largebatch.tracking import Summary, Tracker
from largebatch.tracking.summary import Status
from largebatch.train.build import Run
from largebatch.train.checkpoints import Checkpoints, Progress
from largebatch.train.evaluation import Result, evaluate
from largebatch.train.programs import Programs
from largebatch.train.steps import Metrics, TrainState
from largebatch.train.transfer import OnDevices

PyTree = Any


@dataclasses.dataclass
class Clock:
    """Seconds of training, without evaluation and checkpoints, and how many were waiting."""

    train_s: float = 0.0
    wait_s: float = 0.0
    evaluation_s: float = 0.0
    checkpoint_s: float = 0.0
    _since: float | None = None

    def start(self) -> None:
        """Go on counting."""
        self._since = time.perf_counter()

    def pause(self) -> None:
        """Stop counting."""
        self.train_s, self._since = self.now(), None

    def now(self) -> float:
        """Seconds of training so far."""
        running = 0.0 if self._since is None else time.perf_counter() - self._since
        return self.train_s + running

    def timed(self, feed: Iterator[OnDevices]) -> Iterator[OnDevices]:
        """The same microbatches, the wait for each counted."""
        while True:
            start = time.perf_counter()
            microbatch = next(feed, None)
            self.wait_s += time.perf_counter() - start
            if microbatch is None:
                return
            yield microbatch


def run_step(
    programs: Programs, state: TrainState, feed: Iterator[OnDevices], rates: Rates
) -> tuple[TrainState, Metrics]:
    """Dispatch a step on the next k microbatches; returns before the last of them is computed."""
    steps = programs.steps
    carry = programs.empty_carry() if steps.plan.microbatches > 1 else None
    for left in reversed(range(steps.plan.microbatches)):
        images, labels, *_ = next(feed)
        # One microbatch at a time is computed, or queued images would fill the device.
        jax.block_until_ready(carry)
        if left:
            carry = programs.accumulate(state.params, state.stats, carry, images, labels)
    rates = Rates(*(np.asarray(rate, steps.dtype) for rate in rates))
    return programs.finish(state, carry, images, labels, rates)


class Loop:
    """One process's turn at a run, from ``progress`` to the end or ``run.stop_after``."""

    def __init__(
        self,
        run: Run,
        tracker: Tracker,
        checkpoints: Checkpoints,
        progress: Progress,
        began: float,
    ) -> None:
        """``began`` is the ``time.perf_counter()`` at which this turn started."""
        self.run = run
        self.tracker = tracker
        self.checkpoints = checkpoints
        self.before = progress
        self.clock = Clock(train_s=progress.train_s)
        self.result: Result | None = None
        self.step = progress.step
        """Steps known to be done."""
        self._began = began
        self._logged = (self.clock.train_s, 0.0, progress.step)

    def train(self, state: TrainState) -> TrainState:
        """Train; returns the state after the last step, which has been evaluated and saved."""
        plan = self.run.plan
        first = self.before.step
        last = max(first, plan.stop_after_step)
        if last > first:
            self._event("train_start", first)
        with self.run.console.progress(
            plan.steps, first, samples_per_step=plan.samples_per_step
        ) as self._bar:
            for stage in self.run.stages:
                begin = max(first, stage.plan.first_step)
                end = min(last, stage.plan.first_step + stage.plan.stage_steps)
                if begin < end:
                    state = self._train_stage(stage, stage.placed(state), begin, end)
        if last > first:
            self._event("train_stop", last)
        if self.result is None:
            stage = self.run.stage_at(last)
            self.result = evaluate(stage, stage.placed(state), plan.position(last))
        return state

    def _train_stage(self, stage: Run, state: TrainState, first: int, last: int) -> TrainState:
        """The steps after ``first`` up to ``last``, all of one stage."""
        plan = self.run.plan
        pending: tuple[int, Metrics] | None = None
        batches = stage.train_microbatches(plan.position(first), plan.position(last))
        with contextlib.closing(batches):
            self.clock.start()
            feed = self.clock.timed(batches)
            for step in range(first + 1, last + 1):
                # The host computes rates from the one clock of the run, the sample position.
                rates = plan.rates(step)
                state, metrics = run_step(stage.programs, state, feed, rates)
                if pending is not None:
                    # Waits for the previous step while this one computes: the host runs one ahead.
                    self._finished(*pending)
                pending = (step, metrics)
                if plan.is_due(step, stage.plan.layers_every_steps):
                    self._log_layers(step, state)
                if self._stops_at(step):
                    pending = None
                    self._stop_at(step, state, metrics)
            if pending is not None:
                self._finished(*pending)
            self.clock.pause()
        return state

    def progress(self, step: int) -> Progress:
        """Where the run is after ``step``, for a checkpoint or the summary."""
        return Progress(
            step=step,
            samples=self.run.plan.position(step),
            wall_s=self.before.wall_s + time.perf_counter() - self._began,
            compile_s=self.before.compile_s + self.run.compile_s,
            train_s=self.clock.now(),
        )

    def images_per_s(self, step: int) -> float | None:
        """Training throughput of all turns, without compilation, evaluation and checkpoints."""
        seconds = self.clock.now()
        return self.run.plan.position(step) / seconds if seconds > 0 else None

    def summary(self, status: Status) -> Summary:
        """How the run stands."""
        progress, result = self.progress(self.step), self.result
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
            train_s=self.clock.now() - self.before.train_s,
            wait_s=self.clock.wait_s,
            evaluation_s=self.clock.evaluation_s,
            checkpoint_s=self.clock.checkpoint_s,
        )

    def _stops_at(self, step: int) -> bool:
        plan = self.run.plan
        return step == plan.stop_after_step or plan.evaluates_at(step) or self._saves_at(step)

    def _saves_at(self, step: int) -> bool:
        plan = self.run.plan
        return plan.is_due(step, plan.stage_at(step).checkpoint_every_steps)

    def _stop_at(self, step: int, state: TrainState, metrics: Metrics) -> None:
        """At the end of a step that is evaluated or saved: nothing is in flight meanwhile."""
        plan = self.run.plan
        metrics = jax.device_get(metrics)
        self.clock.pause()
        last = step == plan.stop_after_step
        extra = {}
        if last or plan.evaluates_at(step):
            self._event("eval_start", step)
            self.result = evaluate(self.run.stage_at(step), state, plan.position(step))
            self._event("eval_stop", step, top1=self.result.top1)
            self.clock.evaluation_s += self.result.seconds
            extra = {
                f"validation/{key}": getattr(self.result, key) for key in ("loss", "top1", "top5")
            }
            self.run.console.evaluation(
                step,
                epoch=self._epoch(step),
                loss=self.result.loss,
                top1=self.result.top1,
                top5=self.result.top5,
                seconds=self.result.seconds,
            )
        self._finished(step, metrics, extra)
        if last or self._saves_at(step):
            since = time.perf_counter()
            self.tracker.flush()  # a checkpoint never knows more than the log
            self.checkpoints.save(self.run.programs.steps.stored(state), self.progress(step), plan)
            self.clock.checkpoint_s += time.perf_counter() - since
        self._event("step", step)
        self.clock.start()

    def _finished(self, step: int, metrics: Metrics, extra: dict[str, float] | None = None) -> None:
        """Report a step that has been computed."""
        metrics = jax.device_get(metrics)
        plan, self.step = self.run.plan, step
        if plan.is_due(step, plan.stage_at(step).log_every_steps) or extra is not None:
            then, waited, logged = self._logged
            seconds = self.clock.now() - then
            self.tracker.scalars(
                step,
                {
                    "samples": plan.position(step),
                    "epoch": self._epoch(step),
                    "loss": float(metrics.loss),
                    "top1": float(metrics.top1),
                    "top5": float(metrics.top5),
                    "learning_rate": plan.rates(step).learning_rate,
                    "gradient_norm": float(metrics.gradient_norm),
                    "images_per_s": (plan.position(step) - plan.position(logged))
                    / max(seconds, 1e-9),
                    "fingerprint": self._fingerprint(step),
                    "input_wait": (self.clock.wait_s - waited) / max(seconds, 1e-9),
                    **(extra or {}),
                },
            )
            self._logged = (self.clock.now(), self.clock.wait_s, step)
        self._bar.update(
            step,
            loss=float(metrics.loss),
            images_per_s=self.images_per_s(step),
            epoch=self._epoch(step),
        )
        if extra is None:  # otherwise there is more to do before the next step
            self._event("step", step)

    def _event(self, name: str, step: int, **values: float) -> None:
        self.tracker.event(name, step, self.run.plan.position(step), **values)

    def _log_layers(self, step: int, state: TrainState) -> None:
        """Trust ratio and norms of every parameter; waits, for the next step takes the state."""
        values = by_path(state.optimizer.report, state.params)
        self.tracker.layers(step, self.run.plan.position(step), values)

    def _fingerprint(self, step: int) -> str:
        """Hash of the examples of a step, by which two sites find where their runs part."""
        plan = self.run.plan
        positions = np.arange(plan.position(step - 1), plan.position(step))
        return data.fingerprint(self.run.stage_at(step).order.ids(positions))

    def _epoch(self, step: int) -> float:
        return self.run.plan.position(step) / self.run.plan.epoch_samples
