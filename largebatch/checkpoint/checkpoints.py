"""The checkpoints of a run: asynchronous saves, retention, and where a run continues.

A checkpoint is the file ``checkpoints/STEP.safetensors`` of a run directory. Process 0 writes; all
processes read the same one.
"""

import contextlib
import dataclasses
import itertools
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from largebatch.checkpoint import file
from largebatch.checkpoint.file import Manifest, OtherVersion, Progress, Rejected
from largebatch.checkpoint.place import Place, is_own
from largebatch.config import Config, Facts, differences, freeze, table
from largebatch.config.plan import Plan
from largebatch.config.resolution import norm_statistics
from largebatch.config.schema import Difference
from largebatch.errors import CheckpointError, one_line
from largebatch.object_store import StorageError
from largebatch.parallel import processes

PyTree = Any
FOLDER = "checkpoints"
_DATA = {
    "train_examples": "the numbers of training examples",
    "classes": "the numbers of classes",
    "image_shape": "the sizes of images",
    "identity": "names, classes or files of training examples",
    "validation_examples": "the numbers of validation examples",
    "validation_identity": "names, classes or files of validation examples",
    "content": "images or labels",
}
"""The facts of a dataset that a checkpoint and a run must share."""
_VALIDATION = ("validation_examples", "validation_identity", "content")


@dataclasses.dataclass
class Stored:
    """A verified checkpoint."""

    progress: Progress
    state: PyTree
    """NumPy arrays in the tree of the stored state; None once they are on the devices."""
    table: str
    """Table of options that differ from this run without effect on the mathematics; '' if none."""
    schedule: tuple[Difference, ...] = ()
    """Options of the schedule that differ, of a run that is extended."""

    @property
    def step(self) -> int:
        """Number of completed steps."""
        return self.progress.step


def path_of(step: int) -> str:
    """Return the path of a checkpoint in its run directory."""
    return f"{FOLDER}/{step}{file.SUFFIX}"


def steps_in(place: Place) -> list[int]:
    """Return the steps of all files with the name of a checkpoint, newest first, unverified."""
    names = [name for name in _own_names(place) if name.endswith(file.SUFFIX)]
    return sorted((int(name.removesuffix(file.SUFFIX)) for name in names), reverse=True)


def has_checkpoints(place: Place) -> bool:
    """Return whether there is a checkpoint, including corrupt ones."""
    return bool(_own_names(place))


def _own_names(place: Place) -> list[str]:
    return [name for name in place.files(FOLDER) if is_own(f"{FOLDER}/{name}")]


def manifest_of(place: Place, step: int) -> Manifest:
    """Read the manifest of a checkpoint, without its arrays.

    Raises:
      Rejected: the file is not a checkpoint of this program, or cannot be read.
      OtherVersion: a different version of this program wrote it.
    """
    path = path_of(step)
    try:
        size = file.header_length(place.read(path, file.HEADER_BYTES))
        begin = place.read(path, file.HEADER_BYTES + size)
    except OSError as error:
        raise Rejected(f"it cannot be read ({error})") from error
    return file.manifest_in(begin[file.HEADER_BYTES :])


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
        self._newest: Callable[[], str] | None = None
        """The newest save, until it is complete."""
        self._failures: list[str] = []
        """Reasons of the newest saves that failed in a row."""

    def path(self, step: int) -> str:
        """Return the path or the URL of the checkpoint of ``step``."""
        return f"{self._place.url}/{path_of(step)}"

    def latest_step(self) -> int | None:
        """Return the step of the newest complete checkpoint, or None."""
        return next(iter(steps_in(self._place)), None)

    def is_saved(self, step: int) -> bool:
        """Return whether the checkpoint of a step is complete."""
        return step in steps_in(self._place)

    def check_space(self, like: PyTree) -> None:
        """Check before training that checkpoints fit on the disk; each process calls this.

        Args:
          like: shapes and dtypes of the stored state.

        Raises:
          UserError: not even one checkpoint fits.
        """
        processes.first_process_does(lambda: self._check_space(like))

    def _check_space(self, like: PyTree) -> None:
        needed, free = self.space(like)
        if free is None or free >= needed:
            return
        message = (
            f"{self._where} has {free / 2**20:,.1f} MiB free, more checkpoints with the one that "
            f"is written need {needed / 2**20:,.1f} MiB; free disk space, or use a smaller "
            "run.keep_checkpoints or another --workdir"
        )
        if free < file.bytes_needed(like):
            raise CheckpointError(message)
        self._warn(message)

    def space(self, like: PyTree) -> tuple[int, int | None]:
        """Return the bytes that further checkpoints need, and those that are free.

        Args:
          like: shapes and dtypes of the stored state.

        Returns:
          Both; the second is None in an object store.
        """
        # The oldest checkpoint is deleted only after the newest is complete.
        most = self._keep + self._keep_best + 1
        missing = most - len(steps_in(self._place)[: most - 1])
        return missing * file.bytes_needed(like), self._place.free_bytes()

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
        if len(self._failures) > 1:
            raise self._write_error()
        about, arrays = file.described(progress, plan), file.on_host(state)
        self._start(lambda: self._write(about, arrays, replace))

    def wait(self) -> None:
        """Wait until the newest save is on disk, with one retry after a failure.

        Also delete what a process left that was killed after its last save.

        Raises:
          CheckpointError: the checkpoint could not be written.
        """
        self._finish_save()
        if self._newest is not None:
            self._start(self._newest)
            self._finish_save()
        if self._newest is not None:
            raise self._write_error()
        if warning := self._prune():
            self._warn(warning)

    def newest_path(self, until: int) -> str | None:
        """Return the newest checkpoint of at most ``until`` steps; each process calls this."""
        self._finish_save()
        return self._path_until(until, steps_in(self._place))

    def rollback_path(self, until: int) -> str | None:
        """Return the checkpoint to which a rollback returns; each process calls this.

        It is the newest of at most ``until`` steps that an uninterrupted run has too.
        """
        self._finish_save()
        return self._path_until(until, self._regular() if jax.process_index() == 0 else ())

    def _path_until(self, until: int, steps: Iterable[int]) -> str | None:
        step = processes.from_first_process(next((s for s in steps if s <= until), None))
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

        Process 0 chooses it; the other processes read the same step. Process 0 reports corrupt
        checkpoints with the reason and renames them ``STEP.safetensors.corrupt``, unless read-only.

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
        # After an extension, a rollback may return to a checkpoint from before it.
        extends = self._extends or until is not None
        chosen = processes.first_process_does(
            lambda: self._newest_valid(plan, like, until, extends=extends)
        )
        step = processes.from_first_process(chosen and chosen.step)

        def same() -> Stored | None:
            if step is None:
                # The directory of a different host may have checkpoints that process 0 lacks.
                if has_checkpoints(self._place):
                    raise self._not_shared()
                return None
            try:
                return chosen or self.read(step, plan, like, extends=extends)
            except FileNotFoundError:
                raise self._not_shared() from None
            except (Rejected, OSError) as error:
                raise CheckpointError(
                    f"checkpoint {self.path(step)} is valid on process 0, but not here: {error}; "
                    "check the disk and the network of this host"
                ) from error

        return processes.each_process_does(same)

    def _newest_valid(
        self, plan: Plan, like: PyTree, until: int | None, *, extends: bool
    ) -> Stored | None:
        """Return the newest valid checkpoint, on process 0; see `newest`."""
        steps = steps_in(self._place)
        if until is not None:
            steps = [step for step in self._regular() if step <= until]
        for step in steps:
            try:
                return self.read(step, plan, like, extends=extends)
            except FileNotFoundError:
                reason = "it was deleted"  # by a run, while this only reads
            except (Rejected, OSError) as error:
                reason = str(error)
            self._reject(step, reason)
        if has_checkpoints(self._place):
            other = "use another --workdir"
            if not self._read_only:
                other = "start a new run with --resume=never"
            raise CheckpointError(
                f"no checkpoint in {self._where} is valid; repair one and restore its name, or "
                f"{other}"
            )
        return None

    def read(self, step: int, plan: Plan, like: PyTree, *, extends: bool = False) -> Stored:
        """Read and verify a checkpoint: every byte of the file, then what it is of.

        Raises:
          FileNotFoundError: it was deleted.
          Rejected: it is damaged, or not of this program.
          CheckpointError: its mathematics, dataset or version differs from this run.
        """
        path = self.path(step)
        try:
            about, arrays = file.decode(self._place.read(path_of(step)))
            if about.progress.step != step:
                raise Rejected(f"its manifest is that of step {about.progress.step}")
            trains = not self._read_only
            others, schedule = _compared(path, about, plan, extends=extends, trains=trains)
            return Stored(about.progress, file.as_tree(arrays, like), others, schedule)
        except OtherVersion as error:
            raise CheckpointError(
                f"checkpoint {path} is from a different version: {error}; start a new run with "
                "--resume=never"
            ) from error

    def wait_before_exit(self, seconds: float = 20.0) -> None:
        """Wait a limited time for the save in progress before the process exits early."""
        if self._saving is not None:
            with contextlib.suppress(TimeoutError):
                self._saving.exception(seconds)

    def close(self) -> None:
        """Wait for the save in progress, and stop the thread."""
        self._finish_save()
        self._thread.shutdown()

    def _start(self, save: Callable[[], str]) -> None:
        self._newest = save
        self._saving = self._thread.submit(save)

    def _finish_save(self) -> None:
        """Wait for the save in progress, if any, and warn if it failed."""
        if self._saving is None:
            return
        saving, self._saving = self._saving, None
        error = saving.exception()
        if error is None:
            self._failures, self._newest = [], None  # frees the copy of the state
            warning = saving.result()
        else:
            self._failures.append(one_line(error))
            warning = f"a checkpoint could not be written: {one_line(error)}"
        if warning:
            self._warn(warning)

    def _write(self, about: Manifest, arrays: Mapping[str, np.ndarray], replace: bool) -> str:
        """Write a checkpoint and delete old ones, in the thread; return a warning or ''."""
        step = about.progress.step
        if step in steps_in(self._place):
            try:
                manifest_of(self._place, step)
            except (Rejected, OtherVersion):  # it is not replaced
                self._set_aside(step)
            else:
                if not replace:
                    return ""
        self._place.keep_logs()
        self._place.write(path_of(step), file.encode(about, arrays))
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
            if len(steps_in(self._place)) <= self._keep:
                return ""  # without reading manifests
            known = progresses(self._place)
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
        return [
            step for step in steps_in(self._place) if step not in known or not known[step].for_stop
        ]

    def _write_error(self) -> CheckpointError:
        newest = self.latest_step()
        kept = "no checkpoint exists" if newest is None else f"the newest is {self.path(newest)}"
        return CheckpointError(
            f"checkpoints cannot be written to {self._where}: {self._failures[-1]}; {kept}; free "
            "disk space or fix permissions, then run the same command again"
        )

    def _reject(self, step: int, reason: str) -> None:
        message = f"checkpoint {self.path(step)} is not used: {reason}"
        if self._read_only:
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
            f"{steps_in(self._place)}; use a directory that all processes share"
        )


def _compared(
    path: str, about: Manifest, plan: Plan, *, extends: bool, trains: bool
) -> tuple[str, tuple[Difference, ...]]:
    """Check that a run may continue from a checkpoint: the same mathematics and the same data.

    Args:
      path: of the checkpoint, for messages.
      about: its manifest.
      plan: plan of the run that resumes from it.
      extends: whether the run may continue with another schedule.
      trains: whether the run trains; it compares evaluations, so the validation set must be equal.

    Returns:
      A table of options that differ without effect, '' if none; the options of the schedule that
      differ, of a run that is extended.

    Raises:
      CheckpointError: its mathematics or dataset differs from this run.
      OtherVersion: its options are those of a different version.
    """
    try:
        config = freeze(about.config)
    except Exception as error:
        raise OtherVersion(f"its options cannot be read ({one_line(error)})") from error
    found = option_differences(config, about.facts, plan)
    changes = [d for d in found if d.mathematics]
    schedule = tuple(d for d in changes if d.key.startswith("schedule."))
    if changes and not (extends and len(changes) == len(schedule)):
        extending = ""
        if len(changes) == len(schedule):
            extending = ", continue with the new schedule by --resume=extend"
        raise CheckpointError(
            f"checkpoint {path} has different options that change the mathematics; restore "
            f"them{extending}, use another --workdir, or start a new run with --resume=never\n"
            f"{table(found)}"
        )
    if schedule:
        _check_extension(about.progress, plan)
    then, now = norm_statistics(config, plan.steps), plan.norm_statistics
    if now not in (then, "precise"):  # precise ones are computed from data
        raise CheckpointError(
            f"norm.statistics={now}: checkpoint {path} has those of norm.statistics={then}; use "
            f"--config.norm.statistics={then}" + ("" if then == "precise" else ", or precise")
        )
    for name, what in _DATA.items():
        then, now = getattr(about.facts, name), getattr(plan.facts, name)
        compared = trains or name not in _VALIDATION
        if compared and then and now and then != now:  # an identity may be unknown
            raise CheckpointError(
                f"checkpoint {path} was trained with another dataset than "
                f"{plan.config.data.source}: {what} differ ({then} then, {now} now); restore the "
                "dataset or start a new run with --resume=never"
            )
    others = [d for d in found if d not in schedule]
    return table(others) if others else "", schedule


def option_differences(stored: Config, facts: Facts, plan: Plan) -> tuple[Difference, ...]:
    """Return the options in which a run differs from a checkpoint.

    A dataset with the same `Facts.content` is the same data in another place, such as an object
    store: its path does not change the mathematics. Nor does another spelling of the path of the
    initial weights.

    Args:
      stored: Options of the checkpoint.
      facts: Facts of the checkpoint.
      plan: Plan of the run.
    """
    same = set()
    kinds = {config.data.source.partition(":")[0] for config in (stored, plan.config)}
    identities = {(f.identity, f.validation_identity, f.content) for f in (facts, plan.facts)}
    if facts.content and len(kinds) == len(identities) == 1:
        same.add("data.source")
    weights = [config.model.init_from for config in (stored, plan.config)]
    if all(weights) and len({os.path.realpath(os.path.expanduser(path)) for path in weights}) == 1:
        same.add("model.init_from")
    return tuple(
        dataclasses.replace(each, mathematics=each.mathematics and each.key not in same)
        for each in differences(stored, plan.config)
    )


def _check_extension(done: Progress, plan: Plan) -> None:
    """Check that another schedule leaves the steps that are done where they were.

    Raises:
      CheckpointError: it ends before the checkpoint, or moves a stage that has begun.
    """
    length = plan.config.schedule.length
    if plan.steps < done.step:
        raise CheckpointError(
            f"schedule.length={length!r} ends at step {plan.steps:,}, and the run has done "
            f"{done.step:,}; use a longer one"
        )
    if plan.position(done.step) != done.samples:
        raise CheckpointError(
            f"schedule.length={length!r} moves the begin of a stage that the run has reached "
            f"(batch.stages={plan.config.batch.stages}); give the begins of the stages in epochs"
        )
