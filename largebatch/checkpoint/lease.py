"""Lock of a run directory in an object store, by conditional writes.

``URL/lock.json`` names the holder, as on a disk. It is created only if it is
absent, and replaced only if it is unchanged, so that of two processes one succeeds. The heartbeat
of a living holder replaces the object, which then has another version.
"""

import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Callable, Iterator

from largebatch.checkpoint.lock import NAME, Holder, content, parse, state_of, this_process
from largebatch.errors import UserError
from largebatch.object_store import Bucket, StorageError, Version

EVERY_S = 10.0
"""Seconds between two heartbeats."""
PATIENCE_S = 45.0
"""Seconds without a heartbeat after which a lock of a different host is stale."""


@contextlib.contextmanager
def hold(
    bucket: Bucket,
    *,
    note: Callable[[str], None],
    lost: Callable[[str], None],
    every_s: float = EVERY_S,
    patience_s: float = PATIENCE_S,
) -> Iterator[None]:
    """Hold the lock of a run directory while the body runs.

    A killed process leaves its lock behind. The next process takes it over, at once on the same
    system, otherwise after ``patience_s`` without a heartbeat.

    Args:
      bucket: the run directory.
      note: called with a message when this process waits for or takes over a stale lock.
      lost: called once, in a separate thread, if a different process took this lock.
      every_s: seconds between heartbeats.
      patience_s: several times ``every_s``, and equal for all processes.

    Raises:
      UserError: a different process holds the lock.
      StorageError: the store cannot be reached or written to.
    """
    mine = this_process()
    lease = _Lease(bucket, mine, _take(bucket, mine, note, patience_s))
    try:
        with _beating(lambda end: lease.beat(end, lost, every_s), "largebatch-lease", patience_s):
            yield
    finally:
        with contextlib.suppress(StorageError):
            lease.release()


class _Lease:
    """A lock that this process holds."""

    def __init__(self, bucket: Bucket, mine: Holder, version: Version) -> None:
        self.bucket = bucket
        self.mine = mine
        self.version = version

    def beat(self, ended: threading.Event, lost: Callable[[str], None], every_s: float) -> None:
        """Increment the heartbeat until the end, or until a different process has the lock."""
        while not ended.wait(every_s):
            # A failed request may succeed at the next heartbeat.
            with contextlib.suppress(StorageError):
                self.mine = dataclasses.replace(self.mine, beat=self.mine.beat + 1)
                version = self.bucket.swap(NAME, content(self.mine), self.version)
                if version is None and (found := self.bucket.read(NAME)) is not None:
                    holder = parse(found[0])
                    if holder is None or holder.token != self.mine.token:
                        lost(
                            f"{_described(holder)} took the lock of {self.bucket.url}; it probably "
                            "saw no heartbeat of this process; two runs in one directory damage "
                            "each other"
                        )
                        return
                    version = found[1]  # our own write, whose answer was lost
                if version is None:  # deleted by hand
                    version = self.bucket.swap(NAME, content(self.mine), None)
                self.version = version or self.version

    def release(self) -> None:
        """Delete the lock, unless a different process has it."""
        found = self.bucket.read(NAME)
        holder = parse(found[0]) if found else None
        if holder is not None and holder.token == self.mine.token:
            self.bucket.delete(NAME)


def _described(holder: Holder | None) -> str:
    return holder.description if holder else "an unknown process"


def _take(bucket: Bucket, mine: Holder, note: Callable[[str], None], patience_s: float) -> Version:
    """Create the lock, or take over a stale lock; return its version."""
    while True:
        if (version := bucket.swap(NAME, content(mine), None)) is not None:
            return version
        found = bucket.read(NAME)
        if found is None:
            continue
        holder = parse(found[0])
        if holder is not None and holder.token == mine.token:  # written, and the answer lost
            return found[1]
        why = _stale(bucket, holder, found[1], note, patience_s)
        if why and (version := bucket.swap(NAME, content(mine), found[1])):
            note(f"took over the lock of {bucket.url} from {_described(holder)}: {why}")
            return version


def _stale(
    bucket: Bucket,
    holder: Holder | None,
    version: Version,
    note: Callable[[str], None],
    patience_s: float,
) -> str:
    """Return why a lock is stale; '' if it is gone.

    Raises:
      UserError: the holder is alive.
    """
    in_use = UserError(
        f"{bucket.url} is in use by {_described(holder)}; use another --workdir, or stop that "
        "process"
    )
    if holder and _is_here(holder):
        if _lives(holder):
            raise in_use
        return "that process has ended"
    note(f"{bucket.url} is locked; taking it over without a heartbeat within {patience_s:.0f} s")
    limit = time.monotonic() + patience_s
    while time.monotonic() < limit:
        time.sleep(patience_s / 20)
        now = bucket.read(NAME)
        if now is None:
            return ""
        if now[1] != version:
            raise in_use
    return f"no heartbeat within {patience_s:.0f} s"


def _is_here(holder: Holder) -> bool:
    """Return whether a holder is a process of this system, whose life can be seen."""
    here = this_process()
    return (holder.host, holder.system) == (here.host, here.system)


def _lives(holder: Holder) -> bool:
    """Return whether a holder on this system is still running."""
    try:
        os.kill(holder.pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass  # a process of a different user
    now, started = state_of(holder.pid)
    if now in ("Z", "X"):  # killed, but its parent has not waited for it yet
        return False
    return started is None or holder.started is None or started == holder.started


@contextlib.contextmanager
def _beating(
    beat: Callable[[threading.Event], None], name: str, patience_s: float
) -> Iterator[None]:
    """Run a heartbeat in a thread while the body runs.

    Args:
      beat: returns soon after the event is set.
      name: of the thread.
      patience_s: most seconds to wait for the thread, which may hang in a write.
    """
    ended = threading.Event()
    thread = threading.Thread(target=beat, args=(ended,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(patience_s)
