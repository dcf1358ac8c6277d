"""Who holds a lock: a process, told from every other, and whether it still runs."""

import dataclasses
import json
import os
import re
import secrets
import socket
from datetime import UTC, datetime
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Holder:
    """A process that holds a lock, as its file says."""

    host: str
    system: str
    """Boot and process namespace: what a process id is valid in."""
    pid: int
    started: int | None
    """Clock ticks after boot at which the process started, so that a reused id is seen."""
    taken: str
    """UTC."""
    token: str
    beat: int = 0

    @property
    def words(self) -> str:
        """For messages."""
        return f"process {self.pid} on {self.host}, since {self.taken}"


def parse(text: bytes) -> Holder | None:
    """The holder that a file's bytes name; None if they are not what we write."""
    try:
        holder = Holder(**json.loads(text))
    except (ValueError, TypeError, RecursionError):
        return None
    words = (holder.host, holder.system, holder.taken, holder.token)
    valid = (
        all(isinstance(word, str) and word.isprintable() for word in words)
        and re.fullmatch("[0-9a-f]{32}", holder.token)  # it becomes a part of a file's name
        and isinstance(holder.pid, int)
        and holder.pid > 0
        and isinstance(holder.started, int | None)
    )
    return holder if valid else None


def content(holder: Holder) -> bytes:
    """The bytes of the file of a lock."""
    return json.dumps(dataclasses.asdict(holder), indent=2).encode() + b"\n"


def this_process() -> Holder:
    """This process, with a new token."""
    pid = os.getpid()
    return Holder(
        host=socket.gethostname(),
        system=_system(),
        pid=pid,
        started=state(pid)[1],
        taken=datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        token=secrets.token_hex(16),
    )


def _system() -> str:
    """The boot and the namespace in which process ids mean something; '' where unknown."""
    # Hosts may share a name, and containers on one host may share that and the boot.
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def state(pid: int) -> tuple[str, int | None]:
    """State and start time, in clock ticks after boot, of a process; ('', None) if unknown."""
    try:
        # The name in the second field may hold blanks and parentheses.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], int(fields[19])
    except (OSError, ValueError, IndexError):
        return "", None


def lives(holder: Holder) -> bool:
    """Whether the process of this system that took a lock still runs."""
    try:
        os.kill(holder.pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass  # another user's
    now, started = state(holder.pid)
    if now in ("Z", "X"):  # killed, but not waited for by its parent yet
        return False
    return started is None or holder.started is None or started == holder.started
