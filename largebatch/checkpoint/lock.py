"""Lock of a run directory, which prevents that two processes write to it.

``WORKDIR/lock.json`` names the holder. The file is created exclusively and replaced by renames,
operations that network file systems support reliably. A holder on the same system is alive if its
process runs. A holder on a different host is alive if its heartbeat, a counter, changes during the
observation; the clocks of the hosts are not compared.

A process takes over a stale lock with token T by creating ``.lock.json.T`` first. This claim is a
lock of the same kind. Its holder may rename it to ``lock.json`` while that still has token T.
"""

import contextlib
import dataclasses
import errno
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from largebatch.checkpoint.lock_holder import (
    Holder,
    beating,
    content,
    is_here,
    lives,
    parse,
    taken,
    this_process,
)
from largebatch.errors import UserError
from largebatch.files import no_folder_reason, replacing

NAME = "lock.json"
EVERY_S = 5.0
"""Seconds between two heartbeats."""
PATIENCE_S = 20.0
"""Seconds without a heartbeat after which a lock of a different host is stale."""


@dataclasses.dataclass(frozen=True)
class _Found:
    """Content of a lock file."""

    token: str
    holder: Holder | None
    """None: the file is damaged or incomplete."""
    text: bytes
    age_s: float
    """Seconds since the last write, by the clock of this host; only for messages."""

    @property
    def description(self) -> str:
        """Description of the holder for messages."""
        return self.holder.description if self.holder else f"an unknown process ({NAME} is damaged)"


class _Held(Exception):
    """A living process holds the lock."""

    def __init__(self, found: _Found) -> None:
        self.found = found


@contextlib.contextmanager
def hold(
    workdir: Path,
    *,
    note: Callable[[str], None],
    lost: Callable[[str], None],
    every_s: float = EVERY_S,
    patience_s: float = PATIENCE_S,
) -> Iterator[None]:
    """Hold the lock of a run directory while the body runs; a missing directory is created.

    A killed process leaves its lock behind. The next process takes it over, at once on the same
    system, otherwise after ``patience_s`` without a heartbeat.

    Args:
      workdir: the directory.
      note: called with a message when this process waits for or takes over a stale lock.
      lost: called once, in a separate thread, if a different process took this lock.
      every_s: seconds between heartbeats.
      patience_s: several times ``every_s``, and equal for all processes.

    Raises:
      UserError: a different process holds the lock, or the directory cannot be written to.
    """
    path = workdir / NAME
    mine = this_process()
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        _take(path, mine, note, patience_s)
    except _Held as held:
        raise UserError(
            f"{workdir} is in use by {held.found.description}, heartbeat {held.found.age_s:.0f} s "
            "ago; use another --workdir, or stop that process"
        ) from None
    except OSError as error:
        raise UserError(
            f"--workdir={workdir} cannot be written to ({no_folder_reason(error)}); use "
            "another --workdir"
        ) from error

    def beat(ended: threading.Event) -> None:
        _beat(path, mine, ended, lost, every_s)

    try:
        with beating(beat, "largebatch-lock", patience_s):
            yield
    finally:
        with contextlib.suppress(OSError):
            found = _read(path)
            if found is not None and found.token == mine.token:
                path.unlink()


def _take(path: Path, mine: Holder, note: Callable[[str], None], patience_s: float) -> None:
    """Create the lock, or take over a stale lock.

    Raises:
      _Held: a live process holds the lock or is taking it over.
      OSError: the file cannot be created.
    """
    while True:
        if _create(path, mine):
            return
        found = _read(path)
        if found is None:
            continue
        why = _stale(path, found, note, patience_s)
        if not why:
            continue  # the holder has changed
        claim = path.with_name(f".{NAME}.{found.token}")
        _take(claim, mine, note, patience_s)
        # Only the holder of the claim replaces a lock with this token.
        now = _read(path)
        if now is not None and now.token == found.token:
            os.replace(claim, path)
            note(f"took over the lock of {path.parent} from {found.description}: {why}")
            return
        claim.unlink(missing_ok=True)


def _stale(path: Path, found: _Found, note: Callable[[str], None], patience_s: float) -> str:
    """Return why a lock is stale; '' if it is gone or has a new holder.

    Raises:
      _Held: the holder is alive.
    """
    holder = found.holder
    if holder and is_here(holder):
        if lives(holder):
            raise _Held(found)
        return "that process has ended"
    limit, noted = time.monotonic() + patience_s, False
    while time.monotonic() < limit:
        time.sleep(patience_s / 50)
        now = _read(path)
        if now is None or now.token != found.token:
            return ""
        if now.text != found.text:
            raise _Held(now)
        if not noted:
            noted = True
            note(
                f"{path.parent} is locked by {found.description}; taking it over if there is no "
                f"heartbeat within {patience_s:.0f} s"
            )
    return f"no heartbeat within {patience_s:.0f} s"


def _beat(
    path: Path,
    mine: Holder,
    ended: threading.Event,
    lost: Callable[[str], None],
    every_s: float,
) -> None:
    """Increment the heartbeat until the end, or until a different process has the lock."""
    while not ended.wait(every_s):
        # A failed read or write may succeed at the next heartbeat.
        with contextlib.suppress(OSError):
            found = _read(path)
            if found is not None and found.holder is not None and found.token != mine.token:
                lost(taken(found.description, path.parent))
                return
            mine = dataclasses.replace(mine, beat=mine.beat + 1)
            if found is None:  # deleted by hand
                _create(path, mine)
                continue
            with replacing(path) as stream:
                stream.write(content(mine))


def _create(path: Path, mine: Holder) -> bool:
    """Create the file unless it exists; return whether it is ours."""
    try:
        stream = path.open("xb", buffering=0)
    except FileExistsError:
        return False
    try:
        with stream:
            stream.write(content(mine))
    except OSError:  # for example a full disk: leave no empty lock
        path.unlink(missing_ok=True)
        raise
    found = _read(path)
    return found is not None and found.token == mine.token


def _read(path: Path) -> _Found | None:
    """Read a lock file; None if there is none."""
    try:
        with path.open("rb") as stream:
            about = os.fstat(stream.fileno())
            text = stream.read()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESTALE):  # the second: replaced while we read
            return None
        raise
    age_s = max(0.0, time.time() - about.st_mtime)
    holder = parse(text)
    if holder is not None:
        return _Found(holder.token, holder, text, age_s)
    # Inode and time of the write identify a damaged file.
    key = f"{about.st_ino} {about.st_mtime_ns} ".encode() + text
    return _Found(hashlib.blake2b(key, digest_size=16).hexdigest(), None, text, age_s)
