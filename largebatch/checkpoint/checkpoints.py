"""The checkpoints of a run: asynchronous saves, retention, and agreement between processes.

A checkpoint is the file ``checkpoints/STEP.safetensors`` of a run directory. Process 0 writes; all
processes read the same one.
"""

import contextlib
import dataclasses
import itertools
import re
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from largebatch.checkpoint import file, manifest
from largebatch.checkpoint.manifest import Manifest, OtherVersion, Progress, Rejected
from largebatch.checkpoint.place import Place
from largebatch.checkpoint.resumable import Stored, check_resumable
from largebatch.config import Plan
from largebatch.errors import CheckpointError, one_line
from largebatch.object_store import StorageError
from largebatch.parallel import processes

PyTree = Any
FOLDER = "checkpoints"
_NAME = re.compile(r"(0|[1-9][0-9]{0,17})\.safetensors")
_SET_ASIDE = re.compile(rf"{_NAME.pattern}\.corrupt(-[0-9]+)?")
# Verdict of one process on a checkpoint; the minimum over all processes decides.
_ABSENT, _REJECTED, _REFUSED, _VALID = range(4)


def path_of(step: int) -> str:
    """Return the path of a checkpoint in its run directory."""
    return f"{FOLDER}/{step}{file.SUFFIX}"


def steps_in(place: Place) -> list[int]:
    """Return the steps of all files with the name of a checkpoint, newest first, unverified."""
    found = map(_NAME.fullmatch, place.files(FOLDER))
    return sorted((int(match[1]) for match in found if match), reverse=True)


def manifest_of(place: Place, step: int) -> Manifest:
    """Read the manifest of a checkpoint, without its arrays.

    Raises:
      Rejected: the file is not a checkpoint of this program, or cannot be read.
      OtherVersion: a different version of this program wrote it.
    """
    try:
        begin = place.read(path_of(step), 0, file.HEADER_BYTES)
        size = file.header_length(begin)
        return file.decode_header(place.read(path_of(step), file.HEADER_BYTES, size))[0]
    except OSError as error:
        raise Rejected(f"it cannot be read ({error})") from error


def progresses(place: Place) -> dict[int, Progress]:
    """Return the progress of each checkpoint of this program by step, newest first, unverified."""
    found = {}
    for step in steps_in(place):
        with contextlib.suppress(Rejected, OtherVersion):
            found[step] = manifest_of(place, step).progress
    return found


def best(place: Place) -> Progress | None:
    """Return the progress of the checkpoint of the greatest validation top-1 accuracy.

    The manifests decide; the arrays are not verified. Of equal ones, the earliest is the best.

    Returns:
      None if no checkpoint has been evaluated.
    """
    return _best_of(progresses(place).values())


def _best_of(known: Iterable[Progress]) -> Progress | None:
    evaluated = [p for p in known if p.validation_top1 >= 0]
    return max(evaluated, key=lambda p: (p.validation_top1, -p.step), default=None)


def has_checkpoints(place: Place) -> bool:
    """Return whether there is a checkpoint, including corrupt ones."""
    return any(p.fullmatch(name) for name in place.files(FOLDER) for p in (_NAME, _SET_ASIDE))


@dataclasses.dataclass(frozen=True)
class _Save:
    """Input of the writer thread."""

    about: Manifest
    arrays: dict[str, np.ndarray]
    replace: bool
    """Whether an existing checkpoint of this step is replaced."""


class Checkpoints:
    """The checkpoints of a run; process 0 writes them in a separate thread."""

    def __init__(
        self,
        place: Place,
        *,
        keep: int,
        warn: Callable[[str], None],
        keep_best: bool = False,
        read_only: bool = False,
        extends: bool = False,
        saved: Callable[[int], None] = lambda step: None,
    ) -> None:
        """Change nothing yet.

        Args:
          place: of all checkpoints of the run.
          keep: number of newest checkpoints to keep.
          warn: prints a warning of one line.
          keep_best: also keep the checkpoint of the greatest validation accuracy.
          read_only: change nothing, because the directory may belong to a different run.
          extends: whether the run may resume with another schedule.
          saved: called in the thread with the step of a checkpoint that is complete.
        """
        self._place, self._where = place, f"{place.url}/{FOLDER}"
        self._keep = keep
        self._keep_best = keep_best
        self._warn = warn
        self._read_only = read_only
        self._extends = extends
        self._saved = saved
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._saving: Future[str] | None = None
        self._save: _Save | None = None
        """The newest save, until it is on disk."""
        self._failure: BaseException | None = None
        """Exception of the newest finished save."""
        self._failures = 0
        """Number of consecutive failures."""
        self._is_reported = True

    def path(self, step: int) -> str:
        """Return the path or the URL of the checkpoint of ``step``."""
        return f"{self._place.url}/{path_of(step)}"

    def steps(self) -> list[int]:
        """Return the steps of all checkpoints, newest first, without verification."""
        return steps_in(self._place)

    def latest_step(self) -> int | None:
        """Return the step of the newest complete checkpoint, or None."""
        return next(iter(self.steps()), None)

    def check_space(self, like: PyTree) -> None:
        """Check before training that checkpoints fit on the disk; each process calls this.

        Args:
          like: shapes and dtypes of the stored state.

        Raises:
          UserError: not even one checkpoint fits.
        """
        needed = file.bytes_needed(like)
        if warning := processes.first_process_does(lambda: self._space(needed)):
            self._warn(warning)

    def save(self, state: PyTree, progress: Progress, plan: Plan, *, replace: bool = False) -> None:
        """Start an asynchronous save; ``state`` is copied and may be donated afterwards.

        Waits for the preceding save. Only process 0 saves.

        Args:
          state: replicated arrays.
          progress: progress of the run.
          plan: plan of the run.
          replace: replace an existing checkpoint of this step.

        Raises:
          CheckpointError: the two preceding saves failed.
        """
        if jax.process_index() != 0:
            return
        self._finish_save()
        if self._failures > 1:
            raise self._write_error("two consecutive checkpoints could not be written")
        if not self._is_reported:
            self._warn(f"{self._report('a checkpoint could not be written')}; training continues")
        about = manifest.described(progress, plan)
        self._start(_Save(about, file.on_host(state), replace))

    def wait(self) -> None:
        """Wait until the newest save is on disk, with one retry after a failure.

        Also delete what a process left that was killed after its last save.

        Raises:
          CheckpointError: the checkpoint could not be written.
        """
        self._finish_save()
        if self._failure is not None:
            self._warn(f"{self._report('a checkpoint could not be written')}; trying once more")
            self._start(self._save)
            self._finish_save()
        if self._failure is not None:
            raise self._write_error("the newest checkpoint could not be written")
        if warning := self._prune():
            self._warn(warning)

    def newest_path(self, until: int) -> str | None:
        """Return the newest checkpoint of at most ``until`` steps; each process calls this."""
        self._finish_save()
        step = processes.from_first_process(next((s for s in self.steps() if s <= until), None))
        return None if step is None else self.path(step)

    def rollback_path(self, until: int) -> str | None:
        """Return the checkpoint to which a rollback returns; each process calls this.

        It is the newest of at most ``until`` steps that an uninterrupted run has too.
        """
        self._finish_save()
        known = self._regular() if jax.process_index() == 0 else ()
        step = processes.from_first_process(next((s for s in known if s <= until), None))
        return None if step is None else self.path(step)

    def exceeds_best(self, top1: float) -> bool:
        """Return whether a state is to be kept for its validation accuracy, a fraction.

        Each process calls this. Always false without ``keep_best``.
        """
        if not self._keep_best:
            return False
        self._finish_save()
        held = best(self._place)
        return bool(processes.from_first_process(int(held is None or top1 > held.validation_top1)))

    def newest(self, plan: Plan, like: PyTree, *, until: int | None = None) -> Stored | None:
        """Read and verify the newest valid checkpoint; each process calls this.

        Corrupt checkpoints are reported with the reason and renamed ``STEP.corrupt``, unless
        read-only. All processes agree on one checkpoint that each of them can read.

        Args:
          plan: plan of the run that resumes.
          like: shapes and dtypes of the stored state.
          until: ignore checkpoints of later steps, and those that only a stop has added.

        Returns:
          The checkpoint; None if the directory has no checkpoints.

        Raises:
          CheckpointError: the mathematics or version differs, no checkpoint is valid, or the
            processes do not see the same directory.
        """
        self._finish_save()
        rejected = 0
        candidates = iter(self.steps())
        if until is not None:
            candidates = (s for s in self._regular() if s <= until)
        while (step := processes.from_first_process(next(candidates, None))) is not None:
            # After an extension, a rollback may return to a checkpoint from before it.
            extends = self._extends or until is not None
            found = self._examine(step, plan, like, extends=extends)
            if isinstance(found, Stored):
                return found
            rejected += 1
            self._reject(step, found)
        remedy = "start a new run with --resume=never"
        if self._read_only:
            remedy = "use another --workdir"
        if rejected:
            raise CheckpointError(
                f"no checkpoint in {self._where} is valid ({rejected} rejected); repair one "
                f"and restore its name, or {remedy}"
            )
        if processes.from_first_process(1 if has_checkpoints(self._place) else None):
            raise CheckpointError(
                f"all checkpoints in {self._where} are marked as corrupt; repair one and "
                f"restore its name, or {remedy}"
            )
        # The directory of a different host may have checkpoints that process 0 does not see.
        if not processes.agree(int(has_checkpoints(self._place))):
            raise self._not_shared()
        return None

    def is_saved(self, step: int) -> bool:
        """Return whether the checkpoint of a step is complete."""
        return step in self.steps()

    def read(self, step: int, plan: Plan, like: PyTree, *, extends: bool = False) -> Stored:
        """Read and verify a checkpoint: first what it is of, then every byte.

        Raises:
          FileNotFoundError: it was deleted.
          Rejected: it is damaged, or not of this program.
          CheckpointError: its mathematics, dataset or version differs from this run.
        """
        path = self.path(step)
        try:
            content = self._place.read(path_of(step))
            size = file.header_length(content)
            about, _ = file.decode_header(content[file.HEADER_BYTES : file.HEADER_BYTES + size])
            if about.progress.step != step:
                raise Rejected(f"its manifest is that of step {about.progress.step}")
            others, schedule = check_resumable(
                path, about, plan, extends=extends, trains=not self._read_only
            )
            state = file.decode(content, like)[1]
        except OtherVersion as error:
            raise CheckpointError(
                f"checkpoint {path} is from a different version: {error}; start a new run with "
                "--resume=never"
            ) from error
        return Stored(about.progress, state, others, schedule)

    def wait_before_exit(self, seconds: float = 20.0) -> None:
        """Wait a limited time for the save in progress before the process exits early."""
        if self._saving is not None:
            with contextlib.suppress(TimeoutError):
                self._saving.exception(seconds)

    def close(self) -> None:
        """Wait for the save in progress, report a failure, and stop the thread."""
        self._finish_save()
        if not self._is_reported:
            self._warn(self._report("a checkpoint could not be written"))
        self._thread.shutdown()

    def _start(self, save: _Save) -> None:
        self._save = save
        self._saving = self._thread.submit(self._write, save)

    def _finish_save(self) -> None:
        """Wait for the save in progress, if any, and record its result."""
        if self._saving is None:
            return
        saving, self._saving = self._saving, None
        self._failure = saving.exception()
        self._is_reported = self._failure is None
        if self._failure is not None:
            self._failures += 1
            return
        self._failures = 0
        self._save = None  # frees the copy of the state
        if warning := saving.result():
            self._warn(warning)

    def _write(self, save: _Save) -> str:
        """Write a checkpoint and delete old ones, in the thread; return a warning or ''."""
        step = save.about.progress.step
        if step in self.steps():
            try:
                manifest_of(self._place, step)
            except (Rejected, OtherVersion):  # it is not replaced
                self._set_aside(step)
            else:
                if not save.replace:
                    return ""
        self._place.keep_logs()
        content = file.encode(save.about, save.arrays)
        self._place.write(path_of(step), content)
        self._saved(step)
        return self._prune()

    def _prune(self) -> str:
        """Delete all checkpoints except the newest ``keep`` and, if asked for, the best.

        A checkpoint that only a stop has added does not count: it is kept while it is the newest,
        so that a rollback finds the same checkpoints as in an uninterrupted run.

        Returns:
          A warning if one cannot be deleted; otherwise ''.
        """
        try:
            if len(self.steps()) <= self._keep:
                return ""
            known = progresses(self._place)
            if len(known) <= self._keep:
                return ""
            regular = [step for step, progress in known.items() if not progress.for_stop]
            kept = {max(known), *regular[: self._keep]}
            if self._keep_best and (evaluated := _best_of(known.values())) is not None:
                kept.add(evaluated.step)
            for step in known.keys() - kept:
                self._place.delete(path_of(step))
        except (OSError, StorageError) as error:
            return f"an old checkpoint could not be deleted ({error})"
        return ""

    def _regular(self) -> list[int]:
        """Return the steps of the checkpoints that an uninterrupted run has too, newest first.

        One whose manifest cannot be read counts, so that it is reported.
        """
        known = progresses(self._place)
        return [step for step in self.steps() if step not in known or not known[step].for_stop]

    def _space(self, needed: int) -> str:
        """Return a warning if not all checkpoints of ``needed`` bytes fit, otherwise ''.

        Raises:
          CheckpointError: not even one fits.
        """
        free = self._place.free_bytes()
        if free is None:
            return ""
        sizes = f"one needs {mebibytes(needed)}, {mebibytes(free)} are free"
        if free < needed:
            raise CheckpointError(
                f"no checkpoint fits into {self._where}: {sizes}; free disk space, or use "
                "another --workdir"
            )
        # The oldest checkpoint is deleted only after the newest is complete.
        most = self._keep + self._keep_best
        if free >= needed * (1 + most - len(self.steps()[:most])):
            return ""
        also = ", the best one" if self._keep_best else ""
        return (
            f"{self._where} has no space for run.keep_checkpoints={self._keep} checkpoints"
            f"{also} and one more during a write: {sizes}; free disk space, or use a smaller "
            "run.keep_checkpoints"
        )

    def _report(self, what: str) -> str:
        """Describe the newest failure, with the required and the free disk space."""
        self._is_reported, newest = True, self.latest_step()
        free = None
        with contextlib.suppress(OSError):
            free = self._place.free_bytes()
        room = "" if free is None else f" and {mebibytes(free)} free in {self._where}"
        needed = mebibytes(file.bytes_needed(self._save.arrays))
        good = "no checkpoint exists" if newest is None else f"the newest is {self.path(newest)}"
        return (
            f"{what}: step {self._save.about.progress.step}, {one_line(self._failure)}; {needed} "
            f"are needed{room}; {good}"
        )

    def _write_error(self, what: str) -> CheckpointError:
        return CheckpointError(
            f"{self._report(what)}; free disk space or fix permissions, then run the same command "
            "again"
        )

    def _examine(self, step: int, plan: Plan, like: PyTree, *, extends: bool) -> Stored | str:
        """Return a checkpoint, or the reason for its rejection; all processes agree."""
        found, code = None, _VALID
        try:
            found = self.read(step, plan, like, extends=extends)
        except FileNotFoundError:
            # A run may delete it while a reader looks, but not for other processes than 0 alone.
            found, code = "it was deleted", _REJECTED if jax.process_index() == 0 else _ABSENT
        except (Rejected, OSError) as error:
            found, code = str(error), _REJECTED
        except CheckpointError as error:
            found, code = error, _REFUSED
        least = processes.agreed_minimum(code)
        if least == _ABSENT:
            raise self._not_shared()
        if least == _REFUSED:
            raise found if code == _REFUSED else CheckpointError("a different process rejected it")
        if least == _REJECTED and code != _REJECTED:
            return "a different process cannot read it"
        return found

    def _reject(self, step: int, reason: str) -> None:
        message = f"checkpoint {self.path(step)} is not used: {reason}"
        if self._read_only or jax.process_index() != 0:
            self._warn(message)
            return
        try:
            self._warn(f"{message}; renamed to {self._set_aside(step)}")
        except (OSError, StorageError) as error:
            self._warn(f"{message}; it could not be renamed ({error})")

    def _set_aside(self, step: int) -> str:
        """Rename a file that is no checkpoint to ``STEP.safetensors.corrupt``; return the name."""
        taken, name = self._place.files(FOLDER), f"{step}{file.SUFFIX}.corrupt"
        free = next(n for k in itertools.count(1) if (n := name + f"-{k}" * (k > 1)) not in taken)
        self._place.move(path_of(step), f"{FOLDER}/{free}")
        return free

    def _not_shared(self) -> CheckpointError:
        return CheckpointError(
            f"the processes see different checkpoints in {self._where}, this one "
            f"{self.steps()}; use a directory that all processes share"
        )


def mebibytes(count: int) -> str:
    """Format a number of bytes in MiB."""
    return f"{count / 2**20:,.1f} MiB"
