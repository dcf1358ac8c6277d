"""The run directory: lock, creation, and archiving of an earlier run."""

import contextlib
import dataclasses
import errno
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jax

from largebatch.checkpoint import lock
from largebatch.checkpoint.directories import complete, has_checkpoints
from largebatch.errors import UserError
from largebatch.fault_tolerance import Watchdog
from largebatch.files import no_folder_reason
from largebatch.parallel import processes
from largebatch.tracking import Summary
from largebatch.tracking.summary import Status

OWN = (
    "checkpoints",
    "config.json",
    "evaluation.json",
    "events.jsonl",
    "layers.jsonl",
    "metrics.jsonl",
    "profile",
    "report",
    "result_*.txt",
    "stacks_*.txt",
    "summary.json",
    "tensorboard",
    "trackers.json",
    "unreadable_*.jsonl",
    "wandb",
)
"""Names and patterns of the files that a run writes into its directory."""


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
    with remove_if_empty(workdir / "checkpoints"), contextlib.ExitStack() as stack:
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
        steps = max(complete(workdir / "checkpoints"), default=0)
        wall_s = time.perf_counter() - began
        before = Summary(status, None, None, None, steps, 0, wall_s, 0.0, None)
    if before.status != "complete":
        dataclasses.replace(before, status=status).write(workdir)


def prepare(workdir: Path, *, archive: bool) -> Path | None:
    """Create ``workdir``, check that it is writable, and archive an earlier run if required.

    Args:
      workdir: the directory.
      archive: move the files of an earlier run to ``previous/N/``. A trained run without a
        checkpoint to resume from is always archived. No file is deleted.

    Returns:
      The archive of the earlier run, or None.

    Raises:
      UserError: the directory cannot be created or written to.
    """
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        probe = workdir / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(
            f"--workdir={workdir} cannot be written to ({no_folder_reason(error)}); use "
            "another --workdir"
        ) from error
    old = sorted(path for name in OWN for path in workdir.glob(name))
    trained = any(path.name == "metrics.jsonl" and path.stat().st_size for path in old)
    if not old or not (archive or (trained and not _has_checkpoint(workdir))):
        return None
    previous = workdir / "previous"
    number = 1 + max((int(p.name) for p in previous.glob("*") if p.name.isdigit()), default=0)
    target = previous / str(number)
    target.mkdir(parents=True)
    for path in old:
        path.rename(target / path.name)
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


def _has_checkpoint(workdir: Path) -> bool:
    return has_checkpoints(workdir / "checkpoints")
