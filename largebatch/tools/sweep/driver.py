"""The loop of a sweep: begin trials, watch them, record what becomes of them, resume after a kill.

A trial that a killed sweep left running is started again with the same command, and train.py
resumes from its newest checkpoint. If its process still runs, the sweep waits for it first. So no
trial runs twice and none is lost.
"""

import contextlib
import dataclasses
import math
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from largebatch.checkpoint import lock
from largebatch.errors import UserError
from largebatch.fault_tolerance.exit_codes import MISTAKE, PREEMPTED
from largebatch.tools.sweep.executors import Executor, Handle, Job
from largebatch.tools.sweep.space import Choice
from largebatch.tools.sweep.study import Study
from largebatch.tools.sweep.trial import (
    OUTPUT,
    Objective,
    Outcome,
    Seen,
    Trial,
    last_words,
    look,
    outcome,
)

MOST_RESTARTS = 3
"""The most restarts in a row of a trial that makes no step."""


@dataclasses.dataclass
class _Attempt:
    """A job that runs a trial."""

    handle: Handle
    began: float
    step: int
    """Steps done before."""
    asked: Literal["", "prune", "stop"] = ""
    kill_at: float = math.inf
    reported: int = 0
    """Evaluations that the study knows."""


class Driver:
    """A sweep under way."""

    def __init__(
        self,
        study: Study,
        executor: Executor,
        directory: Path,
        command: Callable[[Choice, Path], tuple[str, ...]],
        *,
        planned: Sequence[Choice],
        total: int,
        objective: Objective,
        prune: bool,
        grace_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Find the trials of an earlier sweep; start nothing yet.

        Args:
          study: the trials so far.
          executor: where trials run.
          directory: of the trials' directories.
          command: of a trial, from its values and its directory.
          planned: the values of the first trials; the study suggests the others.
          total: number of trials.
          objective: what is optimised.
          prune: whether the study may end trials early.
          grace_s: seconds that a trial has to save after SIGTERM.
          clock: monotonic, in seconds.
        """
        self._study, self._executor, self._directory = study, executor, directory
        self._command, self._planned, self._total = command, planned, total
        self._objective, self._prune, self._grace_s = objective, prune, grace_s
        self._clock = clock
        self._trials = {trial.number: trial for trial in study.trials()}
        self._attempts: dict[int, _Attempt] = {}
        self._waiting: list[int] = []
        """Begun trials without a job."""
        self._elsewhere: list[int] = []
        """Begun trials that a job of an earlier sweep may still run."""
        self._restarts: dict[int, int] = {}
        for number in [trial.number for trial in self.trials if trial.state == "running"]:
            handle, seen = executor.attach(study.job(number)), look(self._workdir(number))
            if handle is not None:
                self._attempts[number] = _Attempt(handle, clock(), seen.step or 0)
            elif seen.summary:
                self._end(number, outcome(0, "", seen, objective, ""), seen)
            else:
                self._elsewhere.append(number)

    @property
    def trials(self) -> list[Trial]:
        """All trials that have been begun, in their order."""
        return [self._trials[number] for number in sorted(self._trials)]

    def run(
        self,
        watch: Callable[[Sequence[Trial]], None],
        stopping: Callable[[], bool],
        sleep: Callable[[float], None] = time.sleep,
    ) -> bool:
        """Run until all trials have ended, or the sweep is asked to stop.

        Args:
          watch: called with the trials after each poll.
          stopping: whether the sweep must stop.
          sleep: waits between two polls, in seconds.

        Returns:
          Whether all have ended; False if the sweep stopped, with every trial saved and ended.
        """
        while True:
            if stopping():
                for attempt in self._attempts.values():
                    self._ask(attempt, "stop")
            self.poll(start=not stopping())
            watch(self.trials)
            finished = not self._elsewhere and not self._left()
            if not self._attempts and (finished or stopping()):
                return finished
            sleep(self._executor.every_s)

    def poll(self, *, start: bool = True) -> None:
        """Record what has ended, end what is pruned, and start what there is room for."""
        for number in list(self._attempts):
            self._check(number)
        if start:
            self._start()

    def kill(self) -> None:
        """End all jobs at once."""
        for attempt in self._attempts.values():
            attempt.handle.kill()

    def _workdir(self, number: int) -> Path:
        return self._directory / f"{number:04d}"

    def _start(self) -> None:
        """Give the executor as many jobs as it takes; a trial that runs elsewhere counts as one."""
        free = max(0, self._executor.at_once - len(self._attempts))
        for number in self._elsewhere[:free]:
            if not in_use(self._workdir(number)):
                self._elsewhere.remove(number)
                self._waiting.append(number)
        jobs: list[Job] = []
        while len(jobs) < free - len(self._elsewhere) and self._left():
            number = self._waiting.pop(0) if self._waiting else self._begin()
            workdir = self._workdir(number)
            jobs.append(Job(number, self._command(self._trials[number].values, workdir), workdir))
        for job, handle in zip(jobs, self._executor.start(jobs) if jobs else [], strict=True):
            self._attempts[job.number] = _Attempt(
                handle, self._clock(), look(job.workdir).step or 0
            )
            if handle.token:
                self._study.set_job(job.number, handle.token)

    def _left(self) -> bool:
        return bool(self._waiting) or len(self._trials) < self._total

    def _begin(self) -> int:
        following = len(self._trials)
        known = following < len(self._planned)
        trial = self._study.begin(self._planned[following] if known else None)
        self._trials[trial.number] = trial
        return trial.number

    def _check(self, number: int) -> None:
        attempt = self._attempts[number]
        code = attempt.handle.poll()  # before looking, so that nothing is written after
        seen = look(self._workdir(number))
        seconds = self._clock() - attempt.began
        running = dataclasses.replace(self._trials[number], seconds=seconds)
        self._trials[number] = running.with_seen(seen)
        if code is not None:
            del self._attempts[number]
            self._ended(number, attempt, code, seen)
        elif self._clock() > attempt.kill_at:
            attempt.handle.kill()
            attempt.kill_at = math.inf
        elif self._prune and not attempt.asked and len(seen.evaluations) > attempt.reported:
            attempt.reported = len(seen.evaluations)
            if self._study.report(number, seen.values(self._objective)):
                self._ask(attempt, "prune")

    def _ask(self, attempt: _Attempt, why: Literal["prune", "stop"]) -> None:
        if not attempt.asked:
            attempt.asked, attempt.kill_at = why, self._clock() + self._grace_s
            attempt.handle.stop()

    def _ended(self, number: int, attempt: _Attempt, code: int, seen: Seen) -> None:
        workdir = self._workdir(number)
        if code == MISTAKE and in_use(workdir):
            self._elsewhere.append(number)
            self._study.set_job(number, "")  # our job, which has ended, did not run it
            return
        said = last_words(workdir / OUTPUT)
        result = outcome(code, attempt.asked, seen, self._objective, said)
        if result.state == "running" and attempt.asked != "stop":
            further = (seen.step or 0) > attempt.step
            self._restarts[number] = 1 if further else self._restarts.get(number, 0) + 1
            if self._restarts[number] > MOST_RESTARTS:
                often = f"ended {self._restarts[number]} times with code {PREEMPTED}"
                result = Outcome("failed", error=f"{often} without a step: {said}")
        if result.state == "running":
            self._waiting.append(number)
        else:
            self._end(number, result, seen)

    def _end(self, number: int, result: Outcome, seen: Seen) -> None:
        # Relative paths, so that the directory of the sweep can be moved.
        workdir = self._workdir(number)
        error = result.error.replace(str(workdir.resolve()), str(workdir))
        result = dataclasses.replace(result, error=error)
        trial = self._trials[number].with_seen(seen)
        if self._prune and result.state != "failed":
            self._study.report(number, seen.values(self._objective))
        self._study.tell(trial, result)
        self._trials[number] = dataclasses.replace(trial, **dataclasses.asdict(result))


def in_use(workdir: Path) -> bool:
    """Return whether a training runs in a directory; one on another host is watched for seconds."""
    try:
        with lock.hold(workdir, note=_ignore, lost=_ignore):
            return False
    except UserError:
        return True


def _ignore(message: str) -> None:
    """Drop a message of the lock."""


@contextlib.contextmanager
def signals(kill: Callable[[], None]) -> Iterator[list[str]]:
    """Handle SIGINT and SIGTERM while the body runs.

    Args:
      kill: called by the second signal and those after it.

    Yields:
      The names of the signals so far.
    """
    names: list[str] = []

    def handle(number: int, _: object) -> None:
        if names:
            kill()
        names.append(signal.Signals(number).name)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield names
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
