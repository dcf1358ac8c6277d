"""The evaluations of a run: compute, log and print them."""

import time
from collections.abc import Mapping, Sequence

import numpy as np

from largebatch.fault_tolerance import Watchdog
from largebatch.parallel import processes
from largebatch.tracking import Target
from largebatch.training.evaluation import Result, evaluate, is_far_above, with_final_statistics
from largebatch.training.journal import Journal
from largebatch.training.run import Run
from largebatch.training.state import TrainState
from largebatch.training.timing import Clock


class Evaluator:
    """Evaluates states of a run and reports the results."""

    def __init__(
        self,
        run: Run,
        journal: Journal,
        clock: Clock,
        target: Target,
        earlier: Mapping[str, float],
        watchdog: Watchdog,
    ) -> None:
        """Start with the `columns` of earlier attempts."""
        self.result: Result | None = None
        """The newest result of this attempt."""
        self.columns = dict(earlier)
        """Loss and accuracies of the newest evaluation of all attempts, by name."""
        self.counts: Sequence[int] = ()
        """Number of validation images of each class; empty before the first evaluation."""
        self._run, self._journal, self._clock = run, journal, clock
        self._target, self._watchdog = target, watchdog
        self._seconds = 0.0
        self._has_warned = False

    def compute(self, step: int, state: TrainState) -> TrainState:
        """Evaluate the state after ``step`` without a report.

        Returns:
          The state with the BatchNorm statistics of the evaluation.

        Raises:
          Interrupted: the run must stop.
        """
        stage, position = self._run.stage_at(step), self._run.plan.position(step)
        state = with_final_statistics(stage, stage.placed(state), position, self._watchdog)
        counts = None if self.counts else np.zeros(stage.plan.facts.classes, np.int32)
        self.result = evaluate(stage, state, self._watchdog, counts)
        if counts is not None:
            self.counts = processes.gather(counts).sum(axis=0).tolist()
        self.columns = self.result.columns | self.result.set_columns
        return state

    def evaluate(self, step: int, state: TrainState) -> TrainState:
        """Evaluate as `compute` does, with events in the log and on the clock."""
        self._journal.event("eval_start", step)
        since = time.perf_counter()
        state = self.compute(step, state)
        self._journal.event("eval_stop", step, top1=self.result.top1)
        self._seconds = time.perf_counter() - since  # including the statistics
        self._clock.evaluation_s += self._seconds
        self._journal.times(step)
        return state

    def report(self, step: int) -> dict[str, float]:
        """Print the newest result; return its columns of the log."""
        result = self.result
        self._run.console.evaluation(
            step,
            epoch=self._journal.epoch(step),
            loss=result.loss,
            top1=result.top1,
            top5=result.top5 if self._run.plan.facts.classes > 5 else None,
            ema_top1=result.ema and result.ema.top1,
            sets={name: other.top1 for name, other in result.sets.items()},
            seconds=self._seconds,
            target=self._target.look(step, self._clock.wall_s(), result.top1),
        )
        own = {f"validation/{name}": value for name, value in result.columns.items()}
        return own | result.set_columns

    def warn_of_statistics(self, loss: float) -> None:
        """Warn once if running statistics may explain a validation loss far above ``loss``.

        Args:
          loss: mean training loss of the row.
        """
        statistics = self._run.plan.norm_statistics
        if self._has_warned or statistics == "precise" or not is_far_above(self.result.loss, loss):
            return
        self._has_warned = True
        self._run.console.warn(
            f"the validation loss of {self.result.loss:.4g} is far above the training loss of "
            f"{loss:.4g}: the network overfits, or the BatchNorm statistics of norm.statistics="
            f"{statistics} lag behind its weights; --eval_only --config.norm.statistics=precise "
            "evaluates without that lag"
        )
