"""Lock of a run directory on a disk, which prevents that two processes write to it.

``WORKDIR/lock.json`` names the holder for messages; ``flock`` holds the lock, which the system
releases when the process ends, however it ends. NFS from version 4 locks over all hosts.
"""

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from largebatch.checkpoint.lock_holder import Holder, content, parse, this_process
from largebatch.errors import UserError
from largebatch.files import is_still, no_folder_reason

NAME = "lock.json"
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)


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
    while True:
        stream = path.open("a+b")
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stream.close()
            return None
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
