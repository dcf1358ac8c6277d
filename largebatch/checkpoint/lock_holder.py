"""Holder of a lock: a unique identification of a process, and whether it is alive."""

import contextlib
import dataclasses
import json
import os
import re
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Holder:
    """A process that holds a lock, as described in the lock file."""

    host: str
    system: str
    """Boot and process namespace in which the process id is valid."""
    pid: int
    started: int | None
    """Start of the process in clock ticks after boot, to detect a reused process id."""
    taken: str
    """Time in UTC at which the process took the lock."""
    token: str
    beat: int = 0

    @property
    def description(self) -> str:
        """Description of the process for messages."""
        return f"process {self.pid} on {self.host}, since {self.taken}"


def parse(text: bytes) -> Holder | None:
    """Parse the content of a lock file; None if it is invalid."""
    try:
        holder = Holder(**json.loads(text))
    except (ValueError, TypeError, RecursionError):
        return None
    words = (holder.host, holder.system, holder.taken, holder.token)
    valid = (
        all(isinstance(word, str) and word.isprintable() for word in words)
        and re.fullmatch("[0-9a-f]{32}", holder.token)  # part of a file name
        and isinstance(holder.pid, int)
        and holder.pid > 0
        and isinstance(holder.started, int | None)
    )
    return holder if valid else None


def content(holder: Holder) -> bytes:
    """Return the content of the lock file."""
    return json.dumps(dataclasses.asdict(holder), indent=2).encode() + b"\n"


def this_process() -> Holder:
    """Return this process as a holder, with a new token."""
    pid = os.getpid()
    return Holder(
        host=socket.gethostname(),
        system=_system(),
        pid=pid,
        started=state(pid)[1],
        taken=datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        token=secrets.token_hex(16),
    )


def is_here(holder: Holder) -> bool:
    """Return whether a holder is a process of this system, whose life can be seen."""
    here = this_process()
    return (holder.host, holder.system) == (here.host, here.system)


def taken(who: str, place: str | Path) -> str:
    """Return the message of a process that lost its lock."""
    return (
        f"{who} took the lock of {place}; it probably saw no heartbeat of this process; two runs "
        "in one directory damage each other"
    )


@contextlib.contextmanager
def beating(
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


def _system() -> str:
    """Return the boot and the namespace of process ids; '' if unknown."""
    # Hosts may have equal names; containers on one host may have equal names and the same boot.
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def state(pid: int) -> tuple[str, int | None]:
    """Return a process's state and start in clock ticks after boot; ('', None) if unknown."""
    try:
        # The name in the second field may contain spaces and parentheses.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], int(fields[19])
    except (OSError, ValueError, IndexError):
        return "", None


def lives(holder: Holder) -> bool:
    """Return whether a holder on this system is still running."""
    try:
        os.kill(holder.pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass  # a process of a different user
    now, started = state(holder.pid)
    if now in ("Z", "X"):  # killed, but its parent has not waited for it yet
        return False
    return started is None or holder.started is None or started == holder.started
