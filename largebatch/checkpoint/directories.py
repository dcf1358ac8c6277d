"""The directories of checkpoints: written whole or not at all, verified when read.

Everything is written under another name, the manifest last, and the directory is renamed to its
step when all of it is on the disk.
"""

import dataclasses
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
from largebatch.config import Config, Plan, differences, freeze, norm_statistics, table
from largebatch.errors import CheckpointError

PyTree = Any
_STEP = re.compile(r"0|[1-9][0-9]{0,17}")
_SET_ASIDE = re.compile(rf"({_STEP.pattern})\.corrupt(-[0-9]+)?")
_LEFTOVER = re.compile(rf"\.({_STEP.pattern})\.(partial|deleting)")
_REPLACED = re.compile(rf"\.({_STEP.pattern})\.replaced")


@dataclasses.dataclass(frozen=True)
class Stored:
    """A checkpoint that was read and verified."""

    progress: Progress
    state: PyTree
    """NumPy arrays, in the tree of the state as checkpoints hold it."""
    table: str
    """Options that differ from this run's without changing its mathematics; '' if none."""

    @property
    def step(self) -> int:
        """Steps done."""
        return self.progress.step


def numbered(directory: Path) -> list[int]:
    """Steps of the directories that have the name of a checkpoint, newest first."""
    found = (path for path in directory.glob("*") if _STEP.fullmatch(path.name) and path.is_dir())
    return sorted((int(path.name) for path in found), reverse=True)


def complete(directory: Path) -> list[int]:
    """Steps of those that have a manifest, newest first; none of them has been verified."""
    return [s for s in numbered(directory) if (directory / str(s) / manifest.NAME).is_file()]


def has_checkpoints(directory: Path) -> bool:
    """Whether there has been a checkpoint: also one that cannot be used."""
    known = (_STEP, _SET_ASIDE)
    return any(p.fullmatch(path.name) for path in directory.glob("*") for p in known)


def clear(directory: Path) -> None:
    """Make the directory, and remove what a killed process has left half written or deleted.

    Raises:
      CheckpointError: it cannot be made or cleared.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for path in directory.iterdir():
            if (match := _REPLACED.fullmatch(path.name)) and not (directory / match[1]).exists():
                path.rename(directory / match[1])  # killed before its successor had the name
            elif match or _LEFTOVER.fullmatch(path.name):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    except OSError as error:
        raise CheckpointError(
            f"{directory} cannot be written to ({error}); check its permissions"
        ) from error


def check_space(directory: Path, needed: int, keep: int) -> str:
    """See whether checkpoints will fit.

    Args:
      directory: of all checkpoints.
      needed: bytes of one.
      keep: how many of them are kept.

    Returns:
      A warning if they will not all fit, else ''.

    Raises:
      CheckpointError: there is no room for even one.
    """
    free = shutil.disk_usage(directory).free
    sizes = f"one needs {mebibytes(needed)}, {mebibytes(free)} are free"
    if free < needed:
        raise CheckpointError(
            f"no checkpoint fits into {directory}: {sizes}; free some, or give another --workdir"
        )
    # The oldest goes only when the newest is complete.
    missing = 1 + keep - len(complete(directory)[:keep])
    if free >= needed * missing:
        return ""
    return (
        f"{directory} will be full before run.keep_checkpoints={keep} are there, and one more "
        f"while it is written: {sizes}; free some, or keep fewer"
    )


def write(directory: Path, about: Manifest, arrays: dict[str, np.ndarray]) -> None:
    """Write a checkpoint; nothing is left of it when that fails.

    One of the same step that is there already is replaced: kept under another name until the new
    one is complete, so that a kill at any moment leaves one of the two.

    Args:
      directory: of all checkpoints.
      about: its manifest, but for ``arrays`` and ``files``.
      arrays: by path in the state.

    Raises:
      Exception: of any kind, when it fails.
    """
    step = about.progress.step
    partial = directory / f".{step}.partial"
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        written = stored_arrays.write(partial, arrays)
        with (partial / manifest.NAME).open("xb") as stream:
            stream.write(manifest.encode(dataclasses.replace(about, **written)))
            stream.flush()
            os.fsync(stream.fileno())
        stored_arrays.fsync_directory(partial)
        target, replaced = directory / str(step), directory / f".{step}.replaced"
        if target.exists():
            target.rename(replaced)
        partial.rename(target)
        stored_arrays.fsync_directory(directory)
        shutil.rmtree(replaced, ignore_errors=True)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def prune(directory: Path, keep: int) -> None:
    """Delete all complete checkpoints but the newest ``keep``.

    Raises:
      OSError: one cannot be deleted.
    """
    for step in complete(directory)[keep:]:
        leaving = directory / f".{step}.deleting"
        (directory / str(step)).rename(leaving)
        shutil.rmtree(leaving)


def set_aside(path: Path) -> Path:
    """Rename a checkpoint that cannot be used; returns its new place.

    Raises:
      OSError: it cannot be renamed.
    """
    target, number = path.with_name(f"{path.name}.corrupt"), 1
    while target.exists():
        number += 1
        target = path.with_name(f"{path.name}.corrupt-{number}")
    return path.rename(target)


def read(path: Path, plan: Plan, like: PyTree) -> Stored:
    """Read a checkpoint and verify all of it.

    Args:
      path: its directory.
      plan: what is to go on with it.
      like: shapes and types of the state as checkpoints hold it.

    Raises:
      Rejected: it is not as it was written.
      CheckpointError: its mathematics, data or version is another.
    """
    try:
        about = read_manifest(path)
        if str(about.progress.step) != path.name:
            raise Rejected(f"its manifest is that of step {about.progress.step}")
        try:
            config = freeze(about.config)
        except Exception as error:
            raise OtherVersion(f"its options cannot be read ({first_line(error)})") from error
        found = differences(config, plan.config)
        if any(d.mathematics for d in found):
            raise CheckpointError(
                f"checkpoint {path} is of a run with other mathematics; restore its options, "
                f"give another --workdir, or start a new run with --resume=never\n{table(found)}"
            )
        _check_statistics(path, config, plan)
        _check_data(path, about, plan)
        state = stored_arrays.read(path, about, like)
    except OtherVersion as error:
        raise CheckpointError(
            f"checkpoint {path} is of another version: {error}; start anew with --resume=never"
        ) from error
    return Stored(about.progress, state, table(found) if found else "")


def read_manifest(path: Path) -> Manifest:
    """What a checkpoint says of itself.

    Raises:
      Rejected: it is not whole.
      OtherVersion: it is of another version of this program.
    """
    file = path / manifest.NAME
    if not file.exists() and (path / "_CHECKPOINT_METADATA").is_file():
        raise OtherVersion(f"its format is 2 or older, this one reads {manifest.FORMAT}")
    try:
        if not file.is_file() or file.is_symlink():
            raise Rejected(f"it has no {manifest.NAME}")
        with file.open("rb") as stream:
            return manifest.decode(stream.read(manifest.LARGEST + 1))
    except OSError as error:
        raise Rejected(f"{manifest.NAME} cannot be read ({error})") from error


def _check_statistics(path: Path, config: Config, plan: Plan) -> None:
    """See that the BatchNorm statistics asked for are those stored, or can be computed anew."""
    stored, asked = norm_statistics(config, plan.steps), plan.norm_statistics
    if asked not in (stored, "precise"):
        raise CheckpointError(
            f"norm.statistics={asked}: checkpoint {path} holds statistics of norm.statistics="
            f"{stored}; use --config.norm.statistics={stored}"
            + ("" if stored == "precise" else ", or precise, which computes them from data")
        )


def _check_data(path: Path, about: Manifest, plan: Plan) -> None:
    for name in ("train_examples", "classes", "image_shape"):
        then, now = getattr(about.facts, name), getattr(plan.facts, name)
        if then != now:
            raise CheckpointError(
                f"checkpoint {path} was trained with {name}={then}, the data now has {now}; "
                "restore the data or start anew with --resume=never"
            )
    if about.facts.identity and plan.facts.identity not in (0, about.facts.identity):
        raise CheckpointError(
            f"checkpoint {path} was trained on other data than {plan.config.data.source} now "
            "holds: as many examples, but other names, classes or files; restore the data or "
            "start anew with --resume=never"
        )


def mebibytes(count: int) -> str:
    """Bytes, for people."""
    return f"{count / 2**20:,.1f} MiB"
