"""Judge the steps of a run and the states to be saved, and notice a request to stop."""

from collections.abc import Sequence

from largebatch.errors import HealthError
from largebatch.fault_tolerance import Watchdog
from largebatch.fault_tolerance.health import Health, Verdict
from largebatch.parallel import processes
from largebatch.training.evaluation import Result
from largebatch.training.journal import Journal
from largebatch.training.run import Run
from largebatch.training.state import Metrics, TrainState


class Monitor:
    """Reports the verdicts of `Health` on one run attempt; all processes get the same ones."""

    def __init__(self, run: Run, health: Health, journal: Journal, watchdog: Watchdog) -> None:
        self.stop_reason = ""
        """Why the processes stop after the present step, once they have agreed to."""
        self._run, self._health, self._journal = run, health, journal
        self._watchdog = watchdog

    def judge(self, step: int, metrics: Metrics) -> Verdict:
        """Check loss, gradient norm and accuracy of a step that has been computed.

        Args:
          step: its number, from 1.
          metrics: on the host.

        Raises:
          HealthError: the run must stop.
        """
        self._watchdog.alive()
        if metrics.stop is not None and metrics.stop > 0:
            self.stop_reason = self._watchdog.requested or "another process was asked to stop"
        try:
            verdict = self._health.look(
                step,
                float(metrics.loss),
                float(metrics.gradient_norm),
                top1=float(metrics.top1),
                images=self._images(step, metrics),
            )
        except HealthError as error:
            self._journal.event("unhealthy", step, why=str(error))
            raise
        return self._reported(step, verdict)

    def judge_state(self, step: int, state: TrainState) -> Verdict:
        """Check that all numbers of the state after a step are finite; waits for the step.

        Raises:
          HealthError: the run must stop.
        """
        return self._reported(step, self._health.look_at_state(step, self.is_finite(step, state)))

    def is_finite(self, step: int, state: TrainState) -> bool:
        """Whether all numbers of the state after a step are finite, on all processes; waits."""
        finite = self._run.stage_at(step).programs.steps.finite(state)
        # With faulty memory, the copies of the processes may differ.
        return bool(processes.agreed_minimum(int(finite)))

    def note(self, step: int, result: Result, counts: Sequence[int]) -> None:
        """Note an evaluation of the state after a step.

        Args:
          step: number of the step.
          result: of the evaluation.
          counts: number of validation images of each class.
        """
        results = [result, *([result.ema] if result.ema else [])]
        self._health.look_at_evaluation(
            step,
            top1=max(each.top1 for each in results),
            loss=min(each.loss for each in results),
            counts=counts,
        )

    def _images(self, step: int, metrics: Metrics) -> int:
        """Return the number of images of a step without those that were left out."""
        stage = self._run.plan.stage_at(step)
        left_out = 0 if metrics.left_out is None else round(float(metrics.left_out))
        return stage.samples_per_step - left_out * stage.local_images

    def _reported(self, step: int, verdict: Verdict) -> Verdict:
        if verdict.text:
            self._run.console.warn(verdict.text)
        if verdict.action != "continue":
            self._journal.event(verdict.action, step)
        return verdict
