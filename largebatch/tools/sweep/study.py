"""A sweep as a study of Optuna, in a journal, and the process that runs its trials.

Several processes may work on one journal, also on several hosts. A trial that is interrupted,
however its process ends, stays *running* in the journal. Each process locks the output of the
trials that it runs; a running trial whose output nobody has locked is started again with the same
command, and train.py resumes from its newest checkpoint. Nothing outside this module uses Optuna.
"""

import contextlib
import dataclasses
import fcntl
import math
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, NamedTuple

from largebatch.checkpoint import lock
from largebatch.errors import UserError, one_line
from largebatch.fault_tolerance.exit_codes import MISTAKE, PREEMPTED
from largebatch.tools.sweep.results import line, ranked, trial_directory, write_results
from largebatch.tools.sweep.space import Axis, Choice
from largebatch.tools.sweep.trial import (
    OUTPUT,
    Asked,
    Objective,
    Trial,
    after,
    is_accuracy,
    last_words,
    read_files,
)

FILE = "study.log"
STARTUP = 8
"""Trials of ``tpe`` that are spread evenly, and that end before any trial is pruned."""
MOST_RESTARTS = 3
"""The most restarts in a row of a trial that makes no step."""
_UNPRUNED = 1
"""Evaluations without pruning: the first one may be within the warm-up."""
_POLL_S = 0.5
_CHILD = Path(__file__).with_name("child.py")


class _NotRun(BaseException):
    """A trial stays in the journal as it is. Optuna records an `Exception` as a failure."""


class _Failed(Exception):
    """A trial has failed, which its row describes."""


def optuna() -> ModuleType:
    """Return the library, without its messages.

    Raises:
      UserError: it is not installed.
    """
    try:
        import optuna as found
    except ImportError as error:
        raise UserError("a sweep needs Optuna; run: pip install -e '.[sweep]'") from error
    found.logging.set_verbosity(found.logging.CRITICAL)
    # Of features that may change, and of values that are not finite.
    warnings.filterwarnings("ignore", module="optuna")
    warnings.filterwarnings("ignore", category=found.exceptions.ExperimentalWarning)
    return found


class Share(NamedTuple):
    """The part of this machine that one of several trials gets; empty: all of it."""

    cores: str = ""  # numbers with commas
    gpus: str = ""  # value of CUDA_VISIBLE_DEVICES


@contextlib.contextmanager
def exclusive(workdir: Path) -> Iterator[None]:
    """Let one process of a sweep, and one thread of it, at a time run the body, which is short."""
    with (workdir / FILE).open("ab") as stream:
        with contextlib.suppress(OSError):  # a file system without locks, which train.py reports
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _locked(path: Path) -> BinaryIO | None:
    """Open a file, and lock it until it is closed; None if it is locked already."""
    stream = path.open("ab")
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        stream.close()
        return None
    except OSError:  # no locks
        pass
    return stream


class Study:
    """Trials of a sweep, kept on disk, of which this process runs some."""

    def __init__(
        self,
        workdir: Path,
        axes: Sequence[Axis],
        objective: Objective,
        *,
        seed: int = 0,
        prune: bool = False,
    ) -> None:
        """Open the study, or create it.

        Args:
          workdir: directory of the sweep.
          axes: what is swept.
          objective: what is optimised.
          seed: of the search.
          prune: whether trials may be ended early.

        Raises:
          UserError: Optuna is absent, or the file is not one of its journals.
        """
        self.objective, self._workdir = objective, workdir
        self._optuna, self._axes, path = optuna(), tuple(axes), workdir / FILE
        self._states = self._optuna.trial.TrialState
        journal, pruners = self._optuna.storages.journal, self._optuna.pruners
        pruner = pruners.MedianPruner(STARTUP, _UNPRUNED) if prune else pruners.NopPruner()
        try:
            of_file = journal.JournalFileOpenLock(str(path))
            backend = journal.JournalFileBackend(str(path), of_file)
            _drop_partial_line(path, of_file)
            self._storage = self._optuna.storages.JournalStorage(backend)
            self._study = self._optuna.create_study(
                study_name="sweep",
                storage=self._storage,
                sampler=_sampler(self._optuna, seed),
                pruner=pruner,
                direction="maximize" if is_accuracy(objective) else "minimize",
                load_if_exists=True,
            )
        except Exception as error:
            raise UserError(
                f"{path} cannot be opened ({one_line(error)}); move it away, or use another "
                "--workdir"
            ) from error
        self._held: dict[int, BinaryIO] = {}
        self._stopping, self._killing = threading.Event(), threading.Event()

    def trials(self) -> list[Trial]:
        """Return all trials, in their order."""
        found = []
        for number, trial in sorted(self._newest().items()):
            row = Trial(number, trial.user_attrs["values"])
            if trial.state == self._states.RUNNING:
                row = dataclasses.replace(row, state="running")
            elif trial.state.is_finished():
                failed = {"state": "failed", "error": "the sweep could not begin it"}
                row = dataclasses.replace(row, **trial.user_attrs.get("row", failed))
            found.append(row)
        return found

    def _newest(self) -> dict[int, Any]:
        """Return Optuna's trials by the number of the trial; the newest, if it was run again."""
        every = self._study.get_trials(deepcopy=False)
        # Those without a number were asked for when none was left.
        return {t.user_attrs["number"]: t for t in every if "number" in t.user_attrs}

    def plan(self, planned: Sequence[Choice], total: int) -> None:
        """Add the trials that are not in the study yet.

        Args:
          planned: the values of the first trials; the TPE chooses those of the others.
          total: number of trials.
        """
        for number in range(len(self._newest()), total):
            self._enqueue(number, planned[number] if number < len(planned) else {})

    def retry_failed(self) -> int:
        """Add failed trials once more, to continue in their directories; return their number."""
        found = [trial for trial in self.trials() if trial.state == "failed"]
        for trial in found:
            self._enqueue(trial.number, trial.values)
        return len(found)

    def _enqueue(self, number: int, choice: Choice) -> None:
        known = {"number": number, "values": choice}
        self._study.enqueue_trial(self._params(choice), user_attrs=known)

    def run(
        self,
        command: Callable[[Choice, Path], Sequence[str]],
        shares: Sequence[Share],
        grace_s: float,
    ) -> str:
        """Run trials until none waits, or a signal comes.

        Args:
          command: of a trial, from its values and its directory.
          shares: the part of this machine for each trial at a time.
          grace_s: seconds that a trial has to save after SIGTERM.

        Returns:
          The name of the signal; '' without one.
        """
        free: queue.SimpleQueue[Share] = queue.SimpleQueue()
        for share in shares:
            free.put(share)

        def objective(trial: Any) -> float:
            row = self._begin(trial)
            share = free.get()
            try:
                row = self._train(row, trial, command, share, grace_s)
            except Exception as error:
                traceback.print_exc()
                row = dataclasses.replace(row, state="failed", error=one_line(error))
            finally:
                free.put(share)
            trial.set_user_attr("row", dataclasses.asdict(row))
            if row.state == "pruned":
                raise self._optuna.TrialPruned
            if row.state == "failed":
                raise _Failed
            return row.value

        with self._signals() as signals:
            while not signals and (waiting := self._release()):
                with contextlib.suppress(_NotRun):
                    self._study.optimize(
                        objective,
                        n_trials=waiting,
                        n_jobs=min(len(shares), waiting),
                        catch=(_Failed,),
                        callbacks=[self._end],
                    )
                while self._held:
                    self._held.popitem()[1].close()
            self._keep()
        return signals[-1] if signals else ""

    @contextlib.contextmanager
    def _signals(self) -> Iterator[list[str]]:
        """Stop trials by SIGINT and SIGTERM while the body runs; the second signal kills them.

        Yields:
          The names of the signals so far.
        """
        names: list[str] = []

        def handle(number: int, _: object) -> None:
            (self._killing if names else self._stopping).set()
            names.append(signal.Signals(number).name)

        handled = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, handle) for number in handled}
        try:
            yield names
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _output(self, number: int) -> Path:
        return trial_directory(self._workdir, number) / OUTPUT

    def _release(self) -> int:
        """Make the running trials that no process holds wait; return how many trials wait."""
        with exclusive(self._workdir):
            for number, trial in self._newest().items():
                if trial.state == self._states.RUNNING and not self._is_held(number):
                    self._storage.set_trial_state_values(trial._trial_id, self._states.WAITING)
            return sum(trial.state == self._states.WAITING for trial in self._newest().values())

    def _is_held(self, number: int) -> bool:
        """Return whether a process of the sweep runs a trial."""
        if not self._output(number).exists():
            return False
        stream = _locked(self._output(number))
        if stream:
            stream.close()
        return stream is None

    def _begin(self, trial: Any) -> Trial:
        """Hold a trial, and choose its values; return its row.

        Raises:
          _NotRun: the sweep must stop, or another process has the trial.
        """
        with exclusive(self._workdir):
            # None was left, or another process has released this one before it was held here.
            number = trial.user_attrs.get("number")
            state = self._storage.get_trial(trial._trial_id).state
            if number is None or state != self._states.RUNNING or self._stopping.is_set():
                raise _NotRun
            self._output(number).parent.mkdir(parents=True, exist_ok=True)
            stream = _locked(self._output(number))
            if stream is None:
                raise _NotRun
            self._held[number] = stream
        values = self._suggest(trial)
        trial.set_user_attr("values", values)
        row = Trial(number, values, "running")
        self._keep(row)
        return row

    def _end(self, _: Any, trial: Any) -> None:
        """Report a trial that Optuna has recorded, and give it up."""
        row = Trial(**trial.user_attrs["row"])
        self._keep(row)
        self._held.pop(row.number).close()

    def _keep(self, *changed: Trial) -> None:
        """Print what has changed, and write it, so that the file is current after a kill."""
        for trial in changed:
            print(line(trial, self.objective), flush=True)
        with exclusive(self._workdir):
            keys = [key for axis in self._axes for key in axis.keys]
            write_results(self._workdir, ranked(self.trials(), self.objective), keys)

    def _train(
        self,
        trial: Trial,
        reporter: Any,
        command: Callable[[Choice, Path], Sequence[str]],
        share: Share,
        grace_s: float,
    ) -> Trial:
        """Train a trial to its end, in as many attempts as it needs; return its row.

        Raises:
          _NotRun: the sweep must stop; the trial has saved and ended.
        """
        workdir = trial_directory(self._workdir, trial.number)
        since, restarts, step = time.monotonic(), 0, 0
        while True:
            while lock.holder(workdir):  # a process of a killed sweep, which saves
                if self._stopping.wait(_POLL_S):
                    raise _NotRun
            seen, code, asked = read_files(workdir), 0, ""
            if not seen.summary:  # else a killed sweep has not recorded the end
                step = seen.step or 0
                process = start(command(trial.values, workdir), workdir / OUTPUT, share)
                code, asked = self._watch(process, workdir, reporter, grace_s)
                seen = read_files(workdir)
            if code == MISTAKE and lock.holder(workdir):
                continue
            row = dataclasses.replace(trial, seconds=time.monotonic() - since)
            row = after(row, code, asked, seen, self.objective, last_words(workdir / OUTPUT))
            if row.state == "running" and self._stopping.is_set():
                raise _NotRun
            restarts = 1 if (seen.step or 0) > step else restarts + 1
            if row.state == "running" and restarts > MOST_RESTARTS:
                often = f"ended {restarts} times with code {PREEMPTED} without a step"
                row = dataclasses.replace(row, state="failed", error=f"{often}: {row.error}")
            if row.state != "running":
                self._is_worse(reporter, workdir)
                # Relative paths, so that the directory of the sweep can be moved.
                error = row.error.replace(str(workdir.resolve()), str(workdir))
                return dataclasses.replace(row, error=error)

    def _watch(
        self, process: subprocess.Popen, workdir: Path, reporter: Any, grace_s: float
    ) -> tuple[int, Asked]:
        """Wait for a process; return its exit code, and why it was asked to end, if it was."""
        asked: Asked = ""
        kill_at, rows = math.inf, 0
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(_POLL_S), asked
            if self._stopping.is_set():
                why = "stop"
            else:
                before, rows = rows, _size(workdir / "metrics.jsonl")
                why = "prune" if rows != before and self._is_worse(reporter, workdir) else ""
            if why and not asked:
                asked, kill_at = why, time.monotonic() + grace_s
                process.terminate()
            if self._killing.is_set() or time.monotonic() > kill_at:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

    def _is_worse(self, reporter: Any, workdir: Path) -> bool:
        """Record the evaluations of a trial so far; return whether to prune it."""
        values = read_files(workdir).values(self.objective)
        known = self._storage.get_trial(reporter._trial_id).intermediate_values
        for ordinal in range(len(known), len(values)):
            reporter.report(values[ordinal], ordinal)
        return bool(values) and reporter.should_prune()

    def importance(self) -> dict[str, float]:
        """Return the share of the objective's variance that each axis explains, the largest first.

        By fANOVA (Hutter et al. 2014); empty for one axis, fewer than four trials with a finite
        value, or equal values.
        """
        values = [trial.value for trial in self.trials() if trial.value is not None]
        finite = [value for value in values if math.isfinite(value)]
        if len(self._axes) < 2 or len(finite) < 4 or len(set(finite)) < 2:
            return {}
        evaluator = self._optuna.importance.FanovaImportanceEvaluator(seed=0)
        return self._optuna.importance.get_param_importances(self._study, evaluator=evaluator)

    def _suggest(self, trial: Any) -> Choice:
        choice: Choice = {}
        for axis in self._axes:
            found = axis.range
            if found is None:
                labels = [_label(point) for point in axis.points]
                label = trial.suggest_categorical(axis.name, labels)
                choice |= axis.choice(axis.points[labels.index(label)])
            else:
                suggest = trial.suggest_int if found.whole else trial.suggest_float
                low, high = (int(b) if found.whole else b for b in (found.low, found.high))
                number = suggest(axis.name, low, high, log=found.shape == "log")
                choice[axis.name] = found.text(number)
        return choice

    def _params(self, choice: Choice) -> dict[str, Any]:
        params: dict[str, Any] = {}
        for axis in self._axes if choice else ():
            if axis.range is None:
                params[axis.name] = _label([choice[key] for key in axis.keys])
            else:
                number = float(choice[axis.name].split()[0])
                params[axis.name] = int(number) if axis.range.whole else number
        return params


def _label(point: Sequence[str]) -> str:
    return "; ".join(point)


def _sampler(library: ModuleType, seed: int) -> Any:
    """Return a TPE that draws the same in each process: of the seed, the trial and the results."""
    samplers = library.samplers

    class Sampler(samplers.BaseSampler):
        def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
            return {}

        def sample_relative(self, study: Any, trial: Any, space: Any) -> dict[str, Any]:
            return {}

        def sample_independent(self, study: Any, trial: Any, name: str, distribution: Any) -> Any:
            own = (seed + 7919 * trial.user_attrs["number"] + zlib.crc32(name.encode())) % 2**32
            tpe = samplers.TPESampler(n_startup_trials=0, seed=own, constant_liar=True)
            return tpe.sample_independent(study, trial, name, distribution)

    return Sampler()


def _drop_partial_line(path: Path, of_file: Any) -> None:
    """Remove a line of which a kill left a part; the next one would be appended to it.

    Raises:
      ValueError: the file is not a journal.
    """
    of_file.acquire()
    try:
        with path.open("r+b") as stream:
            content = stream.read()
            if content and not content.startswith(b'{"'):
                raise ValueError("it is not a journal")
            stream.truncate(content.rfind(b"\n") + 1)
    finally:
        of_file.release()


def start(command: Sequence[str], output: Path, share: Share) -> subprocess.Popen:
    """Start the command of a trial, which gets SIGTERM when this process ends in any way.

    Args:
      command: it and its arguments.
      output: the file to which output is appended.
      share: its part of this machine.
    """
    with output.open("ab") as stream:
        return subprocess.Popen(
            [sys.executable, "-P", str(_CHILD), str(os.getpid()), share.cores, *command],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=os.environ | ({"CUDA_VISIBLE_DEVICES": share.gpus} if share.gpus else {}),
            process_group=0,  # Ctrl-C is for the sweep, which stops the trials itself
        )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
