"""Checkpoints: what a run needs to go on exactly where it was, whatever happened meanwhile."""

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
)
from largebatch.checkpoint.manifest import Manifest, Progress, Rejected
from largebatch.config import Plan
from largebatch.errors import CheckpointError
from largebatch.parallel import processes

PyTree = Any
# What one process found out about a checkpoint; all go by the least.
_ABSENT, _REJECTED, _REFUSED, _SOUND = range(4)


@dataclasses.dataclass(frozen=True)
class _Save:
    """What the writing thread is given."""

    about: Manifest
    arrays: dict[str, np.ndarray]


class Checkpoints:
    """The checkpoints of a run, ``DIRECTORY/STEP/``; process 0 writes, in a thread of its own."""

    def __init__(
        self,
        directory: Path,
        *,
        keep: int,
        warn: Callable[[str], None],
        read_only: bool = False,
    ) -> None:
        """Make the directory and clear it of what a killed process left; each process calls it.

        Args:
          directory: of all checkpoints of a run.
          keep: how many of the newest are kept.
          warn: is told, in one line, of what goes wrong without ending the run.
          read_only: change nothing, for the directory may be another run's.

        Raises:
          UserError: the directory cannot be made or cleared.
        """
        self._directory = directory.absolute()
        self._keep = keep
        self._warn = warn
        self._read_only = read_only
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._saving: Future[str] | None = None
        self._save: _Save | None = None
        """The newest, unless it is on disk."""
        self._failure: BaseException | None = None
        """Of the newest that has ended."""
        self._failures = 0
        """In a row."""
        self._is_told = True
        if not read_only:
            processes.first_process_does(lambda: checkpoint_directories.clear(self._directory))

    def path(self, step: int) -> Path:
        """Where the checkpoint of ``step`` lies."""
        return self._directory / str(step)

    def steps(self) -> list[int]:
        """Of the complete checkpoints, newest first; none of them has been verified."""
        return complete(self._directory)

    def latest_step(self) -> int | None:
        """The newest complete checkpoint, or None."""
        return next(iter(self.steps()), None)

    def check_space(self, like: PyTree) -> None:
        """See, before training, that checkpoints will fit; each process calls it.

        Args:
          like: shapes and types of the state as checkpoints hold it.

        Raises:
          UserError: there is no room for even one.
        """
        needed = stored_arrays.bytes_needed(like)
        warning = processes.first_process_does(
            lambda: checkpoint_directories.check_space(self._directory, needed, self._keep)
        )
        if warning:
            self._warn(warning)

    def save(self, state: PyTree, progress: Progress, plan: Plan, *, replace: bool = False) -> None:
        """Start to save; ``state`` is copied before this returns and may be donated then.

        Waits for the save before, if that still goes on. Does nothing on all processes but the
        first.

        Args:
          state: replicated arrays.
          progress: where the run is.
          plan: of the run.
          replace: write it also where there is a checkpoint of this step already.

        Raises:
          CheckpointError: the two saves before this one have failed.
        """
        if jax.process_index() != 0:
            return
        self._settle()
        if self._failures > 1:
            raise self._cannot_write("twice in a row a checkpoint could not be written")
        if not self._is_told:
            self._warn(f"{self._told('a checkpoint could not be written')}; the training goes on")
        if replace or progress.step not in self.steps():
            about = manifest.described(progress, plan)
            self._start(_Save(about, stored_arrays.on_host(state)))

    def wait(self) -> None:
        """Until what was saved is on disk. What failed is tried once more.

        Raises:
          CheckpointError: it could not be written.
        """
        self._settle()
        if self._failure is None:
            return
        self._warn(f"{self._told('a checkpoint could not be written')}; trying once more")
        self._start(self._save)
        self._settle()
        if self._failure is not None:
            raise self._cannot_write("the newest checkpoint could not be written")

    def newest_path(self, until: int) -> Path | None:
        """Where the newest checkpoint of at most ``until`` steps lies; each process calls it."""
        self._settle()
        step = _first_process_says(next((s for s in self.steps() if s <= until), None))
        return None if step is None else self.path(step)

    def newest(self, plan: Plan, like: PyTree, *, until: int | None = None) -> Stored | None:
        """The newest checkpoint that is sound, read and verified; each process calls it.

        Those that are not are told of, with the reason, and renamed ``STEP.corrupt`` (left alone if
        read-only). All processes come to the same one: what one of them cannot read, none takes.

        Args:
          plan: what it is to go on with.
          like: shapes and types of the state as checkpoints hold it.
          until: look at none of more steps.

        Returns:
          The checkpoint; None if there has never been one.

        Raises:
          CheckpointError: its mathematics or version is another, none is sound, or not all
            processes see the same directory.
        """
        self._settle()
        rejected = 0
        candidates = (s for s in numbered(self._directory) if until is None or s <= until)
        while (step := _first_process_says(next(candidates, None))) is not None:
            found = self._examine(step, plan, like)
            if isinstance(found, Stored):
                return found
            rejected += 1
            self._reject(self.path(step), found)
        remedy = "give another --workdir" if self._read_only else "start anew with --resume=never"
        if rejected:
            raise CheckpointError(
                f"none of the checkpoints in {self._directory} can be used ({rejected} rejected); "
                f"mend one and give it back its name, or {remedy}"
            )
        if _first_process_says(1 if has_checkpoints(self._directory) else None):
            raise CheckpointError(
                f"all checkpoints in {self._directory} were found corrupt before; mend one and "
                f"give it back its name, or {remedy}"
            )
        # Another host's directory may hold what process 0 does not see.
        if not processes.agree(int(has_checkpoints(self._directory))):
            raise self._not_shared()
        return None

    def linger(self, seconds: float = 20.0) -> None:
        """Before the process ends early: give the save that goes on a last chance."""
        if self._saving is not None:
            with contextlib.suppress(TimeoutError):
                self._saving.exception(seconds)

    def close(self) -> None:
        """When what was saved is on disk, or has failed, which is told."""
        self._settle()
        if not self._is_told:
            self._warn(self._told("a checkpoint could not be written"))
        self._thread.shutdown()

    def _start(self, save: _Save) -> None:
        self._save = save
        self._saving = self._thread.submit(self._write, save)

    def _settle(self) -> None:
        """Wait for the save that goes on, if one does, and take note of how it ended."""
        if self._saving is None:
            return
        saving, self._saving = self._saving, None
        self._failure = saving.exception()
        self._is_told = self._failure is None
        if self._failure is not None:
            self._failures += 1
            return
        self._failures = 0
        self._save = None  # as large as the state
        if warning := saving.result():
            self._warn(warning)

    def _write(self, save: _Save) -> str:
        """In the thread: write, and delete what is then too many; returns a warning, or ''."""
        checkpoint_directories.write(self._directory, save.about, save.arrays)
        try:
            checkpoint_directories.prune(self._directory, self._keep)
        except OSError as error:
            return f"an old checkpoint could not be deleted ({error})"
        return ""

    def _told(self, what: str) -> str:
        """The newest failure, with what is needed to mend it."""
        self._is_told, newest = True, self.latest_step()
        try:
            free = mebibytes(shutil.disk_usage(self._directory).free)
        except OSError:
            free = "an unknown number"
        needed = stored_arrays.bytes_needed(self._save.arrays)
        good = "there is none yet" if newest is None else f"the newest is {self.path(newest)}"
        return (
            f"{what}: step {self._save.about.progress.step}, {first_line(self._failure)}; "
            f"{mebibytes(needed)} are needed and {free} free in {self._directory}; {good}"
        )

    def _cannot_write(self, what: str) -> CheckpointError:
        return CheckpointError(
            f"{self._told(what)}; free space or mend permissions, then start again with the same "
            "command"
        )

    def _examine(self, step: int, plan: Plan, like: PyTree) -> Stored | str:
        """A checkpoint, or why it is rejected, in which all processes agree."""
        found, code = None, _SOUND
        if not self.path(step).is_dir():
            # It can vanish under a reader while its run goes on, but not under process 0 alone.
            found, code = "it is gone", _REJECTED if jax.process_index() == 0 else _ABSENT
        else:
            try:
                found = checkpoint_directories.read(self.path(step), plan, like)
            except Rejected as error:
                found, code = str(error), _REJECTED
            except CheckpointError as error:
                found, code = error, _REFUSED
        least = processes.agreed_minimum(code)
        if least == _ABSENT:
            raise self._not_shared()
        if least == _REFUSED:
            raise found if code == _REFUSED else CheckpointError("another process refused it")
        if least == _REJECTED and code != _REJECTED:
            return "another process cannot read it"
        return found

    def _reject(self, path: Path, reason: str) -> None:
        told = f"checkpoint {path} is not used: {reason}"
        if self._read_only or jax.process_index() != 0:
            self._warn(told)
            return
        try:
            self._warn(f"{told}; it is now {checkpoint_directories.set_aside(path).name}")
        except OSError as error:
            self._warn(f"{told}; it could not be renamed ({error})")

    def _not_shared(self) -> CheckpointError:
        return CheckpointError(
            f"the processes see different checkpoints in {self._directory}, this one "
            f"{numbered(self._directory)}; all of them must share that directory"
        )


def _first_process_says(number: int | None) -> int | None:
    """The number that process 0 passes; each must call it."""
    said = 2**61 if jax.process_index() else 0 if number is None else 1 + number
    agreed = processes.agreed_minimum(said)
    return agreed - 1 if agreed else None
