"""The loop of a sweep: begin trials, watch them, record what becomes of them, go on after a kill.

A trial that a killed sweep left running is started again with the same command, and train.py goes
on from its newest checkpoint. One that still runs on its own is waited for; one that has ended
meanwhile is recorded as it is. So none runs twice and none is lost.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from largebatch.fault_tolerance.exit_codes import MISTAKE, PREEMPTED
from largebatch.tools.sweep.executors import Executor, Handle, Job
from largebatch.tools.sweep.locks import Holding
from largebatch.tools.sweep.outcome import (
    MOST_RESTARTS,
    Asked,
    Objective,
    Outcome,
    Trial,
    intermediate,
    outcome,
)
from largebatch.tools.sweep.reading import OUTPUT, Seen, Stamp, last_words, look, stamp
from largebatch.tools.sweep.space import Choice
from largebatch.tools.sweep.study import Study

_ASKED, _JOB = "asked", "job"


@dataclasses.dataclass
class _Turn:
    """A trial in the hands of the executor."""

    handle: Handle
    began: float
    step: int
    """Steps done before."""
    asked: Asked = ""
    asked_at: float = float("inf")
    reported: int = 0
    """Evaluations that the study knows of."""
    killed: bool = False
    stamp: Stamp = ()
    seen: Seen = dataclasses.field(default_factory=Seen)
    """As of ``stamp``."""


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
        """Starts nothing yet.

        Args:
          study: what is known of earlier turns.
          executor: where trials run.
          directory: of the trials' directories.
          command: of a trial, from its values and its directory.
          planned: the first trials' values; those beyond are suggested by the study.
          total: trials.
          objective: what is sought.
          prune: whether to ask the study if a trial is worth going on with.
          grace_s: seconds that a trial has to save, asked to end.
          clock: monotonic, in seconds.
        """
        self._study, self._executor, self._directory = study, executor, directory
        self._command, self._planned, self._total = command, planned, total
        self._objective, self._prune, self._grace_s = objective, prune, grace_s
        self._clock, self._held = clock, Holding(clock).held
        rows = [trial for trial in study.trials() if trial.state != "waiting"]
        self._trials = {trial.number: trial for trial in rows}
        self._turns: dict[int, _Turn] = {}
        self._waiting: list[int] = []
        """Begun trials that are to be started, again or for the first time."""
        self._orphans: list[int] = []
        """Begun trials that nobody here has started and that still run."""
        self._restarts: dict[int, int] = {}
        for trial in rows:
            if trial.state == "running":
                self._recover(trial.number)

    @property
    def trials(self) -> list[Trial]:
        """All that have been begun, as they stand."""
        return [self._trials[number] for number in sorted(self._trials)]

    def run(
        self,
        watch: Callable[[Sequence[Trial]], None],
        stopping: Callable[[], bool],
        sleep: Callable[[float], None] = time.sleep,
    ) -> bool:
        """Until all trials have ended, or the sweep is asked to stop.

        Args:
          watch: called with the trials again and again.
          stopping: whether it is to stop.
          sleep: waits between two looks, in seconds.

        Returns:
          Whether all have ended; False if it was stopped, with every trial saved and ended.
        """
        while not stopping():
            self.tick()
            watch(self.trials)
            if not self._turns and not self._orphans and not self._left():
                return True
            sleep(self._executor.every_s)
        for turn in self._turns.values():
            self._ask(turn, "stop")
        while self._turns:
            self._collect()
            watch(self.trials)
            if self._turns:
                sleep(self._executor.every_s)
        return False

    def tick(self) -> None:
        """Record what has ended, ask those to end that are not worth it, start others."""
        for number in list(self._orphans):
            if not self._held(self._workdir(number)):
                self._orphans.remove(number)
                self._recover(number)
        self._collect()
        self._fill()

    def kill(self) -> None:
        """End all that runs at once."""
        for turn in self._turns.values():
            turn.handle.kill()

    def _left(self) -> bool:
        return bool(self._waiting) or len(self._trials) < self._total

    def _workdir(self, number: int) -> Path:
        return self._directory / f"{number:04d}"

    def _recover(self, number: int) -> None:
        """Find out what has become of a trial that was begun in another process's time."""
        workdir, asked = self._workdir(number), self._study.noted(number, _ASKED)
        handle = self._executor.attach(self._study.noted(number, _JOB))
        if handle is not None:
            step = look(workdir).step or 0
            self._turns[number] = _Turn(handle, self._clock(), step)
            if asked:
                self._ask(self._turns[number], "prune")
        elif self._held(workdir):
            self._orphans.append(number)
        elif (seen := look(workdir)).done:
            self._end(number, outcome(0, "", seen, self._objective, ""), seen)
        elif asked:
            self._end(number, Outcome("pruned"), seen)
        else:
            self._waiting.append(number)

    def _fill(self) -> None:
        """Give the executor as many jobs as it takes."""
        jobs = []
        room = self._executor.at_once - len(self._turns) - len(self._orphans)
        while len(jobs) < room and self._left():
            number = self._waiting.pop(0) if self._waiting else self._begin()
            workdir = self._workdir(number)
            command = self._command(self._trials[number].values, workdir)
            jobs.append(Job(number, command, workdir))
        if not jobs:
            return
        for job, handle in zip(jobs, self._executor.start(jobs), strict=True):
            step = look(job.workdir).step or 0
            self._turns[job.number] = _Turn(handle, self._clock(), step)
            if handle.token:
                self._study.note(job.number, _JOB, handle.token)

    def _begin(self) -> int:
        following = len(self._trials)
        if following < len(self._planned):
            trial = self._study.begin(self._planned[following])
        else:
            trial = self._study.suggest()
        self._trials[trial.number] = trial
        return trial.number

    def _collect(self) -> None:
        for number, turn in list(self._turns.items()):
            code = turn.handle.poll()  # before looking, so that nothing is written after
            seen = self._look(self._workdir(number), turn)
            running = dataclasses.replace(self._trials[number], seconds=self._clock() - turn.began)
            self._trials[number] = running.with_seen(seen)
            if code is not None:
                del self._turns[number]
                self._ended(number, turn, code, seen)
            elif self._clock() - turn.asked_at > self._grace_s and not turn.killed:
                turn.handle.kill()
                turn.killed = True
            elif self._prune and not turn.asked and len(seen.evaluations) > turn.reported:
                turn.reported = len(seen.evaluations)
                if self._study.report(number, intermediate(seen, self._objective)):
                    self._study.note(number, _ASKED, "prune")
                    self._ask(turn, "prune")

    def _look(self, workdir: Path, turn: _Turn) -> Seen:
        """What the directory says; files that have not changed are not read again."""
        now = stamp(workdir)  # before reading: what is written meanwhile is read at the next look
        if now != turn.stamp:
            turn.stamp, turn.seen = now, look(workdir)
        return turn.seen

    def _ask(self, turn: _Turn, why: Asked) -> None:
        if turn.asked != "prune":  # a pruned trial stays one
            turn.asked = why
        if turn.asked_at == float("inf"):
            turn.asked_at = self._clock()
            turn.handle.stop()

    def _ended(self, number: int, turn: _Turn, code: int, seen: Seen) -> None:
        workdir = self._workdir(number)
        if code == MISTAKE and self._held(workdir):  # one that an earlier sweep started was first
            self._orphans.append(number)
            self._study.note(number, _JOB, "")  # what ours came to says nothing of that one
            return
        said = last_words(workdir / OUTPUT)
        result = outcome(code, turn.asked, seen, self._objective, said)
        if result.state != "running":
            self._end(number, result, seen)
            return
        if turn.asked != "stop":
            further = (seen.step or 0) > turn.step
            self._restarts[number] = 1 if further else self._restarts.get(number, 0) + 1
            if self._restarts[number] > MOST_RESTARTS:
                error = f"ended {self._restarts[number]} times with code {PREEMPTED} and no step"
                self._end(number, Outcome("failed", error=f"{error}: {said}"), seen)
                return
        self._waiting.append(number)

    def _end(self, number: int, result: Outcome, seen: Seen) -> None:
        # Paths as short as the sweep's own, so that its tables can be moved and shown.
        workdir = self._workdir(number)
        error = result.error.replace(str(workdir.resolve()), str(workdir))
        result = dataclasses.replace(result, error=error)
        trial = self._trials[number].with_seen(seen)
        if self._prune and result.state != "failed":
            self._study.report(number, intermediate(seen, self._objective))
        self._study.tell(trial, result)
        self._trials[number] = dataclasses.replace(trial, **dataclasses.asdict(result))
