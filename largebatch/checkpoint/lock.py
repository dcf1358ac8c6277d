"""Lock of a run directory, which prevents that two processes write to it.

``lock.json`` names the process that has it. On a disk, ``flock`` holds the file, which the system
releases when the process ends, however it ends; NFS from version 4 locks over all hosts. In an
object store, the object is a lease: it is written only if nobody has written it meanwhile, so that
of two processes one succeeds, and its holder replaces it every `BEAT_S` seconds.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from largebatch.errors import UserError
from largebatch.files import is_still, no_folder_reason, user_cache
from largebatch.object_store import Bucket, StorageError, Version

NAME = "lock.json"
BEAT_S = 10.0
"""Seconds between two heartbeats of a lease."""
PATIENCE_S = 45.0
"""Seconds without a heartbeat after which a lease from a different host has expired."""
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)
_LOOKS = 10


@contextlib.contextmanager
def hold(workdir: Path, *, note: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of a directory while the body runs; a missing directory is created.

    Args:
      workdir: the directory.
      note: called with a message where the file system has no locks.

    Raises:
      UserError: a different process holds the lock, or the directory cannot be written to.
    """
    with contextlib.ExitStack() as stack:
        try:
            workdir.mkdir(parents=True, exist_ok=True)
            stack.enter_context(_file(workdir / NAME, _content(), note))
        except BlockingIOError:
            raise _in_use(workdir, _named(workdir / NAME)) from None
        except OSError as error:
            raise UserError(
                f"--workdir={workdir} cannot be written to ({no_folder_reason(error)}); use "
                "another --workdir"
            ) from error
        yield


def holder(workdir: Path) -> str | None:
    """Return which process holds the lock of a directory, for messages; None if none does."""
    try:
        with (workdir / NAME).open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _named(workdir / NAME)
    except OSError:
        pass
    return None


@contextlib.contextmanager
def lease(
    bucket: Bucket, *, note: Callable[[str], None], lost: Callable[[str], None]
) -> Iterator[None]:
    """Hold the lock of a run directory in a store while the body runs.

    The lease of a killed process is taken over: at once if it ran on this host, otherwise after
    `PATIENCE_S` without a heartbeat.

    Args:
      bucket: the run directory.
      note: called with a message when this process waits for or takes over a lease.
      lost: called once, in a separate thread, if a different process took the lease.

    Raises:
      UserError: a different process holds the lease.
      StorageError: the store cannot be reached or written to.
    """
    mine = _Lease(bucket)
    with contextlib.ExitStack() as stack:
        # A process also holds a file in its user's cache. What is left in a file that nobody holds
        # is the token of a process of this host that was killed.
        path, before = user_cache() / "leases" / _name_here(bucket.url), b""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            before = stack.enter_context(_file(path, mine.content))
        except BlockingIOError:
            raise _in_use(bucket.url, _named(path)) from None
        except OSError:
            pass  # no cache: all leases are waited for
        mine.take(_parsed(before)[1], note)
        ended = threading.Event()
        thread = threading.Thread(
            target=mine.keep, args=(ended, lost), name="largebatch-lease", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(PATIENCE_S)  # it may hang in a request
            with contextlib.suppress(StorageError):
                mine.release()


def leaseholder(bucket: Bucket) -> str | None:
    """Return which process holds a lease, or held it when it was killed; None if none."""
    found = bucket.read(NAME)
    return None if found is None else _parsed(found[0])[0]


class _Lease:
    """An object that this process writes, and which no other process has written since."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self.content = _content()
        self._version: Version | None = None

    def take(self, ended: str, note: Callable[[str], None]) -> None:
        """Create the object, or take it over.

        Args:
          ended: token of a process that has ended; '' if none is known.
          note: called with a message.

        Raises:
          UserError: a different process sends heartbeats.
        """
        while other := self._write():
            who, token = _parsed(other[0])
            if not token or token != ended:
                note(
                    f"{self._bucket.url} is locked by {who}; taking it over without a heartbeat "
                    f"within {PATIENCE_S:.0f} s"
                )
                self._wait(who, other[1])
            note(f"taking over the lock of {self._bucket.url} from {who}, which has ended")
            self._version = other[1]

    def keep(self, ended: threading.Event, lost: Callable[[str], None]) -> None:
        """Send heartbeats until the end, or until a different process has the object."""
        while not ended.wait(BEAT_S):
            # A failed request may succeed at the next heartbeat.
            with contextlib.suppress(StorageError):
                if other := self._write():
                    lost(
                        f"{_parsed(other[0])[0]} took the lock of {self._bucket.url}; it probably "
                        "saw no heartbeat of this process; two runs in one directory damage each "
                        "other"
                    )
                    return

    def release(self) -> None:
        """Delete the object, unless a different process has it."""
        if not self._write():
            self._bucket.delete(NAME)

    def _write(self) -> tuple[bytes, Version] | None:
        """Write the object with the next heartbeat.

        Returns:
          What a different process wrote instead; None if this process has the object.
        """
        self.content["beat"] += 1
        while True:
            version = self._bucket.swap(NAME, _encoded(self.content), self._version)
            if version is None:
                found = self._bucket.read(NAME)
                if found is None:  # it was deleted
                    self._version = None
                    continue
                if _parsed(found[0])[1] != self.content["token"]:
                    return found
                version = found[1]  # our own write, whose answer was lost
            self._version = version
            return None

    def _wait(self, who: str, version: Version) -> None:
        """Wait until the object of a different process has expired, or is gone.

        Raises:
          UserError: that process sends heartbeats.
        """
        limit = time.monotonic() + PATIENCE_S
        while time.monotonic() < limit:
            time.sleep(PATIENCE_S / 20)
            now = self._bucket.read(NAME)
            if now is None:
                return
            if now[1] != version:
                raise _in_use(self._bucket.url, who)


@contextlib.contextmanager
def _file(
    path: Path, content: dict[str, Any], note: Callable[[str], None] | None = None
) -> Iterator[bytes]:
    """Hold a file by ``flock`` while the body runs, and delete it then.

    Args:
      path: the file; its folder exists.
      content: new content of the file.
      note: called with a message where the file system has no locks; None: that is an error.

    Yields:
      What a process that was killed left in the file.

    Raises:
      BlockingIOError: a different process holds the file.
      OSError: it cannot be written or locked.
    """
    for look in range(_LOOKS):
        with path.open("a+b") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if look == _LOOKS - 1:
                    raise
                time.sleep(0.02)  # `holder` of another process may have it for an instant
                continue
            except OSError as error:
                if note is None or error.errno not in _NO_LOCKS:
                    raise
                note(
                    f"{path.parent} is on a file system without locks ({error.strerror}); start "
                    "no second run there"
                )
            if not is_still(path, os.fstat(stream.fileno())):
                continue  # its last holder has deleted it meanwhile
            stream.seek(0)
            before = stream.read()
            try:
                stream.truncate(0)
                stream.write(_encoded(content))
                stream.flush()
                yield before
            finally:
                with contextlib.suppress(OSError):
                    if is_still(path, os.fstat(stream.fileno())):
                        path.unlink()
            return
    raise BlockingIOError


def _name_here(url: str) -> str:
    """Return a file name for a URL on this host alone; the cache may be on a shared disk."""
    try:
        host = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        host = socket.gethostname()
    return hashlib.sha256(f"{host} {url}".encode()).hexdigest()[:32]


def _content() -> dict[str, Any]:
    """Return the content of a new lock of this process."""
    since = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    who = f"process {os.getpid()} on {socket.gethostname()}, since {since}"
    return {"holder": who, "token": secrets.token_hex(16), "beat": 0}


def _encoded(content: dict[str, Any]) -> bytes:
    return json.dumps(content, indent=2).encode() + b"\n"


def _parsed(content: bytes) -> tuple[str, str]:
    """Return the holder that an untrusted lock names, and its token; '' if it is invalid."""
    with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError, RecursionError):
        fields = json.loads(content)
        who, token = fields["holder"], fields["token"]
        if who.isprintable() and isinstance(token, str):
            return who, token
    return "another process", ""


def _named(path: Path) -> str:
    try:
        return _parsed(path.read_bytes())[0]
    except OSError:
        return "another process"


def _in_use(place: Path | str, who: str) -> UserError:
    return UserError(f"{place} is in use by {who}; use another --workdir, or stop that process")
