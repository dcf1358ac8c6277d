"""The training loop: feed, dispatch, look at the previous step, evaluate, save."""

import contextlib
import dataclasses
import time
from pathlib import Path
from typing import Any

import jax

from largebatch.checkpoint.arrays import on_devices
from largebatch.checkpoint.manager import Checkpoints, Progress
from largebatch.errors import HealthError
from largebatch.fault_tolerance import IDLE, Guard, Interrupted
from largebatch.fault_tolerance.health import WELL, Health, Verdict
from largebatch.parallel import processes
from largebatch.tracking import Summary, Target, Tracker
from largebatch.tracking.summary import Status
from largebatch.training.build import Run
from largebatch.training.clock import Clock
from largebatch.training.evaluation import Result, evaluate, is_far_above, with_final_statistics
from largebatch.training.execution import run_step
from largebatch.training.inspection import Inspection
from largebatch.training.journal import Journal
from largebatch.training.profiling import Profiler
from largebatch.training.state import Metrics, TrainState

PyTree = Any
METRICS = ("loss", "top1", "top5", "gradient_norm")


class Loop:
    """One process's turn at a run, from ``progress`` to the end or ``run.stop_after``."""

    def __init__(
        self,
        run: Run,
        tracker: Tracker,
        checkpoints: Checkpoints,
        progress: Progress,
        began: float,
        guard: Guard = IDLE,
        *,
        target: Target | None = None,
        profile: Path | None = None,
    ) -> None:
        """See the class.

        Args:
          run: ready to start.
          tracker: of its history.
          checkpoints: of its directory.
          progress: where this turn begins.
          began: the ``time.perf_counter()`` at which it did.
          guard: asks it to stop.
          target: to be reached.
          profile: where this process traces ``run.profile``'s steps; None: it does not.
        """
        self.run = run
        self.tracker = tracker
        self.checkpoints = checkpoints
        self.before = progress
        self.clock = Clock(progress.wall_s, began, train_s=progress.train_s)
        self.target = target or Target(0.0)
        self.result: Result | None = None
        self.step = progress.step
        """Steps known to be done."""
        self._guard = guard
        self._profiler = Profiler(
            run.plan.profile_steps if profile else None,
            profile or Path(),
            self.clock,
            run.console.note,
        )
        self._is_warned = False
        self._leaving = ""
        """Why the processes stop after the present step, once they have agreed to."""
        self._journal = Journal(run, tracker, self.clock, progress.step)
        self._inspection = Inspection(run, self._journal, self.clock, progress.step, guard)
        self._health = Health(
            run.plan,
            skips=progress.skips,
            rollbacks=progress.rollbacks,
            newest=checkpoints.newest_path,
        )

    def train(self, state: TrainState) -> TrainState:
        """Train; returns the state after the last step, which has been evaluated and saved.

        Raises:
          Interrupted: the run is to stop; the state of the last step has been saved.
          HealthError: a loss or gradient is not finite, or the training has diverged.
        """
        plan = self.run.plan
        first = self.before.step
        last = max(first, plan.stop_after_step)
        if last > first:
            self._journal.event("train_start", first)
        with self.run.console.progress(
            plan.steps, first, samples_per_step=plan.samples_per_step
        ) as self._bar:
            if self.before.evaluation_due:
                stage = self.run.stage_at(first)
                metrics = Metrics(**{key: getattr(self.before, key) for key in METRICS})
                state = self._stop_at(first, stage.placed(state), metrics, judge=False)
            for stage in self.run.stages:
                begin = max(first, stage.plan.first_step)
                end = min(last, stage.plan.first_step + stage.plan.stage_steps)
                if begin < end:
                    state = self._train_stage(stage, stage.placed(state), begin, end)
        if last > first:
            self._journal.event("train_stop", last)
        if self.result is None:
            stage = self.run.stage_at(last)
            with self._guard.section("evaluation"):
                state = with_final_statistics(
                    stage, stage.placed(state), plan.position(last), self._guard
                )
                self.result = evaluate(stage, state, self._guard)
        return state

    def _train_stage(self, stage: Run, state: TrainState, first: int, last: int) -> TrainState:
        """The steps after ``first`` up to ``last``, all of one stage."""
        plan, guard = self.run.plan, self._guard
        pending: tuple[int, Metrics] | None = None
        batches = stage.train_microbatches(
            plan.position(first), plan.position(last), guard.patience
        )
        with contextlib.closing(batches), contextlib.closing(self._profiler), guard.section("step"):
            self.clock.start()
            feed = self.clock.timed(batches, guard)
            for step in range(first + 1, last + 1):
                # The host computes rates from the one clock of the run, the sample position.
                rates = plan.rates(step)
                copy = self._inspection.begin(stage, step, state)
                self._profiler.before(step, state)
                times = self._inspection.measured
                try:
                    state, metrics = run_step(stage.programs, state, feed, rates, guard, times)
                except Interrupted:  # which has left the state as it was
                    if pending is not None and self._finished(*pending).action == "rollback":
                        raise  # what could be saved is saved already
                    self._leave(step - 1, state)
                    raise
                self._inspection.end(stage, step, copy, (state, metrics), rates)
                self._profiler.after(step, state, last=step == last)
                verdict = WELL
                if pending is not None:
                    # Waits for the previous step while this one computes: the host runs one ahead.
                    verdict = self._finished(*pending)
                pending = (step, metrics)
                stops = bool(self._leaving) or self._stops_at(step)
                if verdict.action == "rollback":  # this step began where that one led
                    if not stops:
                        self._report(step, jax.device_get(metrics))
                        self._journal.event("step", step)
                    state, pending = self._rolled_back(verdict, step, save=not stops), None
                if plan.is_due(step, stage.plan.layers_every_steps):
                    self._journal.layers(step, state)
                if stops:
                    state = self._stop_at(step, state, metrics, judge=pending is not None)
                    pending = None
            if pending is not None and (verdict := self._finished(*pending)).action == "rollback":
                state = self._rolled_back(verdict, last)
            self.clock.pause()
        return state

    def progress(self, step: int) -> Progress:
        """Where the run is after ``step``, for a checkpoint or the summary."""
        return Progress(
            step=step,
            samples=self.run.plan.position(step),
            wall_s=self.clock.wall_s(),
            compile_s=self.before.compile_s + self.run.compile_s,
            train_s=self.clock.now(),
            skips=self._health.skips,
            rollbacks=self._health.rollbacks,
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
            skips=progress.skips,
            rollbacks=progress.rollbacks,
            unreadable=sum(split.count for split in self.run.unreadable.values()),
            target_top1=self.target.top1 or None,
            target_step=self.target.step,
            target_s=self.target.seconds,
        )

    def _stops_at(self, step: int) -> bool:
        plan = self.run.plan
        return step == plan.stop_after_step or plan.evaluates_at(step) or self._saves_at(step)

    def _saves_at(self, step: int) -> bool:
        plan = self.run.plan
        return plan.is_due(step, plan.stage_at(step).checkpoint_every_steps)

    def _stop_at(
        self, step: int, state: TrainState, metrics: Metrics, *, judge: bool = True
    ) -> TrainState:
        """At the end of a step that is evaluated or saved: nothing is in flight meanwhile.

        Args:
          step: which.
          state: after it.
          metrics: its own.
          judge: whether the step has not been looked at, or dropped, before.

        Returns:
          The state: another after a rollback, and with the statistics of its evaluation.

        Raises:
          Interrupted: the run is to stop.
        """
        plan = self.run.plan
        self._profiler.after(step, state, last=True)
        metrics = jax.device_get(metrics)
        self.clock.pause()
        rolled = not judge
        if judge and (verdict := self._look(step, metrics)).action == "rollback":
            state, rolled = self._rolled_back(verdict, step, save=False), True
        elif (sound := self._sound(step, state, save=False)) is not state:
            state, rolled = sound, True
        self.clock.pause()  # a rollback has started it
        last = step == plan.stop_after_step
        # A row of its own, but not for having been told to stop: the log would show it for ever.
        extra = {} if self._stops_at(step) else None
        if last or plan.evaluates_at(step):
            final, extra = self._evaluated(step, state, metrics)
            # A run that stops between its evaluations continues as if it had not been evaluated.
            if plan.evaluates_at(step) or step == plan.steps:
                state = final
        self._report(step, metrics, extra)
        if self._leaving and not last:
            self._leave(step, state)
            raise Interrupted(self._leaving)
        if last or rolled or self._saves_at(step):
            self._save(step, state, self.progress(step))
        self._journal.event("step", step)
        self.clock.start()
        return state

    def _finished(self, step: int, metrics: Metrics) -> Verdict:
        """Look at a step that has been computed, and report it."""
        metrics = jax.device_get(metrics)
        verdict = self._look(step, metrics)
        self._report(step, metrics)
        self._journal.event("step", step)
        return verdict

    def _look(self, step: int, metrics: Metrics) -> Verdict:
        """What the numbers say, the same on all processes."""
        self._guard.alive()
        if metrics.stop is not None and metrics.stop > 0:
            self._leaving = self._guard.requested or "another process is to stop"
        try:
            verdict = self._health.look(step, float(metrics.loss), float(metrics.gradient_norm))
        except HealthError as error:
            self._journal.event("unhealthy", step, why=str(error))
            raise
        self._tell(verdict, step)
        return verdict

    def _tell(self, verdict: Verdict, step: int) -> None:
        if verdict.action != "continue":
            self.run.console.warn(verdict.text)
            self._journal.event(verdict.action, step)

    def _rolled_back(self, verdict: Verdict, at: int, *, save: bool = True) -> TrainState:
        """The state of the newest checkpoint before trouble, from now on that of step ``at``.

        The sample position moves on, so what led to trouble is not met again, in this turn or,
        once it is saved, in another.

        Args:
          verdict: that asked for it.
          at: the newest step that has been dispatched.
          save: whether to save it here; otherwise the caller does when the step is reported.
        """
        stage, checkpoints = self.run.stage_at(at), self.checkpoints
        self.clock.pause()
        with self._guard.section("checkpoint"):
            stored = checkpoints.newest(
                self.run.plan, self.run.programs.stored, until=verdict.good_step
            )
            host = on_devices(stored.state, self.run.programs.stored)
            state = stage.placed(self.run.programs.steps.restored(host))
        if save:
            self._save(at, state, self.progress(at))
        self.step = at
        self.clock.start()
        return state

    def _sound(self, step: int, state: TrainState, *, save: bool = True) -> TrainState:
        """The state after ``step``, which may be saved; after a rollback another one."""
        finite = self.run.stage_at(step).programs.steps.finite(state)
        # Copies that should be equal may not be, where memory is faulty.
        verdict = self._health.look_at_state(step, bool(processes.agreed_minimum(int(finite))))
        self._tell(verdict, step)
        if verdict.action != "rollback":
            return state
        return self._rolled_back(verdict, step, save=save)

    def _leave(self, step: int, state: TrainState) -> None:
        """Save the state of ``step``, since the run stops there."""
        self.clock.pause()
        state = self._sound(step, state)
        self._journal.event("preempted", step)
        self._save(step, state, self.progress(step))

    def _save(self, step: int, state: TrainState, progress: Progress) -> None:
        since = time.perf_counter()
        with self._guard.section("checkpoint"):
            self.tracker.flush()  # a checkpoint never knows more than the log
            stored = self.run.programs.steps.stored(state)
            # An evaluation that had been interrupted is done now, and the checkpoint says so.
            replace = bool(self.before.evaluation_due) and step == self.before.step
            self.checkpoints.save(stored, progress, self.run.plan, replace=replace)
        self._journal.event("checkpoint", step)
        self.clock.checkpoint_s += time.perf_counter() - since
        self._journal.times(step)

    def _evaluated(
        self, step: int, state: TrainState, metrics: Metrics
    ) -> tuple[TrainState, dict[str, float]]:
        """Evaluate the state after a step.

        Returns:
          The state with the statistics of its evaluation; the columns of the result.

        Raises:
          Interrupted: the run is to stop; the state is saved, and the evaluation is due.
        """
        stage, position = self.run.stage_at(step), self.run.plan.position(step)
        self._journal.event("eval_start", step)
        since = time.perf_counter()
        try:
            with self._guard.section("evaluation"):
                final = with_final_statistics(stage, state, position, self._guard)
                self.result = evaluate(stage, final, self._guard)
        except Interrupted:
            numbers = {key: float(getattr(metrics, key)) for key in METRICS}
            due = dataclasses.replace(self.progress(step), evaluation_due=1, **numbers)
            self._save(step, state, due)
            raise
        self._journal.event("eval_stop", step, top1=self.result.top1)
        seconds = time.perf_counter() - since  # with those of the statistics
        self.clock.evaluation_s += seconds
        self._journal.times(step)
        self.run.console.evaluation(
            step,
            epoch=self._journal.epoch(step),
            loss=self.result.loss,
            top1=self.result.top1,
            top5=self.result.top5 if self.run.plan.facts.classes > 5 else None,
            seconds=seconds,
            target=self.target.look(step, self.clock.wall_s(), self.result.top1),
        )
        self._warn_of_statistics(float(metrics.loss))
        columns = {f"validation/{k}": getattr(self.result, k) for k in ("loss", "top1", "top5")}
        return final, columns

    def _warn_of_statistics(self, loss: float) -> None:
        """Warn, once, where running statistics may be why validation is far worse than training."""
        statistics = self.run.plan.norm_statistics
        if self._is_warned or statistics == "precise" or not is_far_above(self.result.loss, loss):
            return
        self._is_warned = True
        self.run.console.warn(
            f"the validation loss of {self.result.loss:.4g} is far above the training loss of "
            f"{loss:.4g}: the network overfits, or the BatchNorm statistics of norm.statistics="
            f"{statistics} lag behind its weights; --eval_only --config.norm.statistics=precise "
            "evaluates without that lag"
        )

    def _report(self, step: int, metrics: Metrics, extra: dict[str, float] | None = None) -> None:
        self.step = step
        has_row = self._journal.step(step, metrics, extra)
        self._bar.update(
            step,
            loss=float(metrics.loss),
            images_per_s=self.images_per_s(step),
            epoch=self._journal.epoch(step),
            wait=self._journal.input_wait,
            has_row=has_row,
        )
