"""Heartbeats of the processes of a run, independent of its collectives.

A collective waits forever for a process that hangs, and says little about one that died. Here every
process writes heartbeats and its last message to the key-value store of the coordinating process,
and a thread of each process reads the last messages of the others.
"""

import contextlib
import ctypes
import json
import os
import platform
import signal
import socket
import threading
import time
from dataclasses import asdict, dataclass
from typing import Any

from largebatch.errors import one_line
from largebatch.fault_tolerance.exit_codes import FAILED, HUNG, MISTAKE, PEER, PREEMPTED

_BEATS, _WORDS, _GONE = "largebatch/beats/", "largebatch/words/", "largebatch/gone/"
_DONE = "done"
_LAST_S = 0.3  # between the announcement that a process is gone and its end
_UNANSWERED_S = 2.0  # after this wait for an answer, check whether the coordinator lives
# Coordinators answer some thousand requests a second; this many processes may ask every second.
_ASKING = 256
_HOW = {
    PREEMPTED: "was asked to stop",
    MISTAKE: "ended",
    FAILED: "failed",
    HUNG: "hangs",
    PEER: "is dead",
}


@dataclass(frozen=True)
class LastWord:
    """Why a process has ended.

    Attributes:
        process: Number of the process.
        code: Its exit code; `PEER` of a process that is dead, which another one observed.
        message: Its error, or what another process observed.
        where: Its host and process id.
    """

    process: int
    code: int
    message: str
    where: str

    def __str__(self) -> str:
        reason = f": {self.message}" if self.message else ""
        return f"process {self.process} ({self.where}) {_HOW[self.code]}{reason}"


class Peers:
    """Watches the other processes of a run."""

    def __init__(
        self,
        store: Any,
        process: int,
        processes: int,
        timeout_s: float,
        coordinator: str | None = None,
    ) -> None:
        """Start to send heartbeats and to listen.

        Args:
            store: JAX's distributed client; its ``key_value_set`` and ``key_value_dir_get`` are
                used.
            process: Number of this process.
            processes: Number of processes.
            timeout_s: A process without a heartbeat for this time is dead. Process 0 decides that
                by its own clock; the others detect the death of process 0 themselves.
            coordinator: HOST:PORT at which process 0 answers; None: unknown.
        """
        self._store = store
        self._process, self._processes = process, processes
        self._timeout_s = timeout_s
        self._coordinator = coordinator
        self._asked = float("inf")
        """When the request was sent that now waits for an answer."""
        self._where = f"{platform.node()}, pid {os.getpid()}"
        self._every = min(max(1.0, processes / _ASKING), timeout_s / 6)
        self._seen: dict[int, tuple[str, float]] = {}
        self._ended: LastWord | None = None
        self._stopping = threading.Event()
        self._heard = threading.Event()
        self._beats = 0
        self._beat()
        self._thread = threading.Thread(target=self._listen, name="largebatch-peers", daemon=True)
        self._thread.start()

    @property
    def name(self) -> str:
        """This process, for messages."""
        return f"process {self._process} ({self._where})"

    @property
    def ended(self) -> LastWord | None:
        """The first other process that ended early; None if there is none."""
        if self._ended is None and time.monotonic() - self._asked > _UNANSWERED_S:
            # A request to a coordinator that is gone may wait forever instead of failing.
            self._asked = time.monotonic()
            if self._coordinator is not None and _refuses(self._coordinator):
                self._lose_coordinator("it does not answer")
        return self._ended

    def wait(self, seconds: float) -> LastWord | None:
        """Wait at most ``seconds`` for `ended`."""
        limit = time.monotonic() + seconds
        while self.ended is None and (left := limit - time.monotonic()) > 0:
            self._heard.wait(min(0.2, left))
        return self._ended

    def leave(self, code: int | None = None, message: str = "") -> None:
        """Prepare the early end of this process; process 0, the coordinator, leaves last.

        Process 0 waits at most until each process has read the store twice.

        Args:
            code: the exit code of this process, for the others, which then end too; None if they
                know why it ends.
            message: the reason.
        """
        self._stopping.set()
        if self._coordinator_lost:
            return
        with contextlib.suppress(Exception):  # process 0 may be gone already
            if code is not None:
                self._say(LastWord(self._process, code, message, self._where))
            if self._process:
                self._set(f"{_GONE}{self._process}", "")
                return
            limit = time.monotonic() + 2 * self._every + 3
            dead = {self._ended.process} if self._ended and self._ended.code == PEER else set()
            while time.monotonic() < limit:
                if len(set(self._read(_GONE)) | dead) >= self._processes - 1:
                    break
                time.sleep(0.1)
            time.sleep(_LAST_S)

    def close(self) -> None:
        """End the heartbeats of a run that is over, so that silence is not taken for a death."""
        self._stopping.set()
        if not self._coordinator_lost:
            with contextlib.suppress(Exception):  # process 0 may be gone already
                self._thread.join()
                self._set(f"{_BEATS}{self._process}", _DONE)

    def _listen(self) -> None:
        beat_at = 0.0
        while not self._stopping.wait(self._every):
            self._asked = time.monotonic()
            try:
                if time.monotonic() >= beat_at:
                    beat_at = time.monotonic() + self._timeout_s / 6
                    self._beat()
                    if self._process == 0:
                        self._look()
                self._hear()
            except Exception as error:  # whatever a client that lost its server raises
                if not self._stopping.is_set():
                    self._lose_coordinator(f"it cannot be reached ({one_line(error)})")
                return
            finally:
                self._asked = float("inf")

    def _beat(self) -> None:
        self._beats += 1
        self._set(f"{_BEATS}{self._process}", f"{self._where} {self._beats}")

    def _look(self) -> None:
        """Process 0: find processes whose heartbeat is overdue."""
        now = time.monotonic()
        for process, value in self._read(_BEATS).items():
            if process == 0 or value == _DONE:
                continue
            if process not in self._seen or self._seen[process][0] != value:
                self._seen[process] = value, now
            elif now - self._seen[process][1] > self._timeout_s:
                where = value.rpartition(" ")[0]
                self._say(LastWord(process, PEER, f"no heartbeat for {self._timeout_s:g} s", where))

    def _hear(self) -> None:
        for process, value in self._read(_WORDS).items():
            if process != self._process:
                self._end(LastWord(**json.loads(value)))
                return

    def _say(self, word: LastWord) -> None:
        self._set(f"{_WORDS}{word.process}", json.dumps(asdict(word)))

    def _lose_coordinator(self, message: str) -> None:
        self._end(LastWord(0, PEER, message, "coordinator"))

    def _end(self, word: LastWord) -> None:
        self._ended = self._ended or word
        self._heard.set()

    @property
    def _coordinator_lost(self) -> bool:
        """Whether process 0 no longer answers requests."""
        return self._ended is not None and self._ended.process == 0 and self._ended.code == PEER

    def _set(self, key: str, value: str) -> None:
        self._store.key_value_set(key, value, allow_overwrite=True)

    def _read(self, prefix: str) -> dict[int, str]:
        """Return the values of all processes below a prefix."""
        found = self._store.key_value_dir_get(prefix)
        return {int(key.rpartition("/")[2]): value for key, value in found}


def _refuses(address: str) -> bool:
    """Return whether nothing listens at HOST:PORT; False if unknown, as on a slow network."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=1.0).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


def peers_of(timeout_s: float) -> Peers | None:
    """Return the other processes that JAX has joined; None if there are none.

    Args:
        timeout_s: See `Peers`.
    """
    joined = distributed_state()
    if joined.client is None or joined.num_processes == 1:
        return None
    _delay_abort()
    return Peers(
        joined.client,
        joined.process_id,
        joined.num_processes,
        timeout_s,
        joined.coordinator_address,
    )


def distributed_state() -> Any:
    """Return JAX's record of the processes it has joined, which has no public name."""
    from jax._src import distributed

    return distributed.global_state


def _delay_abort() -> None:
    """Delay the end of this process by 6 s after a call of abort().

    JAX aborts a process whose coordinator is gone, from its own thread, and no Python callback can
    stop it. During the delay the thread of `Peers` detects the loss too, and the process ends with
    a message and an exit code, like any other that lost a peer. The handler is sleep() itself,
    which is safe in a signal handler and needs no interpreter; its argument is the number of the
    signal, 6. When it returns, abort() ends the process.
    """
    libc = ctypes.CDLL(None)
    libc.signal(int(signal.SIGABRT), ctypes.cast(libc.sleep, ctypes.c_void_p))
