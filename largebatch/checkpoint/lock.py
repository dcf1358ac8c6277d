"""Lock of a run directory on a disk, which prevents that two processes write to it.

``WORKDIR/lock.json`` names the holder for messages; ``flock`` holds the lock, which the system
releases when the process ends, however it ends. NFS from version 4 locks over all hosts.
"""

import contextlib
import dataclasses
import errno
import fcntl
import json
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from largebatch.errors import UserError
from largebatch.files import is_still, no_folder_reason

NAME = "lock.json"
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)


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
        started=state_of(pid)[1],
        taken=datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        token=secrets.token_hex(16),
    )


@contextlib.contextmanager
def hold(workdir: Path, *, note: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of a run directory while the body runs; a missing directory is created.

    Args:
      workdir: the directory.
      note: called with a message where the file system has no locks.

    Raises:
      UserError: a different process holds the lock, or the directory cannot be written to.
    """
    path = workdir / NAME
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        stream = _locked(path, note)
    except OSError as error:
        raise UserError(
            f"--workdir={workdir} cannot be written to ({no_folder_reason(error)}); use "
            "another --workdir"
        ) from error
    if stream is None:
        who = holder(workdir)
        raise UserError(
            f"{workdir} is in use by {who.description if who else 'another process'}; use another "
            "--workdir, or stop that process"
        )
    with stream:
        try:
            stream.truncate(0)
            stream.write(content(this_process()))
            stream.flush()
            yield
        finally:
            with contextlib.suppress(OSError):
                if is_still(path, os.fstat(stream.fileno())):
                    path.unlink()


def holder(workdir: Path) -> Holder | None:
    """Return the process that the lock file of a directory names, if it names one."""
    try:
        return parse((workdir / NAME).read_bytes())
    except OSError:
        return None


def is_held(workdir: Path) -> bool:
    """Return whether a process holds the lock of a directory."""
    try:
        with (workdir / NAME).open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _locked(path: Path, note: Callable[[str], None]) -> BinaryIO | None:
    """Return the open and locked file; None if another process has the lock."""
    looks = 0
    while True:
        stream = path.open("a+b")
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stream.close()
            looks += 1
            if looks == 3:
                return None
            time.sleep(0.02)  # `is_held` of another process may have it for an instant
            continue
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                stream.close()
                raise
            note(
                f"{path.parent} is on a file system without locks ({error.strerror}); start no "
                "second run there"
            )
        if is_still(path, os.fstat(stream.fileno())):  # its last holder may have deleted it
            return stream
        stream.close()


def _system() -> str:
    """Return the boot and the namespace of process ids; '' if unknown."""
    # Hosts may have equal names; containers on one host may have equal names and the same boot.
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def state_of(pid: int) -> tuple[str, int | None]:
    """Return a process's state and start in clock ticks after boot; ('', None) if unknown."""
    try:
        # The name in the second field may contain spaces and parentheses.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], int(fields[19])
    except (OSError, ValueError, IndexError):
        return "", None
