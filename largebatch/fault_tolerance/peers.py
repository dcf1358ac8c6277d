"""Heartbeats of the processes of a run, independent of its collectives.

A collective waits forever for a process that hangs, and says little about one that died. Here every
process writes heartbeats and its last message to the key-value store of the coordinating process,
and a thread of each process reads the last messages of the others.
"""

import ctypes
import json
import os
import platform
import signal
import socket
import threading
import time
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

Kind = Literal["preempted", "mistake", "failed", "hung", "dead"]
_BEATS, _WORDS, _GONE = "largebatch/beats/", "largebatch/words/", "largebatch/gone/"
_DONE = "done"
_LAST_S = 0.3  # between the announcement that a process is gone and its end
_UNANSWERED_S = 2.0  # after this wait for an answer, check whether the coordinator lives
# Coordinators answer some thousand requests a second; this many processes may ask every second.
_ASKING = 256


class Store(Protocol):
    """The part of JAX's distributed client that is used."""

    def key_value_set(self, key: str, value: str, allow_overwrite: bool = False) -> None:
        """Store a value."""
        ...

    def key_value_dir_get(self, key: str) -> list[tuple[str, str]]:
        """Return all keys that start with ``key``, with their values."""
        ...


@dataclass(frozen=True)
class LastWord:
    """Why a process has ended.

    Attributes:
        process: Number of the process.
        kind: How it ended.
        message: Its error, or what another process observed.
        where: Its host and process id.
    """

    process: int
    kind: Kind
    message: str
    where: str

    def __str__(self) -> str:
        how = {
            "preempted": "was asked to stop",
            "mistake": "ended",
            "failed": "failed",
            "hung": "hangs",
            "dead": "is dead",
        }[self.kind]
        reason = f": {self.message}" if self.message else ""
        return f"process {self.process} ({self.where}) {how}{reason}"


class Peers:
    """Watches the other processes of a run."""

    def __init__(
        self,
        store: Store,
        process: int,
        processes: int,
        timeout_s: float,
        coordinator: str | None = None,
    ) -> None:
        """Start to send heartbeats and to listen.

        Args:
            store: Key-value store that all processes share.
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
                self._end(_lost("it does not answer"))
        return self._ended

    def wait(self, seconds: float) -> LastWord | None:
        """Wait at most ``seconds`` for `ended`."""
        limit = time.monotonic() + seconds
        while self.ended is None and (left := limit - time.monotonic()) > 0:
            self._heard.wait(min(0.2, left))
        return self._ended

    def tell(self, kind: Kind, message: str) -> None:
        """Leave a last message; the other processes then end too."""
        self._word(LastWord(self._process, kind, message, self._where))

    def leave(self) -> None:
        """Prepare the early end of this process; process 0, the coordinator, leaves last.

        Process 0 waits at most until each process has read the store twice.
        """
        self._stopping.set()
        if self._coordinator_lost:
            return
        if self._process:
            self._store.key_value_set(f"{_GONE}{self._process}", "", allow_overwrite=True)
            return
        limit = time.monotonic() + 2 * self._every + 3
        while time.monotonic() < limit:
            gone = {int(key.rpartition("/")[2]) for key, _ in self._read(_GONE)}
            dead = {self._ended.process} if self._ended and self._ended.kind == "dead" else set()
            if len(gone | dead) >= self._processes - 1:
                break
            time.sleep(0.1)
        time.sleep(_LAST_S)

    def close(self) -> None:
        """End the heartbeats of a run that is over, so that silence is not taken for a death."""
        self._stopping.set()
        if self._coordinator_lost:
            return
        self._thread.join()
        self._store.key_value_set(f"{_BEATS}{self._process}", _DONE, allow_overwrite=True)

    def _listen(self) -> None:
        beats_every = self._timeout_s / 6
        beat_at = 0.0
        while not self._stopping.wait(self._every):
            self._asked = time.monotonic()
            try:
                if time.monotonic() >= beat_at:
                    beat_at = time.monotonic() + beats_every
                    self._beat()
                    if self._process == 0:
                        self._look()
                self._hear()
            except Exception as error:  # whatever a client that lost its server raises
                if not self._stopping.is_set():
                    self._end(_lost(f"it cannot be reached ({str(error).partition(chr(10))[0]})"))
                return
            finally:
                self._asked = float("inf")

    def _beat(self) -> None:
        self._beats += 1
        value = f"{self._where} {self._beats}"
        self._store.key_value_set(f"{_BEATS}{self._process}", value, allow_overwrite=True)

    def _look(self) -> None:
        """Process 0: find processes whose heartbeat is overdue."""
        now = time.monotonic()
        for key, value in self._read(_BEATS):
            process = int(key.rpartition("/")[2])
            if process == 0 or value == _DONE:
                continue
            if process not in self._seen or self._seen[process][0] != value:
                self._seen[process] = value, now
            elif now - self._seen[process][1] > self._timeout_s:
                where = value.rpartition(" ")[0]
                message = f"no heartbeat for {self._timeout_s:g} s"
                self._word(LastWord(process, "dead", message, where))

    def _hear(self) -> None:
        for key, value in self._read(_WORDS):
            if int(key.rpartition("/")[2]) != self._process:
                self._end(LastWord(**json.loads(value)))
                return

    def _word(self, word: LastWord) -> None:
        value = json.dumps(asdict(word))
        self._store.key_value_set(f"{_WORDS}{word.process}", value, allow_overwrite=True)

    def _end(self, word: LastWord) -> None:
        self._ended = self._ended or word
        self._heard.set()

    @property
    def _coordinator_lost(self) -> bool:
        """Whether process 0 no longer answers requests."""
        return self._ended is not None and self._ended.process == 0 and self._ended.kind == "dead"

    def _read(self, prefix: str) -> list[tuple[str, str]]:
        return self._store.key_value_dir_get(prefix)


def _lost(message: str) -> LastWord:
    """Return the last message of a process 0 that is lost."""
    return LastWord(0, "dead", message, "coordinator")


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
