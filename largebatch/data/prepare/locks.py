"""Locks between processes, let go by the operating system whatever way a process ends."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal


class HeldElsewhere(Exception):
    """Another process holds the lock."""


_FLAGS = {
    "shared": fcntl.LOCK_SH,
    "exclusive": fcntl.LOCK_EX,
    "exclusive, at once": fcntl.LOCK_EX | fcntl.LOCK_NB,
}


@contextmanager
def held(path: Path, kind: Literal["shared", "exclusive", "exclusive, at once"]) -> Iterator[None]:
    """Holds a lock on a file, made when absent, while the body runs.

    Where the file system knows no locks the body runs without.

    Raises:
        HeldElsewhere: It is, and was wanted at once.
        OSError: The file cannot be made.
    """
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(file, _FLAGS[kind])
        except BlockingIOError as error:
            raise HeldElsewhere from error
        except OSError:
            pass
        yield
    finally:
        os.close(file)
