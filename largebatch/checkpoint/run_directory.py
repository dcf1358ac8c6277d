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

from largebatch.checkpoint import directories, lock
from largebatch.errors import UserError
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
    with remove_if_empty(workdir / _CHECKPOINTS), contextlib.ExitStack() as stack:
        locked = lock.hold(workdir, note=note, lost=watchdog.end)
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
        steps = max(directories.complete(workdir / _CHECKPOINTS), default=0)
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
    foreign = [f"{_CHECKPOINTS}/{name}" for name in directories.foreign(workdir / _CHECKPOINTS)]
    with contextlib.suppress(FileNotFoundError):
        try:
            own = isinstance(read_json(workdir / _CONFIG).get("config"), dict)
        except ValueError:
            own = False
        foreign += [] if own else [_CONFIG]
    if foreign:
        raise UserError(
            f"--workdir={workdir} holds {' and '.join(foreign[:3])} of another program, which "
            "is never moved or replaced; use another --workdir"
        )


def _archive(workdir: Path, *, always: bool) -> Path | None:
    """Move an earlier run to ``previous/N/``, if it is asked for or the run cannot be resumed."""
    checkpoints = workdir / _CHECKPOINTS
    names = set(os.listdir(workdir))
    if not (checkpoints.is_symlink() or directories.own_entries(checkpoints)):
        names.discard(_CHECKPOINTS)
    own = [workdir / name for name in own_names(names)]
    logs = workdir / "metrics.jsonl"
    trained = (
        logs.is_file() and logs.stat().st_size and not directories.has_checkpoints(checkpoints)
    )
    saved = directories.was_saved(checkpoints)
    if trained and saved is not None and not always:
        raise UserError(
            f"--workdir={workdir} is that of a run which saved checkpoint {saved:,}, but "
            f"{checkpoints} holds none; mount or restore it, or use --resume=never, which moves "
            f"the rest of that run to {_PREVIOUS}/ and starts a new one"
        )
    if not own or not (always or trained):
        return None
    previous = workdir / _PREVIOUS
    number = 1 + max((int(p.name) for p in previous.glob("*") if p.name.isdecimal()), default=0)
    target = previous / str(number)
    target.mkdir(parents=True)
    for path in own:
        if path != checkpoints or path.is_symlink() or not path.is_dir():
            path.rename(target / path.name)
            continue
        kept = target / path.name  # which may hold other programs' files
        kept.mkdir()
        for entry in directories.own_entries(path):
            entry.rename(kept / entry.name)
        with contextlib.suppress(OSError):  # not empty
            path.rmdir()
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
