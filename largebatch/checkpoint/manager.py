"""Checkpoint manager of a run: asynchronous saves, retries, and agreement between processes."""

import contextlib
import dataclasses
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np

from largebatch.checkpoint import arrays as stored_arrays
from largebatch.checkpoint import directories as checkpoint_directories
from largebatch.checkpoint import manifest
from largebatch.checkpoint.arrays import first_line
from largebatch.checkpoint.directories import (
    Stored,
    complete,
    has_checkpoints,
    mebibytes,
    numbered,
    regular,
)
from largebatch.checkpoint.manifest import Manifest, Progress, Rejected
from largebatch.config import Plan
from largebatch.errors import CheckpointError
from largebatch.parallel import processes

PyTree = Any
# Verdict of one process on a checkpoint; the minimum over all processes decides.
_ABSENT, _REJECTED, _REFUSED, _VALID = range(4)


@dataclasses.dataclass(frozen=True)
class _Save:
    """Input of the writer thread."""

    about: Manifest
    arrays: dict[str, np.ndarray]


class Checkpoints:
    """The checkpoints ``DIRECTORY/STEP/`` of a run; process 0 writes them in a separate thread."""

    def __init__(
        self,
        directory: Path,
        *,
        keep: int,
        warn: Callable[[str], None],
        keep_best: bool = False,
        read_only: bool = False,
        extends: bool = False,
        share: Callable[[int], None] | None = None,
    ) -> None:
        """Create the directory and remove incomplete checkpoints; each process calls this.

        Args:
          directory: directory of all checkpoints of a run.
          keep: number of newest checkpoints to keep.
          warn: prints a warning of one line.
          keep_best: also keep the checkpoint of the greatest validation accuracy.
          read_only: change nothing, because the directory may belong to a different run.
          extends: whether the run may resume with another schedule.
          share: gives all processes the checkpoint of a step that process 0 has, if they have
            different directories; each process calls it.

        Raises:
          UserError: the directory cannot be created or cleared.
        """
        self._directory = directory.absolute()
        self._keep = keep
        self._keep_best = keep_best
        self._warn = warn
        self._read_only = read_only
        self._extends = extends
        self._share = share
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._saving: Future[str] | None = None
        self._save: _Save | None = None
        """The newest save, until it is on disk."""
        self._failure: BaseException | None = None
        """Exception of the newest finished save."""
        self._failures = 0
        """Number of consecutive failures."""
        self._is_reported = True
        if not read_only:
            processes.first_process_does(lambda: checkpoint_directories.clear(self._directory))

    def path(self, step: int) -> Path:
        """Return the directory of the checkpoint of ``step``."""
        return self._directory / str(step)

    def steps(self) -> list[int]:
        """Return the steps of all complete checkpoints, newest first, without verification."""
        return complete(self._directory)

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
        needed = stored_arrays.bytes_needed(like)
        warning = processes.first_process_does(
            lambda: checkpoint_directories.check_space(
                self._directory, needed, self._keep, keep_best=self._keep_best
            )
        )
        if warning:
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
        if replace or progress.step not in self.steps():
            about = manifest.described(progress, plan)
            self._start(_Save(about, stored_arrays.on_host(state)))

    def wait(self) -> None:
        """Wait until the newest save is on disk, with one retry after a failure.

        Raises:
          CheckpointError: the checkpoint could not be written.
        """
        self._finish_save()
        if self._failure is None:
            return
        self._warn(f"{self._report('a checkpoint could not be written')}; trying once more")
        self._start(self._save)
        self._finish_save()
        if self._failure is not None:
            raise self._write_error("the newest checkpoint could not be written")

    def newest_path(self, until: int) -> Path | None:
        """Return the newest checkpoint of at most ``until`` steps; each process calls this."""
        self._finish_save()
        step = processes.from_first_process(next((s for s in self.steps() if s <= until), None))
        return None if step is None else self.path(step)

    def rollback_path(self, until: int) -> Path | None:
        """Return the checkpoint to which a rollback returns; each process calls this.

        It is the newest of at most ``until`` steps that an uninterrupted run has too.
        """
        self._finish_save()
        known = regular(self._directory) if jax.process_index() == 0 else ()
        step = processes.from_first_process(next((s for s in known if s <= until), None))
        return None if step is None else self.path(step)

    def exceeds_best(self, top1: float) -> bool:
        """Return whether a state is to be kept for its validation accuracy, a fraction.

        Each process calls this. Always false without ``keep_best``.
        """
        if not self._keep_best:
            return False
        self._finish_save()
        held = checkpoint_directories.best(self._directory)
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
        candidates = iter(numbered(self._directory))
        if until is not None:
            candidates = (s for s in regular(self._directory) if s <= until)
        while (step := processes.from_first_process(next(candidates, None))) is not None:
            # After an extension, a rollback may return to a checkpoint from before it.
            extends = self._extends or until is not None
            found = self._examine(step, plan, like, extends=extends)
            if isinstance(found, Stored):
                return found
            rejected += 1
            self._reject(self.path(step), found)
        remedy = "start a new run with --resume=never"
        if self._read_only:
            remedy = "use another --workdir"
        if rejected:
            raise CheckpointError(
                f"no checkpoint in {self._directory} is valid ({rejected} rejected); repair one "
                f"and restore its name, or {remedy}"
            )
        if processes.from_first_process(1 if has_checkpoints(self._directory) else None):
            raise CheckpointError(
                f"all checkpoints in {self._directory} are marked as corrupt; repair one and "
                f"restore its name, or {remedy}"
            )
        # The directory of a different host may have checkpoints that process 0 does not see.
        if not processes.agree(int(has_checkpoints(self._directory))):
            raise self._not_shared()
        return None

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
        """Write a checkpoint and prune old ones, in the thread; return a warning or ''."""
        checkpoint_directories.write(self._directory, save.about, save.arrays)
        checkpoint_directories.note_saved(self._directory, save.about.progress.step)
        try:
            checkpoint_directories.prune(self._directory, self._keep, keep_best=self._keep_best)
        except OSError as error:
            return f"an old checkpoint could not be deleted ({error})"
        return ""

    def _report(self, what: str) -> str:
        """Describe the newest failure, with the required and the free disk space."""
        self._is_reported, newest = True, self.latest_step()
        try:
            free = mebibytes(shutil.disk_usage(self._directory).free)
        except OSError:
            free = "an unknown amount"
        needed = stored_arrays.bytes_needed(self._save.arrays)
        good = "no checkpoint exists" if newest is None else f"the newest is {self.path(newest)}"
        return (
            f"{what}: step {self._save.about.progress.step}, {first_line(self._failure)}; "
            f"{mebibytes(needed)} are needed and {free} free in {self._directory}; {good}"
        )

    def _write_error(self, what: str) -> CheckpointError:
        return CheckpointError(
            f"{self._report(what)}; free disk space or fix permissions, then run the same command "
            "again"
        )

    def _examine(self, step: int, plan: Plan, like: PyTree, *, extends: bool) -> Stored | str:
        """Return a checkpoint, or the reason for its rejection; all processes agree."""
        found, code = None, _VALID
        if self._share is not None:
            self._share(step)
        if not self.path(step).is_dir():
            # A run may delete it while a reader looks, but not for other processes than 0 alone.
            found, code = "it was deleted", _REJECTED if jax.process_index() == 0 else _ABSENT
        else:
            try:
                found = checkpoint_directories.read(
                    self.path(step), plan, like, extends=extends, trains=not self._read_only
                )
            except Rejected as error:
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

    def _reject(self, path: Path, reason: str) -> None:
        message = f"checkpoint {path} is not used: {reason}"
        if self._read_only or jax.process_index() != 0 or not checkpoint_directories.is_own(path):
            self._warn(message)
            return
        try:
            renamed = checkpoint_directories.mark_corrupt(path)
            self._warn(f"{message}; renamed to {renamed.name}")
        except OSError as error:
            self._warn(f"{message}; it could not be renamed ({error})")

    def _not_shared(self) -> CheckpointError:
        return CheckpointError(
            f"the processes see different checkpoints in {self._directory}, this one "
            f"{numbered(self._directory)}; use a directory that all processes share"
        )
