"""The training loop: dispatch a step, examine the one before it, evaluate, save."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np

from largebatch import data
from largebatch.checkpoint.checkpoints import Checkpoints
from largebatch.checkpoint.manifest import Progress
from largebatch.fault_tolerance import IDLE, Interrupted, Watchdog
from largebatch.fault_tolerance.health import WELL, Health, Verdict
from largebatch.parallel.transfer import OnDevices
from largebatch.tracking import Summary
from largebatch.tracking.summary import Status
from largebatch.training.checkpointer import Checkpointer
from largebatch.training.dispatch import run_step
from largebatch.training.evaluation import Result
from largebatch.training.evaluator import Evaluator
from largebatch.training.inspection import Inspection
from largebatch.training.journal import History, Journal
from largebatch.training.monitor import Monitor
from largebatch.training.outcome import Outcome, after_step
from largebatch.training.run import Run, StageRun
from largebatch.training.state import MEASURED, Metrics, TrainState
from largebatch.training.timing import Clock, Profiler


class Loop:
    """Trains in this process, from ``progress`` to the last step or ``run.stop_after``."""

    def __init__(
        self,
        run: Run,
        history: History,
        checkpoints: Checkpoints,
        progress: Progress,
        began: float,
        watchdog: Watchdog = IDLE,
        *,
        profile: Path | None = None,
    ) -> None:
        """Prepare; `train` starts.

        Args:
          run: ready to start.
          history: receives the rows and events of the log.
          checkpoints: of the run directory.
          progress: where training starts.
          began: the ``time.perf_counter()`` at which this attempt started.
          watchdog: requests a stop.
          profile: output directory of the profiler for ``run.profile``; None: no tracing.
        """
        plan = run.plan
        self.run = run
        self.initial_progress = progress
        self.step = progress.step
        """Steps known to be done."""
        self.target = history.target
        self._watchdog = watchdog
        self._pending: tuple[int, Metrics] | None = None
        """A step that has been dispatched and is not examined yet."""
        self._clock = clock = Clock(
            progress.wall_s,
            began,
            train_s=progress.train_s,
            wait_s=progress.wait_s,
            evaluation_s=progress.evaluation_s,
            checkpoint_s=progress.checkpoint_s,
        )
        self._journal = journal = Journal(run, history, clock, progress)
        health = Health(
            plan,
            memory=progress.memory.get("health")
            or {"skips": progress.skips, "rollbacks": progress.rollbacks},
            counts=data.class_counts(run.first_stage.train_source),
            newest=checkpoints.newest_path,
            returns_to=checkpoints.rollback_path,
        )
        self._monitor = Monitor(run, health, journal, watchdog)
        evaluated = progress.memory.get("evaluation", {})
        self._evaluator = Evaluator(run, journal, clock, self.target, evaluated, watchdog)
        self.checkpointer = Checkpointer(
            run, checkpoints, journal, clock, health, self._evaluator, progress, watchdog
        )
        self._inspection = Inspection(run, journal, clock, progress.step, watchdog)
        self._profiler = Profiler(
            plan.profile_steps if profile else None, profile or Path(), clock, run.console.note
        )
        self._bar = run.console.progress(
            plan.steps, progress.step, samples_per_step=plan.first_stage.samples_per_step
        )

    def train(self, state: TrainState) -> TrainState:
        """Train; return the state after the last step, which has been evaluated and saved.

        Raises:
          Interrupted: the run must stop; the state of the last step has been saved.
          HealthError: a loss or gradient is not finite, or the training has diverged.
        """
        plan = self.run.plan
        first = self.initial_progress.step
        last = max(first, plan.stop_after_step)
        if last > first:
            self._journal.event("train_start", first)
        with self._bar as self._progress:
            if self.initial_progress.evaluation_due:
                state = self._repeat_evaluation(first, state)
            for stage in self.run.stages:
                begin = max(first, stage.plan.first_step)
                end = min(last, stage.plan.last_step)
                if begin < end:
                    state = self._train_stage(stage, stage.placed(state), begin, end)
        # Also where nothing was left to train: a kill may have come after the last checkpoint.
        self._journal.event("train_stop", last)
        if self.result is None:
            with self._watchdog.section("evaluation"):
                state = self._evaluator.compute(last, state)
        return state

    def _train_stage(self, stage: StageRun, state: TrainState, first: int, last: int) -> TrainState:
        """Train the steps after ``first`` up to ``last``, all of one stage."""
        plan = self.run.plan
        batches = stage.train_microbatches(
            plan.position(first), plan.position(last), self._watchdog.patience
        )
        with (
            contextlib.closing(batches),
            contextlib.closing(self._profiler),
            self._watchdog.section("step"),
        ):
            self._clock.start()
            feed = self._noting_ends(self._clock.timed(batches, self._watchdog))
            for step in range(first + 1, last + 1):
                state, metrics = self._dispatch(stage, step, state, feed, is_last=step == last)
                # Waits for the previous step while this one computes.
                verdict = self._examine_pending()
                outcome = after_step(plan, step, stop_requested=bool(self._monitor.stop_reason))
                self._pending = step, metrics
                rolled_back = verdict.action == "rollback"
                if rolled_back:
                    state = self._discard_and_roll_back(step, metrics, verdict, outcome)
                if plan.is_due(step, stage.plan.layers_every):
                    self._journal.layers(step, state)
                if outcome.synchronizes:
                    state = self._synchronize(step, state, metrics)
                elif rolled_back:  # saved with the row of layers: the log is never behind
                    self._clock.pause()
                    self.checkpointer.save(step, state)
                    self._clock.start()
            verdict = self._examine_pending()
            if verdict.action == "rollback":
                state = self._roll_back(verdict, last)
            self._clock.pause()
        return state

    @property
    def result(self) -> Result | None:
        """The newest evaluation of this attempt."""
        return self._evaluator.result

    def summary(self, status: Status) -> Summary:
        """Build the run summary."""
        progress = self.checkpointer.progress(self.step)
        return self._journal.summary(status, progress, self._evaluator.columns, self.target)

    def _noting_ends(self, feed: Iterator[OnDevices]) -> Iterator[OnDevices]:
        """Yield microbatches; between them, note the end of the step that was dispatched last."""
        for microbatch in feed:
            if self._pending is not None and self._pending[1].values.is_ready():
                self._journal.ended(self._pending[0])
            yield microbatch

    def _dispatch(
        self,
        stage: StageRun,
        step: int,
        state: TrainState,
        feed: Iterator[OnDevices],
        *,
        is_last: bool,
    ) -> tuple[TrainState, Metrics]:
        """Dispatch a step; trace, time or repeat it where that is due.

        Raises:
          Interrupted: the run must stop; the state before the step has been saved.
        """
        # All rates follow from the sample position, the only clock of the schedules.
        rates = self.run.plan.rates(step)
        copy = self._inspection.begin(stage, step, state)
        self._profiler.before(step, state, stage.programs.of_step)
        times = self._inspection.measured
        try:
            state, metrics = run_step(stage.programs, state, feed, rates, self._watchdog, times)
        except Interrupted:  # the state is unchanged
            self._clock.pause()
            self._save_for_stop(step - 1, state, self._examine_pending())
            raise
        self._inspection.end(stage, step, copy, (state, metrics), rates)
        self._profiler.after(step, state, last=is_last)
        return state, metrics

    def _save_for_stop(self, step: int, state: TrainState, verdict: Verdict) -> None:
        """Save the state after a judged step, where the run stops between its checkpoints.

        Unless the run is to roll back: the next attempt starts from the newest checkpoint, meets
        the same fault, and rolls back where an uninterrupted run does.
        """
        self._journal.event("preempted", step)
        if verdict.action != "rollback" and self._monitor.is_finite(step, state):
            self.checkpointer.save(step, state, for_stop=True)

    def _synchronize(
        self, step: int, state: TrainState, metrics: Metrics, *, repeats: bool = False
    ) -> TrainState:
        """Wait for a step; evaluate, log and save if due.

        Args:
          step: its number.
          state: after it.
          metrics: of it, not yet on the host.
          repeats: whether only its evaluation is repeated, which was interrupted.

        Returns:
          The state to continue with: after a rollback that of a checkpoint, after an evaluation
          with its statistics.

        Raises:
          Interrupted: the run stops here; the state has been saved.
        """
        self._profiler.after(step, state, last=True)
        metrics = jax.device_get(metrics)
        self._journal.write_layers()
        self._clock.pause()
        # A step that started from a discarded state is not judged.
        is_judged, self._pending = self._pending is not None, None
        verdict = self._monitor.judge(step, metrics) if is_judged else WELL
        # Computed a second time: this step may have brought a request to stop.
        outcome = after_step(self.run.plan, step, stop_requested=bool(self._monitor.stop_reason))
        if is_judged and outcome.stops_early and not outcome.has_row:
            self._report(step, metrics)
            self._save_for_stop(step, state, verdict)
            raise Interrupted(self._monitor.stop_reason)
        if verdict.action == "rollback":
            checked = self._roll_back(verdict, step, save=False)
        else:
            checked = self._finite_or_rolled_back(step, state)
        replaced = checked is not state or not (is_judged or repeats)
        if repeats:
            replaced = replaced or not self.initial_progress.for_stop
        state = checked
        self._clock.pause()  # a rollback has started it
        columns: dict[str, float] | None = {} if outcome.has_row else None
        top1 = -1.0
        if outcome.evaluates:
            for_stop = not (outcome.checkpoint_is_due or replaced)
            final, columns = self._evaluate(step, state, metrics, for_stop=for_stop)
            if outcome.keeps_statistics:  # an uninterrupted run has this evaluation too
                state, top1 = final, self.result.score
                self._monitor.note(step, self._evaluator.result, self._evaluator.counts)
        self._report(step, metrics, columns, is_due=outcome.row_is_due)
        if columns and outcome.evaluates:
            self._evaluator.warn_of_statistics(self._journal.loss)
        if outcome.stops_early:
            self._journal.event("preempted", step)
        is_best = top1 >= 0 and self.checkpointer.exceeds_best(top1)
        if outcome.saves or replaced or is_best or repeats:
            due = outcome.checkpoint_is_due or replaced or is_best
            self.checkpointer.save(step, state, validation_top1=top1, for_stop=not due)
        if outcome.stops_early:
            raise Interrupted(self._monitor.stop_reason)
        self._journal.event("step", step)
        self._clock.start()
        return state

    def _repeat_evaluation(self, step: int, state: TrainState) -> TrainState:
        """Repeat the evaluation in which the previous attempt was interrupted."""
        stage = self.run.stage_at(step)
        metrics = Metrics(np.array([getattr(self.initial_progress, key) for key in MEASURED]))
        return self._synchronize(step, stage.placed(state), metrics, repeats=True)

    def _examine_pending(self) -> Verdict:
        """Wait for the step that was dispatched last, judge and report it."""
        self._journal.write_layers()
        if self._pending is None:
            return WELL
        (step, metrics), self._pending = self._pending, None
        metrics = jax.device_get(metrics)
        verdict = self._monitor.judge(step, metrics)
        self._report(step, metrics)
        self._journal.event("step", step)
        return verdict

    def _discard_and_roll_back(
        self, step: int, metrics: Metrics, verdict: Verdict, outcome: Outcome
    ) -> TrainState:
        """Roll back when a step has been dispatched from a state that is discarded.

        The caller saves the state.
        """
        self._pending = None
        if not outcome.synchronizes:
            self._report(step, jax.device_get(metrics))
            self._journal.event("step", step)
        return self._roll_back(verdict, step, save=False)

    def _roll_back(self, verdict: Verdict, step: int, *, save: bool = True) -> TrainState:
        """Load the newest checkpoint before the failure; it becomes the state of ``step``.

        The sample position advances, so the samples of the failed steps are not consumed a second
        time.

        Args:
          verdict: requests the rollback.
          step: the newest step that has been dispatched.
          save: whether to save the state here; otherwise the caller saves it.
        """
        self._clock.pause()
        state = self.checkpointer.load(step, until=verdict.good_step)
        if save:
            self.checkpointer.save(step, state)
        self.step = step
        self._clock.start()
        return state

    def _finite_or_rolled_back(self, step: int, state: TrainState) -> TrainState:
        """Return the state after ``step`` if it is finite; otherwise roll back without a save."""
        verdict = self._monitor.judge_state(step, state)
        return self._roll_back(verdict, step, save=False) if verdict.action == "rollback" else state

    def _evaluate(
        self, step: int, state: TrainState, metrics: Metrics, *, for_stop: bool
    ) -> tuple[TrainState, dict[str, float]]:
        """Evaluate the state after a step, and report the result.

        Returns:
          The state with the statistics of its evaluation; the columns of the result.

        Raises:
          Interrupted: the run must stop; the state is saved, and the evaluation is due.
        """
        try:
            with self._watchdog.section("evaluation"):
                final = self._evaluator.evaluate(step, state)
        except Interrupted:
            self.checkpointer.save(step, state, evaluation_due=metrics, for_stop=for_stop)
            raise
        return final, self._evaluator.report(step)

    def _report(
        self,
        step: int,
        metrics: Metrics,
        extra: dict[str, float] | None = None,
        *,
        is_due: bool = True,
    ) -> None:
        self.step = step
        has_row = self._journal.step(step, metrics, extra, is_due=is_due)
        self._progress.update(
            step,
            loss=self._journal.loss,
            images_per_s=self._journal.pace.get("images_per_s"),
            epoch=self._journal.epoch(step),
            wait=self._journal.pace.get("input_wait"),
            has_row=has_row,
        )
