"""Save the state of a run attempt with its progress, and load an earlier state after a failure."""

import dataclasses
import time

from largebatch import data
from largebatch.checkpoint.checkpoints import Checkpoints
from largebatch.checkpoint.file import on_devices
from largebatch.checkpoint.manifest import Progress
from largebatch.fault_tolerance import Watchdog
from largebatch.fault_tolerance.health import Health
from largebatch.parallel import processes
from largebatch.training.evaluator import Evaluator
from largebatch.training.journal import Journal
from largebatch.training.run import Run
from largebatch.training.state import MEASURED, Metrics, TrainState
from largebatch.training.timing import Clock


class Checkpointer:
    """Saves and loads the states of one run attempt; each process must call its methods."""

    def __init__(
        self,
        run: Run,
        checkpoints: Checkpoints,
        journal: Journal,
        clock: Clock,
        health: Health,
        evaluator: Evaluator,
        initial: Progress,
        watchdog: Watchdog,
    ) -> None:
        """Start at the progress ``initial``."""
        self._run, self._checkpoints, self._journal = run, checkpoints, journal
        self._clock, self._health, self._watchdog = clock, health, watchdog
        self._evaluator = evaluator
        self._initial = initial
        self._sets = data.identities(run.first_stage.further_sets)

    def progress(self, step: int) -> Progress:
        """Return where the run is after ``step``, for a checkpoint or the summary."""
        return Progress(
            step=step,
            samples=self._run.plan.position(step),
            wall_s=self._clock.wall_s(),
            compile_s=self._initial.compile_s + self._run.compile_s,
            **self._clock.spent(),
            skips=self._health.skips,
            rollbacks=self._health.rollbacks,
            memory={
                "row": self._journal.memory(),
                "health": self._health.memory(),
                "evaluation": self._evaluator.columns,
                "sets": self._sets,
            },
        )

    def exceeds_best(self, top1: float) -> bool:
        """Return whether a state is to be kept for its validation accuracy, a fraction."""
        return self._checkpoints.exceeds_best(top1)

    def save(
        self,
        step: int,
        state: TrainState,
        *,
        evaluation_due: Metrics | None = None,
        validation_top1: float = -1.0,
        for_stop: bool = False,
    ) -> None:
        """Start to save the state after ``step``.

        Args:
          step: its number.
          state: after it.
          evaluation_due: metrics of the step, on the host, if its evaluation was interrupted; the
            next attempt repeats the evaluation and reports them.
          validation_top1: accuracy of this state, a fraction; -1 if it was not evaluated.
          for_stop: whether an uninterrupted run has no checkpoint here.
        """
        self._watchdog.check()
        progress = dataclasses.replace(
            self.progress(step), validation_top1=validation_top1, for_stop=int(for_stop)
        )
        if evaluation_due is not None:
            numbers = {key: float(getattr(evaluation_due, key)) for key in MEASURED}
            progress = dataclasses.replace(progress, evaluation_due=1, **numbers)
        since = time.perf_counter()
        with self._watchdog.section("checkpoint"):
            self._journal.flush()  # the log is never behind a checkpoint
            stored = self._run.first_stage.programs.steps.to_checkpoint(state)
            # The checkpoint said that its evaluation was due; now it is done.
            replace = bool(self._initial.evaluation_due) and step == self._initial.step
            self._checkpoints.save(stored, progress, self._run.plan, replace=replace)
        self._journal.event("checkpoint", step)
        self._clock.checkpoint_s += time.perf_counter() - since
        self._journal.times(step)

    def load(self, step: int, *, until: int) -> TrainState:
        """Return the state of the newest checkpoint of at most ``until`` steps, for a rollback.

        Args:
          step: the step that it becomes the state of; its stage gives the shardings.
          until: the last step before a failure.
        """
        run = self._run
        with self._watchdog.section("checkpoint"):
            found = self._checkpoints.newest(run.plan, run.checkpoint_shapes, until=until)
            stored = on_devices(found.state, run.checkpoint_shapes)
            state = run.first_stage.programs.steps.from_checkpoint(stored)
            return run.stage_at(step).placed(state)

    def wait(self) -> None:
        """Wait until process 0 has written the newest checkpoint."""
        since = time.perf_counter()
        with self._watchdog.section("checkpoint"):
            processes.first_process_does(self._checkpoints.wait)
        self._clock.checkpoint_s += time.perf_counter() - since
