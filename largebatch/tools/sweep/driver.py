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
from largebatch.fault_tolerance.exit_codes import MISTAKE, PREEMPTED
from largebatch.tools.sweep import directory
from largebatch.tools.sweep.executors import Executor, Handle, Job
from largebatch.tools.sweep.space import Choice
from largebatch.tools.sweep.study import Study
from largebatch.tools.sweep.trial import (
    OUTPUT,
    Outcome,
    Trial,
    TrialFiles,
    last_words,
    outcome,
    read_files,
)

MOST_RESTARTS = 3
"""The most restarts in a row of a trial that makes no step."""


@dataclasses.dataclass
class _Begun:
    """A trial between its begin and its end."""

    handle: Handle | None = None  # its job; None while it waits for one
    since: float = 0.0  # start of the job, monotonic seconds
    step: int = 0  # steps done before the job
    asked: Literal["", "prune", "stop"] = ""
    kill_at: float = math.inf
    reported: int = 0  # evaluations that the study knows
    restarts: int = 0  # in a row without a step


class Driver:
    """A sweep under way."""

    def __init__(
        self,
        study: Study,
        executor: Executor,
        sweep: Path,
        command: Callable[[Choice, Path], tuple[str, ...]],
        planned: Sequence[Choice],
        *,
        total: int,
        grace_s: float,
    ) -> None:
        """Find the trials of an earlier sweep; start nothing yet.

        Args:
          study: the trials so far.
          executor: where trials run.
          sweep: directory of the sweep.
          command: of a trial, from its values and its directory.
          planned: the values of the first trials; the study suggests the others.
          total: number of trials.
          grace_s: seconds that a trial has to save after SIGTERM.
        """
        self._study, self._executor, self._sweep = study, executor, sweep
        self._command, self._planned, self._total = command, planned, total
        self._grace_s = grace_s
        self._trials = {trial.number: trial for trial in study.trials()}
        self._begun: dict[int, _Begun] = {}
        for number in [trial.number for trial in self.trials if trial.state == "running"]:
            handle, seen = executor.attach(study.job(number)), read_files(self._workdir(number))
            if handle is None and seen.summary:
                self._end(number, outcome(0, "", seen, study.objective, ""), seen)
            else:
                self._begun[number] = _Begun(handle, time.monotonic(), seen.step or 0)

    @property
    def trials(self) -> list[Trial]:
        """All trials that have been begun, in their order."""
        return [self._trials[number] for number in sorted(self._trials)]

    def run(self, watch: Callable[[Sequence[Trial]], None], stopping: Callable[[], bool]) -> bool:
        """Run until all trials have ended, or the sweep is asked to stop.

        Args:
          watch: called with the trials after each poll.
          stopping: whether the sweep must stop.

        Returns:
          Whether all have ended; False if the sweep stopped, with every trial saved and ended.
        """
        while True:
            stop = stopping()
            if stop:
                for begun in self._begun.values():
                    self._ask(begun, "stop")
            self.poll(start=not stop)
            watch(self.trials)
            finished = not self._begun and len(self._trials) >= self._total
            if finished or (stop and not any(begun.handle for begun in self._begun.values())):
                return finished
            time.sleep(self._executor.every_s)

    def poll(self, *, start: bool = True) -> None:
        """Record what has ended, end what is pruned, and start what there is room for."""
        for number, begun in list(self._begun.items()):
            if begun.handle:
                self._check(number, begun, begun.handle)
        if start:
            self._start()

    def kill(self) -> None:
        """End all jobs at once."""
        for begun in self._begun.values():
            if begun.handle:
                begun.handle.kill()

    def _workdir(self, number: int) -> Path:
        return directory.trial(self._sweep, number)

    def _start(self) -> None:
        """Give the executor as many jobs as it takes; a trial that runs elsewhere counts as one."""
        free = self._executor.at_once - sum(bool(each.handle) for each in self._begun.values())
        chosen: list[int] = []
        for number in [number for number, each in self._begun.items() if not each.handle]:
            if len(chosen) < free and lock.holder(self._workdir(number)):
                free -= 1
            elif len(chosen) < free:
                chosen.append(number)
        while len(chosen) < free and len(self._trials) < self._total:
            chosen.append(self._begin())
        jobs = [
            Job(n, self._command(self._trials[n].values, self._workdir(n)), self._workdir(n))
            for n in chosen
        ]
        for job, handle in zip(jobs, self._executor.start(jobs) if jobs else [], strict=True):
            restarts, step = self._begun[job.number].restarts, read_files(job.workdir).step or 0
            self._begun[job.number] = _Begun(handle, time.monotonic(), step, restarts=restarts)
            if handle.token:
                self._study.set_job(job.number, handle.token)

    def _begin(self) -> int:
        following = len(self._trials)
        known = following < len(self._planned)
        trial = self._study.begin(self._planned[following] if known else None)
        self._trials[trial.number], self._begun[trial.number] = trial, _Begun()
        return trial.number

    def _check(self, number: int, begun: _Begun, handle: Handle) -> None:
        code, now = handle.poll(), time.monotonic()  # before looking: nothing is written after
        seen = read_files(self._workdir(number))
        running = dataclasses.replace(self._trials[number], seconds=now - begun.since)
        self._trials[number] = running.with_seen(seen)
        if code is not None:
            self._ended(number, begun, code, seen)
        elif now > begun.kill_at:
            handle.kill()
            begun.kill_at = math.inf
        elif self._study.prune and not begun.asked and len(seen.evaluations) > begun.reported:
            begun.reported = len(seen.evaluations)
            if self._study.report(number, seen.values(self._study.objective)):
                self._ask(begun, "prune")

    def _ask(self, begun: _Begun, why: Literal["prune", "stop"]) -> None:
        if begun.handle and not begun.asked:
            begun.asked, begun.kill_at = why, time.monotonic() + self._grace_s
            begun.handle.stop()

    def _ended(self, number: int, begun: _Begun, code: int, seen: TrialFiles) -> None:
        workdir = self._workdir(number)
        if code == MISTAKE and lock.holder(workdir):
            self._begun[number] = _Begun(restarts=begun.restarts)
            self._study.set_job(number, "")  # our job, which has ended, did not run it
            return
        last_line = last_words(workdir / OUTPUT)
        result, restarts = outcome(code, begun.asked, seen, self._study.objective, last_line), 0
        if result.state == "running" and begun.asked != "stop":
            restarts = 1 if (seen.step or 0) > begun.step else begun.restarts + 1
            if restarts > MOST_RESTARTS:
                often = f"ended {restarts} times with code {PREEMPTED} without a step"
                result = Outcome("failed", error=f"{often}: {last_line}")
        if result.state == "running":
            self._begun[number] = _Begun(restarts=restarts)
        else:
            del self._begun[number]
            self._end(number, result, seen)

    def _end(self, number: int, result: Outcome, seen: TrialFiles) -> None:
        # Relative paths, so that the directory of the sweep can be moved.
        workdir = self._workdir(number)
        error = result.error.replace(str(workdir.resolve()), str(workdir))
        result = dataclasses.replace(result, error=error)
        trial = self._trials[number].with_seen(seen)
        if self._study.prune and result.state != "failed":
            self._study.report(number, seen.values(self._study.objective))
        self._study.tell(trial, result)
        self._trials[number] = dataclasses.replace(trial, **dataclasses.asdict(result))


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
