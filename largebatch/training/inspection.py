"""Checks at intervals: the times of each host, and whether a step can be reproduced."""

import contextlib
from collections.abc import Iterator

import jax

from largebatch.optim import Rates
from largebatch.parallel.transfer import OnDevices
from largebatch.training.dispatch import run_step
from largebatch.training.replay import Replay, Result
from largebatch.training.run import Run
from largebatch.training.stage import Stage
from largebatch.training.state import TrainState
from largebatch.training.stragglers import HostTimes, Suspicion, gathered, host_names


class Inspection:
    """Runs the checks of one run attempt; warns and logs what they find."""

    def __init__(self, run: Run) -> None:
        """Start where the run is; each process must call this."""
        self._run = run
        self._names = host_names()
        self._since = (run.clock.now(), run.clock.wait_s, run.step)
        self._measured: HostTimes | None = None
        self._suspicion = Suspicion()
        self._reported: set[int] = set()
        """The processes that a warning has called slow."""
        self._replays: dict[int, Replay] = {}
        """By the first step of a stage."""

    def begin(self, stage: Stage, step: int, state: TrainState) -> TrainState | None:
        """Prepare the checks of a step; return a copy of the state if it is computed twice.

        ``measured`` is set if the time to the all-reduce is measured.
        """
        plan = self._run.plan
        several = plan.facts.processes > 1
        due = several and plan.is_due(step, stage.plan.hosts_every)
        self._measured = HostTimes() if due else None
        if not plan.is_due(step, stage.plan.replay_every):
            return None
        return self._replay(stage).copied(state)

    @property
    def measured(self) -> HostTimes | None:
        """Receives the compute time of this step; None if it is not measured."""
        return self._measured

    def end(
        self, stage: Stage, step: int, copy: TrainState | None, result: Result, rates: Rates
    ) -> None:
        """Check a step that has been dispatched, before its state is donated.

        Args:
          stage: of the step.
          step: its number.
          copy: what ``begin`` returned.
          result: state and metrics after the step.
          rates: of the step.
        """
        if copy is not None:
            self._compare(stage, step, copy, result, rates)
        if self._measured is not None:
            self._exchange(step)

    def _compare(
        self, stage: Stage, step: int, copy: TrainState, result: Result, rates: Rates
    ) -> None:
        plan = self._run.plan
        # The copy is ready at once: without this, microbatches of both runs would be in flight.
        jax.block_until_ready(result)
        batches = stage.train_microbatches(plan.position(step - 1), plan.position(step))
        with contextlib.closing(batches):
            again = run_step(stage.programs, copy, self._reporting_progress(batches), rates)
        mismatch = self._replay(stage).compared(result, again)
        self._run.log.event("replay", step, **(mismatch.row() if mismatch else {}))
        if mismatch:
            self._run.console.warn(f"silent data corruption at step {step}: {mismatch.text}")

    def _reporting_progress(self, batches: Iterator[OnDevices]) -> Iterator[OnDevices]:
        for batch in batches:
            self._run.watchdog.alive()
            yield batch

    def _exchange(self, step: int) -> None:
        now, waited, then = self._run.clock.now(), self._run.clock.wait_s, self._since
        self._measured.steps = step - then[2]
        self._measured.step_s, self._measured.wait_s = now - then[0], waited - then[1]
        self._since = (now, waited, step)
        report = gathered(self._measured, self._names, self._run.plan.config.health.slow_factor)
        slow = self._suspicion.confirms(report)
        self._run.log.event("hosts", step, **report.row(), slow=slow)
        if slow and report.slowest.process not in self._reported:
            self._reported.add(report.slowest.process)
            self._run.console.warn(report.text)

    def _replay(self, stage: Stage) -> Replay:
        key = stage.plan.first_step
        if key not in self._replays:
            self._replays[key] = Replay(stage.programs.steps, self._names)
        return self._replays[key]
