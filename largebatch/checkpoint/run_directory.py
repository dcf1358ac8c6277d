"""The run directory: lock, creation, and archiving of an earlier run."""

import contextlib
import dataclasses
import errno
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import jax

from largebatch.checkpoint import lock
from largebatch.checkpoint.checkpoints import has_checkpoints, steps_in
from largebatch.checkpoint.place import LocalPlace
from largebatch.errors import CheckpointError, UserError
from largebatch.fault_tolerance import Watchdog
from largebatch.files import no_folder_reason, read_json
from largebatch.parallel import processes
from largebatch.tracking import Summary
from largebatch.tracking.summary import Status

CHECKPOINTS, PREVIOUS = "checkpoints", "previous"
_CONFIG, _SAVED = "config.json", "saved.json"
_OWN = re.compile(
    r"checkpoints/(0|[1-9][0-9]{0,17})\.safetensors(\.corrupt(-\d+)?)?|config\.json|"
    r"evaluation\.json|(events|layers|metrics)\.jsonl(\.part-\d{15})?|(profile|report|tensorboard|"
    r"wandb)(/.*)?|result_\d+\.txt|saved\.json|stacks_\d+\.txt|summary\.json|trackers\.json|"
    r"unreadable_\d+\.jsonl(\.part-\d{15})?"
)
"""Paths of the files that a run writes into its directory."""
_MARKS = {_CONFIG, "events.jsonl", "metrics.jsonl", _SAVED, "summary.json"}
"""Those which show that a directory is that of a run."""


def is_own(path: str) -> bool:
    """Return whether a path, relative to the run directory, is that of a file of a run."""
    return _OWN.fullmatch(path) is not None


def own_names(names: Iterable[str]) -> list[str]:
    """Return the names of the first level that a run has written; none if there is no run."""
    found = sorted(name for name in names if is_own(name))
    return found if _MARKS & set(found) else []


@contextlib.contextmanager
def reporting_full_disk(place: Path) -> Iterator[None]:
    """Replace the error of a log that cannot be written by one line.

    Raises:
      UserError: names the directory and the fix.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise
        raise UserError(
            f"the logs in {place} cannot be written ({error.strerror}); free space, then the same "
            "command resumes from the newest checkpoint"
        ) from error


@contextlib.contextmanager
def held(
    workdir: Path, watchdog: Watchdog, note: Callable[[str], None], began: float
) -> Iterator[None]:
    """Lock the directory while the body runs. Process 0 holds the lock; each process calls this.

    Args:
      workdir: the directory.
      watchdog: writes a summary and releases the lock if it ends the process.
      note: prints a message for the user.
      began: the ``time.perf_counter()`` at the start of this process.

    Raises:
      UserError: a different run holds the lock, or the directory cannot be created.
    """
    with remove_if_empty(workdir / CHECKPOINTS), contextlib.ExitStack() as stack:
        locked = lock.hold(workdir, note=note)
        processes.first_process_does(lambda: stack.enter_context(locked))
        if jax.process_index() == 0:
            watchdog.finally_do("lock", lambda *_: stack.close())
            watchdog.finally_do("summary", lambda status, _: _untrained(status, workdir, began))
        yield


def _untrained(status: Status, workdir: Path, began: float) -> None:
    """Write the summary of a process that did not train: the earlier summary with a new status.

    A complete run stays complete.
    """
    try:
        before = Summary(**json.loads((workdir / "summary.json").read_text()))
    except (OSError, ValueError, TypeError):  # absent, or from a different version
        steps = max(steps_in(LocalPlace(workdir / CHECKPOINTS)), default=0)
        wall_s = time.perf_counter() - began
        before = Summary(status, None, None, None, steps, 0, wall_s, 0.0, None)
    if before.status != "complete":
        dataclasses.replace(before, status=status).write(workdir)


def prepare(workdir: Path, *, archive: bool) -> Path | None:
    """Create ``workdir``, check that it is writable, and archive an earlier run if required.

    Args:
      workdir: the directory.
      archive: move the files of an earlier run to ``previous/N/``. A trained run that has never
        saved a checkpoint is always archived. Nothing is deleted, and nothing is moved that this
        program has not written.

    Returns:
      The archive of the earlier run, or None.

    Raises:
      UserError: the directory cannot be created or written to, is used by another program, or is
        that of a run whose checkpoints are missing.
    """
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=workdir):
            pass
        _check_not_foreign(workdir)
        return _archive(workdir, always=archive)
    except OSError as error:
        raise UserError(
            f"--workdir={workdir} cannot be written to ({no_folder_reason(error)}); use "
            "another --workdir"
        ) from error


def _check_not_foreign(workdir: Path) -> None:
    """Raise a UserError if another program uses names of a run in this directory."""
    try:
        own = isinstance(read_json(workdir / _CONFIG).get("config"), dict)
    except FileNotFoundError:
        return
    except ValueError:
        own = False
    if not own:
        raise UserError(
            f"--workdir={workdir} holds {_CONFIG} of another program, which is never moved or "
            "replaced; use another --workdir"
        )


def _check_format(workdir: Path, *, archive: bool) -> None:
    """Raise a CheckpointError if the checkpoints are directories, as of earlier versions."""
    for path in (workdir / CHECKPOINTS).glob("*/manifest.json"):
        if path.parent.name.isdecimal() and not archive:
            raise CheckpointError(
                f"{path.parent} is a checkpoint of an earlier version; export it with that version "
                "and continue by --init_from, or start a new run with --resume=never"
            )


def note_saved(workdir: Path, step: int) -> None:
    """Note in a run directory that a checkpoint was saved; see `_archive`.

    A run directory that was removed meanwhile must not appear again: this creates none.
    """
    with contextlib.suppress(OSError):  # the checkpoint is complete without it
        note = workdir / f".{_SAVED}.tmp"
        note.write_text(json.dumps({"step": step}))
        note.replace(workdir / _SAVED)


def _was_saved(workdir: Path) -> int | None:
    """Return the step of the newest checkpoint that a run has saved; None if it saved none."""
    try:
        return int(read_json(workdir / _SAVED)["step"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _archive(workdir: Path, *, always: bool) -> Path | None:
    """Move an earlier run to ``previous/N/``, if it is asked for or the run cannot be resumed."""
    _check_format(workdir, archive=always)
    place = LocalPlace(workdir / CHECKPOINTS)
    names = own_names(os.listdir(workdir))
    kept = [f"{CHECKPOINTS}/{name}" for name in place.names() if is_own(f"{CHECKPOINTS}/{name}")]
    logs = workdir / "metrics.jsonl"
    trained = logs.is_file() and logs.stat().st_size and not has_checkpoints(place)
    saved = _was_saved(workdir)
    if trained and saved is not None and not always:
        raise UserError(
            f"--workdir={workdir} is that of a run which saved checkpoint {saved:,}, but "
            f"{place.url} holds none; mount or restore it, or use --resume=never, which moves "
            f"the rest of that run to {PREVIOUS}/ and starts a new one"
        )
    if not (names or kept) or not (always or trained):
        return None
    previous = workdir / PREVIOUS
    number = 1 + max((int(p.name) for p in previous.glob("*") if p.name.isdecimal()), default=0)
    target = previous / str(number)
    target.mkdir(parents=True)
    if kept:
        (target / CHECKPOINTS).mkdir()
    for name in (*names, *kept):
        (workdir / name).rename(target / name)
    return target


@contextlib.contextmanager
def remove_if_empty(path: Path) -> Iterator[None]:
    """Remove ``path`` and its parents after the body if it created them and left them empty."""
    absent = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        yield
    finally:
        if jax.process_index() == 0:
            for folder in absent:
                with contextlib.suppress(OSError):  # not created, or not empty
                    folder.rmdir()
