"""Checkpoint directories: atomic writes and verified reads.

A checkpoint is written to a temporary directory, the manifest last. When all files are on disk, the
directory is renamed to its step.
"""

import contextlib
import dataclasses
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from largebatch.checkpoint import arrays as stored_arrays
from largebatch.checkpoint import manifest
from largebatch.checkpoint.arrays import first_line
from largebatch.checkpoint.manifest import Manifest, OtherVersion, Progress, Rejected
from largebatch.config import Config, Facts, Plan, differences, freeze, norm_statistics, table
from largebatch.config.schema import Difference
from largebatch.errors import CheckpointError
from largebatch.files import is_still, read_json

PyTree = Any
SAVED = "saved.json"
"""The file of `note_saved`."""
_IDENTITIES = ("identity", "validation_identity", "content")
_STEP = re.compile(r"0|[1-9][0-9]{0,17}")
_SET_ASIDE = re.compile(rf"({_STEP.pattern})\.corrupt(-[0-9]+)?")
CHECKPOINT_NAME = re.compile(rf"{_STEP.pattern}|{_SET_ASIDE.pattern}")
"""Name of a checkpoint's directory."""
_LEFTOVER = re.compile(rf"\.({_STEP.pattern})\.(partial|deleting)")
_REPLACED = re.compile(rf"\.({_STEP.pattern})\.replaced")


@dataclasses.dataclass(frozen=True)
class Stored:
    """A verified checkpoint."""

    progress: Progress
    state: PyTree
    """NumPy arrays in the tree of the stored state."""
    table: str
    """Table of options that differ from this run without effect on the mathematics; '' if none."""
    schedule: tuple[Difference, ...] = ()
    """Options of the schedule that differ, of a run that is extended."""

    @property
    def step(self) -> int:
        """Number of completed steps."""
        return self.progress.step


def numbered(directory: Path) -> list[int]:
    """Return the steps of all directories with the name of a checkpoint, newest first."""
    found = (path for path in directory.glob("*") if _STEP.fullmatch(path.name) and path.is_dir())
    return sorted((int(path.name) for path in found), reverse=True)


def complete(directory: Path) -> list[int]:
    """Return the steps of all checkpoints with a manifest, newest first, without verification."""
    return [s for s in numbered(directory) if is_complete(directory / str(s))]


def regular(directory: Path) -> list[int]:
    """Return the steps of the checkpoints that an uninterrupted run has too, newest first.

    Without verification; one whose manifest cannot be read counts, so that it is reported.
    """
    return [step for step in complete(directory) if not _is_for_stop(directory / str(step))]


def _is_for_stop(path: Path) -> bool:
    with contextlib.suppress(Rejected, OtherVersion):
        return bool(read_manifest(path).progress.for_stop)
    return False


def is_complete(path: Path) -> bool:
    """Return whether a directory holds a checkpoint with its manifest, without verification."""
    return (path / manifest.NAME).is_file()


def foreign(directory: Path) -> list[str]:
    """Return the names of what has the name of a checkpoint, but is not of this program.

    Other programs name their checkpoints by the step too. They are never renamed or deleted.
    """
    named = (path for path in directory.glob("*") if _STEP.fullmatch(path.name))
    return sorted(path.name for path in named if not is_own(path))


def own_entries(directory: Path) -> list[Path]:
    """Return what this program has written into a directory of checkpoints."""
    known = (_STEP, _SET_ASIDE, _LEFTOVER, _REPLACED)
    named = (p for p in directory.glob("*") if any(name.fullmatch(p.name) for name in known))
    return sorted(path for path in named if is_own(path))


def is_own(path: Path) -> bool:
    """Return whether a directory is a checkpoint of this program, complete, damaged or unfinished.

    Only such directories are ever renamed, moved or deleted.
    """
    if path.is_symlink() or not path.is_dir():
        return False
    names = {p.name for p in path.iterdir() if not p.name.startswith(".")}
    if names <= {manifest.NAME, stored_arrays.FOLDER}:
        return True
    if names == {path.name}:  # a copy into itself
        return is_own(path / path.name)
    try:  # with further files, such as the user's notes
        read_manifest(path)
    except (Rejected, OtherVersion):
        return False
    return True


def best(directory: Path) -> Progress | None:
    """Return the progress of the checkpoint of the greatest validation top-1 accuracy.

    The manifests decide; the arrays are not verified. Of equal ones, the earliest is the best.

    Returns:
      None if no checkpoint has been evaluated.
    """
    found = []
    for step in complete(directory):
        with contextlib.suppress(Rejected, OtherVersion):
            found.append(read_manifest(directory / str(step)).progress)
    evaluated = [p for p in found if p.validation_top1 >= 0]
    return max(evaluated, key=lambda p: (p.validation_top1, -p.step), default=None)


def has_checkpoints(directory: Path) -> bool:
    """Return whether there is a checkpoint, including corrupt ones."""
    known = (_STEP, _SET_ASIDE)
    return any(p.fullmatch(path.name) for path in directory.glob("*") for p in known)


def clear(directory: Path) -> None:
    """Create the directory, and remove incomplete writes and deletions of a killed process.

    Raises:
      CheckpointError: the directory cannot be created or cleared.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for path in directory.iterdir():
            if not is_own(path):
                continue
            if (match := _REPLACED.fullmatch(path.name)) and not (directory / match[1]).exists():
                path.rename(directory / match[1])  # killed before the replacement was renamed
            elif match or _LEFTOVER.fullmatch(path.name):
                shutil.rmtree(path)
    except OSError as error:
        raise CheckpointError(
            f"{directory} cannot be written to ({error}); check its permissions"
        ) from error


def check_space(directory: Path, needed: int, keep: int, *, keep_best: bool = False) -> str:
    """Check the free disk space for checkpoints.

    Args:
      directory: directory of all checkpoints.
      needed: bytes of one checkpoint.
      keep: number of newest checkpoints to keep.
      keep_best: whether the best one is also kept.

    Returns:
      A warning if not all of them fit, otherwise ''.

    Raises:
      CheckpointError: not even one checkpoint fits.
    """
    free = shutil.disk_usage(directory).free
    sizes = f"one needs {mebibytes(needed)}, {mebibytes(free)} are free"
    if free < needed:
        raise CheckpointError(
            f"no checkpoint fits into {directory}: {sizes}; free disk space, or use another "
            "--workdir"
        )
    # The oldest checkpoint is deleted only after the newest is complete.
    most = keep + keep_best
    missing = 1 + most - len(complete(directory)[:most])
    if free >= needed * missing:
        return ""
    also = ", the best one" if keep_best else ""
    return (
        f"{directory} has no space for run.keep_checkpoints={keep} checkpoints{also} and one more "
        f"during a write: {sizes}; free disk space, or use a smaller run.keep_checkpoints"
    )


def write(directory: Path, about: Manifest, arrays: dict[str, np.ndarray]) -> None:
    """Write a checkpoint; a failed write leaves nothing behind.

    An existing checkpoint of the same step is renamed until the new one is complete, so that a
    killed process leaves one of the two.

    Args:
      directory: directory of all checkpoints.
      about: manifest without ``arrays`` and ``files``.
      arrays: arrays by path in the state.

    Raises:
      Exception: the write fails; any type is possible.
    """
    step = about.progress.step
    partial = directory / f".{step}.partial"
    target, replaced = directory / str(step), directory / f".{step}.replaced"
    for path in (partial, target, replaced):
        if os.path.lexists(path) and not is_own(path):
            raise FileExistsError(f"{path} is not of this program, and is not replaced")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        ours = partial.stat()
        written = stored_arrays.write(partial, arrays)
        if not is_still(partial, ours):
            # Orbax makes a directory again that was removed or renamed under it.
            shutil.rmtree(partial, ignore_errors=True)
            directory.rmdir()  # an error if it holds more
            raise FileNotFoundError(f"{directory} was removed or renamed")
        with (partial / manifest.NAME).open("xb") as stream:
            stream.write(manifest.encode(dataclasses.replace(about, **written)))
            stream.flush()
            os.fsync(stream.fileno())
        stored_arrays.fsync_directory(partial)
        if target.exists():
            target.rename(replaced)
        partial.rename(target)
        stored_arrays.fsync_directory(directory)
        shutil.rmtree(replaced, ignore_errors=True)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def note_saved(directory: Path, step: int) -> None:
    """Note beside a directory of checkpoints that it holds one; see `was_saved`."""
    # The checkpoint is complete without it. A run directory that was removed meanwhile must not
    # appear again, so this creates no directory.
    with contextlib.suppress(OSError):
        note = directory.parent / f".{SAVED}.tmp"
        note.write_text(json.dumps({"step": step}))
        note.replace(directory.parent / SAVED)


def was_saved(directory: Path) -> int | None:
    """Return the step of the newest checkpoint that a run has saved; None if it saved none.

    The note is beside the directory, which may be missing because its disk is not mounted.
    """
    try:
        return int(read_json(directory.parent / SAVED)["step"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def prune(directory: Path, keep: int, *, keep_best: bool = False) -> None:
    """Delete all complete checkpoints except the newest ``keep`` and, if asked for, the best.

    A checkpoint that only a stop has added does not count: it is kept while it is the newest, so
    that a rollback finds the same checkpoints as in an uninterrupted run.

    Raises:
      OSError: a checkpoint cannot be deleted.
    """
    steps = complete(directory)
    if len(steps) <= keep:
        return
    kept = {steps[0], *regular(directory)[:keep]}
    if keep_best and (evaluated := best(directory)) is not None:
        kept.add(evaluated.step)
    for step in steps:
        if step in kept or not is_own(directory / str(step)):
            continue
        leaving = directory / f".{step}.deleting"
        (directory / str(step)).rename(leaving)
        shutil.rmtree(leaving)


def mark_corrupt(path: Path) -> Path:
    """Rename a corrupt checkpoint to ``STEP.corrupt`` and return the new path.

    Raises:
      OSError: it cannot be renamed.
    """
    target, number = path.with_name(f"{path.name}.corrupt"), 1
    while target.exists():
        number += 1
        target = path.with_name(f"{path.name}.corrupt-{number}")
    return path.rename(target)


def read(
    path: Path, plan: Plan, like: PyTree, *, extends: bool = False, trains: bool = True
) -> Stored:
    """Read and verify a checkpoint.

    Args:
      path: directory of the checkpoint.
      plan: plan of the run that resumes from it.
      like: shapes and dtypes of the stored state.
      extends: whether the run may continue with another schedule.
      trains: whether the run trains, so that its validation set must be the same.

    Raises:
      Rejected: the checkpoint is corrupt or incomplete.
      CheckpointError: its mathematics, dataset or version differs from this run.
    """
    try:
        about = read_manifest(path)
        if str(about.progress.step) != path.name:
            raise Rejected(f"the manifest is that of step {about.progress.step}")
        try:
            config = freeze(about.config)
        except Exception as error:
            raise OtherVersion(f"its options cannot be read ({first_line(error)})") from error
        found = option_differences(config, about.facts, plan)
        schedule = tuple(d for d in found if d.mathematics and d.key.startswith("schedule."))
        changes = [d for d in found if d.mathematics]
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
        _check_statistics(path, config, plan)
        _check_data(path, about, plan, trains=trains)
        state = stored_arrays.read(path, about, like)
    except OtherVersion as error:
        raise CheckpointError(
            f"checkpoint {path} is from a different version: {error}; start a new run with "
            "--resume=never"
        ) from error
    others = [d for d in found if d not in schedule]
    return Stored(about.progress, state, table(others) if others else "", schedule)


def read_manifest(path: Path) -> Manifest:
    """Read the manifest of a checkpoint.

    Raises:
      Rejected: the checkpoint is incomplete or the manifest is invalid.
      OtherVersion: a different version of this program wrote it.
    """
    file = path / manifest.NAME
    if not file.exists() and (path / "_CHECKPOINT_METADATA").is_file():
        raise OtherVersion(f"its format is 2 or older, expected {manifest.FORMAT}")
    try:
        if not file.is_file() or file.is_symlink():
            raise Rejected(f"it has no {manifest.NAME}")
        with file.open("rb") as stream:
            return manifest.decode(stream.read(manifest.LARGEST + 1))
    except OSError as error:
        raise Rejected(f"{manifest.NAME} cannot be read ({error})") from error


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
    sources = [config.data.source.partition(":")[0] for config in (stored, plan.config)]
    identities = [tuple(getattr(f, each) for each in _IDENTITIES) for f in (facts, plan.facts)]
    if facts.content and sources[0] == sources[1] and identities[0] == identities[1]:
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


def _check_statistics(path: Path, config: Config, plan: Plan) -> None:
    """Check that the checkpoint has the requested BatchNorm statistics, or can recompute them."""
    stored, asked = norm_statistics(config, plan.steps), plan.norm_statistics
    if asked not in (stored, "precise"):
        raise CheckpointError(
            f"norm.statistics={asked}: checkpoint {path} holds statistics of norm.statistics="
            f"{stored}; use --config.norm.statistics={stored}"
            + ("" if stored == "precise" else ", or precise, which recomputes them from data")
        )


def _check_data(path: Path, about: Manifest, plan: Plan, *, trains: bool) -> None:
    """Check that the run has the dataset of the checkpoint.

    A training compares its evaluations, so the validation set must be the same too.
    """
    for name in ("train_examples", "classes", "image_shape") + ("validation_examples",) * trains:
        then, now = getattr(about.facts, name), getattr(plan.facts, name)
        if then != now:
            raise CheckpointError(
                f"checkpoint {path}: expected a dataset with {name}={then}, got {now}; restore the "
                "dataset or start a new run with --resume=never"
            )
    splits = {"training set": "identity"}
    if trains:
        splits["validation set"] = "validation_identity"
        if about.facts.validation_identity:  # an earlier version hashed the content differently
            splits["content"] = "content"
    for what, name in splits.items():
        then, now = getattr(about.facts, name), getattr(plan.facts, name)
        if then and now not in (0, then):
            raise CheckpointError(
                f"checkpoint {path} was trained with a different {what} of "
                f"{plan.config.data.source}: the number of examples is equal, but "
                f"{'images or labels' if what == 'content' else 'names, classes or files'} differ; "
                "restore the dataset or start a new run with --resume=never"
            )


def mebibytes(count: int) -> str:
    """Format a number of bytes in MiB."""
    return f"{count / 2**20:,.1f} MiB"
