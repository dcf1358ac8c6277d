"""The lock of a working directory, so that two trainings never write into one.

``WORKDIR/lock.json`` says who holds it. It is made by exclusive creation, replaced by renames and
judged by reading alone, which is what a network file system can be trusted with. Whether its holder
still lives is looked up where it runs on this system; elsewhere its heartbeat, a counter, must move
while we watch, since the clocks of two hosts need not agree.

A stale lock of token T is taken over by whoever makes ``.lock.json.T`` first, which is itself a
lock of the same kind: the right to rename it over the lock, as long as that still has token T.
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

from largebatch.checkpoint.lock_holder import Holder, content, lives, parse, this_process
from largebatch.errors import UserError
from largebatch.files import no_folder_reason, replacing

NAME = "lock.json"
EVERY_S = 5.0
"""Seconds between two beats of the heartbeat."""
PATIENCE_S = 20.0
"""Seconds without a beat after which a holder on another host counts as gone."""


@dataclasses.dataclass(frozen=True)
class _Found:
    """A lock file as read."""

    token: str
    holder: Holder | None
    """None: damaged, or not written to its end yet."""
    text: bytes
    age_s: float
    """Since it was last written, by this host's clock: for messages only."""

    @property
    def words(self) -> str:
        """For messages."""
        return self.holder.words if self.holder else f"nobody can tell ({NAME} is damaged)"


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
    """Hold the lock of a working directory, which is made when absent, while the body runs.

    A process that is killed leaves its lock behind; the next one takes it over, at once on the same
    system, else after ``patience_s`` without a beat.

    Args:
      workdir: the directory.
      note: told when a stale lock is waited for or taken over.
      lost: told, once and by another thread, that another process has taken this lock.
      every_s: seconds between beats.
      patience_s: see above; several times ``every_s``, the same for all processes.

    Raises:
      UserError: another process holds it, or the directory cannot be written to.
    """
    path = workdir / NAME
    mine = this_process()
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        _take(path, mine, note, patience_s)
    except _Held as held:
        raise UserError(
            f"{workdir} is in use by {held.found.words}, heartbeat {held.found.age_s:.0f} s ago; "
            "give another --workdir, or stop that process"
        ) from None
    except OSError as error:
        raise UserError(
            f"--workdir={workdir} cannot be written to ({no_folder_reason(error)}); use "
            "another --workdir"
        ) from error
    ended = threading.Event()
    beating = threading.Thread(
        target=_beat, args=(path, mine, ended, lost, every_s), name="largebatch-lock", daemon=True
    )
    beating.start()
    try:
        yield
    finally:
        ended.set()
        beating.join(patience_s)  # it may be in a write that hangs
        with contextlib.suppress(OSError):
            found = _read(path)
            if found is not None and found.token == mine.token:
                path.unlink()


def _take(path: Path, mine: Holder, note: Callable[[str], None], patience_s: float) -> None:
    """Make the lock, or take it over where it is stale.

    Raises:
      _Held: a living process holds it or is taking it over.
      OSError: the file cannot be made.
    """
    while True:
        if _create(path, mine):
            return
        found = _read(path)
        if found is None:
            continue
        why = _stale(path, found, note, patience_s)
        if not why:
            continue  # it has changed hands
        claim = path.with_name(f".{NAME}.{found.token}")
        _take(claim, mine, note, patience_s)
        # As long as we have the claim nobody else replaces a lock of that token.
        now = _read(path)
        if now is not None and now.token == found.token:
            os.replace(claim, path)
            note(f"took over the lock of {path.parent} from {found.words}: {why}")
            return
        claim.unlink(missing_ok=True)


def _stale(path: Path, found: _Found, note: Callable[[str], None], patience_s: float) -> str:
    """Why a lock is stale; '' if it is gone, or another's by now.

    Raises:
      _Held: its holder lives.
    """
    here = this_process()
    holder = found.holder
    if holder and (holder.host, holder.system) == (here.host, here.system):
        if lives(holder):
            raise _Held(found)
        return "that process is gone"
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
                f"{path.parent} is locked by {found.words}; taking it over if there is no "
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
    """Move the heartbeat until the end, or until the lock is another's."""
    while not ended.wait(every_s):
        # What cannot be read or written now may be so at the next beat.
        with contextlib.suppress(OSError):
            found = _read(path)
            if found is not None and found.holder is not None and found.token != mine.token:
                lost(
                    f"the lock of {path.parent} was taken by {found.words}, which must have seen "
                    "no heartbeat of this process; two runs in one directory damage each other"
                )
                return
            mine = dataclasses.replace(mine, beat=mine.beat + 1)
            if found is None:  # deleted by hand
                _create(path, mine)
                continue
            with replacing(path) as stream:
                stream.write(content(mine))


def _create(path: Path, mine: Holder) -> bool:
    """Make the file unless there is one; whether it is ours."""
    try:
        stream = path.open("xb", buffering=0)
    except FileExistsError:
        return False
    try:
        with stream:
            stream.write(content(mine))
    except OSError:  # a full disk: leave no lock that says nothing
        path.unlink(missing_ok=True)
        raise
    found = _read(path)
    return found is not None and found.token == mine.token


def _read(path: Path) -> _Found | None:
    """What a lock file says; None if there is none."""
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
    # Told from another damaged one by where and when it was written.
    key = f"{about.st_ino} {about.st_mtime_ns} ".encode() + text
    return _Found(hashlib.blake2b(key, digest_size=16).hexdigest(), None, text, age_s)
