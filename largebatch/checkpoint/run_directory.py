"""The directory of a run: holding and making it, and putting an earlier run out of the way."""

import contextlib
import dataclasses
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
"""What a run writes into its directory: names, or patterns of names."""


@contextlib.contextmanager
def held(
    workdir: Path, watchdog: Watchdog, note: Callable[[str], None], began: float
) -> Iterator[None]:
    """Hold the directory against other trainings; process 0 does, for all, each of which calls it.

    Args:
      workdir: the directory.
      watchdog: leaves a summary behind and lets the lock go if it has to end the process.
      note: told what people should know.
      began: the ``time.perf_counter()`` at which this turn started.

    Raises:
      UserError: another training holds it, or it cannot be made.
    """
    with leaving_nothing_empty(workdir / "checkpoints"), contextlib.ExitStack() as stack:
        locked = lock.hold(workdir, note=note, lost=watchdog.end)
        processes.first_process_does(lambda: stack.enter_context(locked))
        if jax.process_index() == 0:
            watchdog.finally_do("lock", lambda *_: stack.close())
            watchdog.finally_do("summary", lambda status, _: _untrained(status, workdir, began))
        yield


def _untrained(status: Status, workdir: Path, began: float) -> None:
    """The summary of a turn that has not come to train: the one before, with another status.

    A complete run stays complete.
    """
    try:
        before = Summary(**json.loads((workdir / "summary.json").read_text()))
    except (OSError, ValueError, TypeError):  # none yet, or another version's
        steps = max(complete(workdir / "checkpoints"), default=0)
        wall_s = time.perf_counter() - began
        before = Summary(status, None, None, None, steps, 0, wall_s, 0.0, None)
    if before.status != "complete":
        dataclasses.replace(before, status=status).write(workdir)


def prepare(workdir: Path, *, anew: bool) -> Path | None:
    """Make ``workdir`` and see that it can be written to.

    Args:
      workdir: the directory.
      anew: move what an earlier run left there to ``previous/N/``. Without a checkpoint to resume
        from, that is done in any case. Nothing is deleted, and nothing else is touched.

    Returns:
      Where the earlier run went, or None.

    Raises:
      UserError: it cannot be made or written to.
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
    if not old or not (anew or (trained and not _has_checkpoint(workdir))):
        return None
    kept = workdir / "previous"
    number = 1 + max((int(p.name) for p in kept.glob("*") if p.name.isdigit()), default=0)
    target = kept / str(number)
    target.mkdir(parents=True)
    for path in old:
        path.rename(target / path.name)
    return target


@contextlib.contextmanager
def leaving_nothing_empty(path: Path) -> Iterator[None]:
    """Folders that the body makes on the way to ``path``, and leaves empty, are removed again."""
    absent = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        yield
    finally:
        if jax.process_index() == 0:
            for folder in absent:
                with contextlib.suppress(OSError):  # never made, or no longer empty
                    folder.rmdir()


def _has_checkpoint(workdir: Path) -> bool:
    return has_checkpoints(workdir / "checkpoints")
