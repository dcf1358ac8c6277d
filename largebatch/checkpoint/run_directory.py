"""The run directory of an attempt: lock, creation, logs in a store, archive of an earlier run."""

import contextlib
import dataclasses
import errno
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jax

from largebatch.checkpoint.checkpoints import FOLDER, has_checkpoints, steps_in
from largebatch.checkpoint.place import LocalPlace, Place, is_own
from largebatch.errors import CheckpointError, UserError
from largebatch.fault_tolerance import IDLE, Watchdog
from largebatch.files import no_folder_reason, read_json
from largebatch.object_store import StorageError
from largebatch.parallel import processes
from largebatch.tracking import Summary
from largebatch.tracking.summary import Status

_FOLDERS = ("profile", "report", "tensorboard", "wandb")
_MARKS = {"config.json", "events.jsonl", "metrics.jsonl", "saved.json", "summary.json"}
"""Files of which each shows that a directory is that of a run."""


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
    place: Place,
    *,
    trains: bool,
    watchdog: Watchdog = IDLE,
    note: Callable[[str], None],
    warn: Callable[[str], None],
    began: float,
) -> Iterator[None]:
    """Lock a run directory while the body runs, and keep the logs that it writes.

    Each process calls this. An evaluation or a dry run takes no lock, since it may share the
    directory with a training.

    Args:
      place: the directory.
      trains: process 0 holds the lock.
      watchdog: if it ends the process, it writes a summary, keeps the logs and releases the lock.
      note: prints a message for the user.
      warn: prints a warning of one line.
      began: the ``time.perf_counter()`` at the start of this process.

    Raises:
      UserError: another run holds the lock, or the directory cannot be created.
      StorageError: the store cannot be reached; the local copy of the logs is kept if it was not
        uploaded.
    """
    first = jax.process_index() == 0
    with contextlib.ExitStack() as stack:
        if trains:
            locked = place.lock(note=note, lost=watchdog.end)
            # Processes on CPUs connect within 30 s, and the lease of another host takes longer.
            processes.wait_for_all("lock")
            processes.first_process_does(lambda: stack.enter_context(locked))
        if trains and first:
            watchdog.finally_do("lock", lambda *_: stack.close())
            # The main thread may hang in an upload, and this process must end.
            watchdog.finally_do(
                "logs", lambda *_: watchdog.lost or place.keep_logs(last=True, patience_s=5)
            )
            watchdog.finally_do("summary", lambda status, _: _untrained(status, place, began))
        place.fetch_logs(changes_only=not trains)
        try:
            yield
        except BaseException:
            if first and (problem := _finish(place, watchdog, last=trains)):
                warn(problem)
            raise
        if first and (problem := _finish(place, watchdog, last=trains)):
            raise StorageError(problem)


def _untrained(status: Status, place: Place, began: float) -> None:
    """Write the summary of a process that did not train: the earlier summary with a new status.

    A complete run stays complete.
    """
    before = Summary.read(place.logs)
    if before is None:  # absent, or from a different version
        # Not in the store: the process may end because of it.
        steps = max(steps_in(LocalPlace(place.logs)), default=0)
        wall_s = time.perf_counter() - began
        before = Summary(status, None, None, None, steps, 0, wall_s, 0.0, None)
    if before.status != "complete":
        dataclasses.replace(before, status=status).write(place.logs)


def _finish(place: Place, watchdog: Watchdog, *, last: bool) -> str:
    """Upload what is left, unless another run has the directory now.

    Returns:
      Why the upload failed, and where the local copy was moved to; '' if it succeeded.
    """
    try:
        with watchdog.section("checkpoint"):
            if not watchdog.lost:
                place.keep_logs(last=last)
    except StorageError as error:
        kept = Path(tempfile.mkdtemp(prefix="largebatch-not-uploaded-"))
        place.logs.replace(kept)
        return f"{error}; the files of the run are in {kept}"
    return ""


def prepare(place: Place, *, archive: bool) -> str | None:
    """Create a run directory, check that it is writable, and archive an earlier run if required.

    Args:
      place: the directory.
      archive: move the files of an earlier run to ``previous/N/``. A trained run that has never
        saved a checkpoint is always archived. Nothing is deleted, and nothing is moved that this
        program has not written.

    Returns:
      The archive of the earlier run, or None.

    Raises:
      UserError: the directory cannot be created or written to, is used by another program, or is
        that of a run whose checkpoints are missing.
    """
    place.create()
    _check_not_foreign(place)
    if archive:
        return _archived(place)
    if has_checkpoints(place):
        return None
    _check_format(place)
    rows = place.logs / "metrics.jsonl"
    if not (rows.is_file() and rows.stat().st_size):
        return None
    if (saved := _saved_step(place)) is not None:
        raise UserError(
            f"--workdir={place.url} is that of a run which saved checkpoint {saved:,}, but "
            f"{place.url}/{FOLDER} holds none; mount or restore it, or use --resume=never, which "
            "moves the rest of that run to previous/ and starts a new one"
        )
    return _archived(place)


def note_saved(place: Place, step: int) -> None:
    """Note in the logs that a checkpoint was saved; see `prepare`.

    A run directory that was removed meanwhile must not appear again: this creates none.
    """
    with contextlib.suppress(OSError):  # the checkpoint is complete without it
        note = place.logs / ".saved.json.tmp"
        note.write_text(json.dumps({"step": step}))
        note.replace(place.logs / "saved.json")


def _saved_step(place: Place) -> int | None:
    """Return the step of the newest checkpoint that a run has saved; None if it saved none."""
    try:
        return int(read_json(place.logs / "saved.json")["step"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _check_not_foreign(place: Place) -> None:
    """Raise a UserError if another program uses names of a run in this directory."""
    try:
        own = isinstance(read_json(place.logs / "config.json").get("config"), dict)
    except FileNotFoundError:
        return
    except ValueError:
        own = False
    if not own:
        raise UserError(
            f"--workdir={place.url} holds config.json of another program, which is never moved or "
            "replaced; use another --workdir"
        )


def _check_format(place: Place) -> None:
    """Raise a CheckpointError if the checkpoints are directories, as of earlier versions."""
    for step in filter(str.isdecimal, place.folders(FOLDER)):
        if "manifest.json" in place.files(f"{FOLDER}/{step}"):
            raise CheckpointError(
                f"{place.url}/{FOLDER}/{step} is a checkpoint of an earlier version; export it "
                "with that version and continue by --init_from, or start a new run with "
                "--resume=never"
            )


def _archived(place: Place) -> str | None:
    """Move the files of an earlier run to ``previous/N/``; return the archive, None if no run."""
    files = place.files()
    kept = [f"{FOLDER}/{name}" for name in place.files(FOLDER)]
    if not (_MARKS & {*files} or any(map(is_own, kept))):
        return None
    numbers = [int(name) for name in place.folders("previous") if name.isdecimal()]
    target = f"previous/{1 + max(numbers, default=0)}"
    folders = [name for name in place.folders() if name in _FOLDERS]
    for path in [*filter(is_own, [*files, *kept]), *folders]:
        try:
            place.move(path, f"{target}/{path}")
        except OSError as error:
            raise CheckpointError(
                f"--workdir={place.url}: {path} cannot be moved to {target} "
                f"({no_folder_reason(error)}); use another --workdir"
            ) from error
        (place.logs / path).unlink(missing_ok=True)  # the local copy of a file in a store
    return f"{place.url}/{target}"
