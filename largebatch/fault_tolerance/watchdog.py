"""The watchdog of a run: a thread that acts while the main thread waits or compiles."""

import contextlib
import faulthandler
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn, Self

from largebatch.config.sections import Health
from largebatch.errors import UserError, one_line
from largebatch.fault_tolerance import exit_codes as codes
from largebatch.fault_tolerance.exit_codes import Interrupted, PeerError, end_now, report

if TYPE_CHECKING:
    from largebatch.fault_tolerance.peers import Peers
    from largebatch.tracking.summary import Status

Section = Literal["init", "compile", "step", "evaluation", "checkpoint"]
"""A part of a run with a time limit."""

COMPILING = 4
"""Multiple of ``health.limit_s`` that a compilation may take."""
BEFORE_LIMIT_S = 120.0
"""Seconds to save after SIGUSR1, by which launchers announce the end of a job."""
_TICK_S = 0.25
_ONE_SIGNAL_S = 1.0  # terminals and launchers may deliver the same one twice
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class Watchdog:
    """Handles signals, time limits, hangs and the loss of other processes.

    A signal sets ``requested``. The run checks it where it can stop, saves and ends. The thread of
    the watchdog ends the process if the run cannot check, because it compiles or waits, or if it
    takes too long. A second signal ends the process at once.

    Outside of ``watching``, as in a call from Python, a watchdog watches nothing and never ends the
    process: `poll` raises what would end it.
    """

    def __init__(self, options: Health | None = None) -> None:
        self._options = options or Health()
        self._section: Section = "init"
        self._is_setup = True
        """Whether nothing has been trained yet that is not in a checkpoint."""
        self._moved = time.monotonic()
        """Time of the last progress."""
        self._peers: Peers | None = None
        self._finals: dict[str, Callable[[Status, str], None]] = {}
        self._stacks: Path | None = None
        self._reason: str | None = None
        self._signalled = self._until = float("inf")
        self._ending = threading.Lock()
        self._handled = False
        """The main thread has caught an error and will report it."""
        self._watches = False
        self.lost = ""
        """Why the run directory is no longer this process's; empty if it is."""

    @property
    def requested(self) -> str | None:
        """Why the run must stop; None if it need not."""
        return self._reason

    def stop(self, reason: str) -> None:
        """Request a stop, from the thread of the run."""
        self._reason = self._reason or reason

    def poll(self) -> None:
        """Stop here if a stop is requested and this is the only process.

        Several processes agree on the step at which they stop by the control flags of each step.

        Raises:
          Interrupted: a stop is requested.
          UserError: `end` was called.
        """
        self.check()
        if self._reason and self._peers is None:
            raise Interrupted(self._reason)

    def check(self) -> None:
        """Raise a UserError if `end` was called: nothing may be written any more."""
        if self.lost:
            raise UserError(self.lost)

    def alive(self) -> None:
        """Note that the present section has made progress."""
        self._moved = time.monotonic()

    def overdue(self) -> str | None:
        """Return the message for a section that exceeds its limit; None otherwise."""
        times = COMPILING if self._section == "compile" else 1
        limit, since = self._options.limit_s, time.monotonic() - self._moved
        if not limit or since <= times * limit:
            return None
        several = f"{times} times " if times > 1 else ""
        return (
            f"no progress in {self._section} for {since:.0f} s; the limit is {several}"
            f"health.limit_s={limit:g}"
        )

    @property
    def patience(self) -> float | None:
        """Seconds that a wait for data may last between calls of `poll`; None: any time."""
        return _TICK_S if self._watches else None

    @contextlib.contextmanager
    def section(self, name: Section) -> Iterator[None]:
        """Apply the time limit of a part of the run to the body of ``with``."""
        before = self._section
        self._enter(name)
        try:
            yield
        finally:
            self._enter(before)

    def _enter(self, section: Section) -> None:
        self._section = section
        self._is_setup &= section in ("init", "compile")
        self.alive()

    def join(self, peers: "Peers | None") -> None:
        """Watch the other processes from now on."""
        self._peers = peers

    def finally_do(self, name: str, action: Callable[["Status", str], None]) -> None:
        """Register an action for the case that this thread ends the process; the newest runs first.

        Args:
          name: replaces an earlier action of this name.
          action: called with the status of the summary and the reason.
        """
        if self._watches:
            self._finals[name] = action

    def keep_stacks(self, folder: Path) -> None:
        """Write the stacks of a run that hangs to this folder too, not only to standard error."""
        self._stacks = folder

    def end(self, reason: str) -> None:
        """End the run, from any thread, because another run has its directory now.

        While watching, the process ends at once; otherwise `poll` ends the run.
        """
        self._finals.pop("summary", None)
        self.lost = reason
        if self._watches:
            self._end(codes.MISTAKE, reason)

    @contextlib.contextmanager
    def watching(self) -> Iterator[Self]:
        """Handle signals and watch, while the body of ``with`` runs in the main thread."""
        reading, writing = socket.socketpair()
        writing.setblocking(False)
        # Python's handlers run when the main thread is back from C; the byte is written at once.
        descriptor = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
        handlers = {number: signal.signal(number, lambda *_: None) for number in _SIGNALS}
        stopping = threading.Event()
        thread = threading.Thread(
            target=self._watch, args=(reading, stopping), name="largebatch-watchdog", daemon=True
        )
        thread.start()
        self._watches = True
        try:
            with self._reporting_to_peers():
                yield self
        finally:
            self._watches = False
            stopping.set()
            thread.join()
            for number, handler in handlers.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(descriptor)
            reading.close()
            writing.close()

    @contextlib.contextmanager
    def _reporting_to_peers(self) -> Iterator[None]:
        """Report how this process ends to the others; name the process that failed first."""
        try:
            yield
        except BaseException as error:
            self._handled = True
            if self._peers is None:
                raise
            if isinstance(error, Interrupted):
                self._peers.leave()
                raise
            # A collective fails as soon as another process is gone; which one is known after its
            # timeout. These are runtime errors; a collective of the host raises a ValueError whose
            # message starts with the status.
            import jax  # nothing else here needs it

            theirs = isinstance(error, jax.errors.JaxRuntimeError) or (
                re.match(r"[A-Z_]+: ", str(error)) is not None
            )
            word = self._peers.wait(1.5 * self._options.peer_timeout_s) if theirs else None
            if word is None:
                code = codes.MISTAKE if isinstance(error, UserError) else codes.FAILED
                self._peers.leave(code, one_line(error))
                raise
            self._peers.leave()
            raise PeerError(f"{word}; {codes.RESUMES}") from error
        finally:
            if self._peers is not None:
                self._peers.close()

    def _watch(self, signals: socket.socket, stopping: threading.Event) -> None:
        signals.settimeout(_TICK_S)
        while not stopping.is_set():
            for number in _received(signals):
                if number not in _SIGNALS:
                    continue
                if time.monotonic() - self._signalled > _ONE_SIGNAL_S:
                    end_now(128 + number)
                if self._signalled == float("inf"):
                    self._request(signal.Signals(number))
            self._judge()

    def _request(self, number: signal.Signals) -> None:
        self._signalled = time.monotonic()
        seconds = {
            signal.SIGTERM: self._options.grace_s,
            signal.SIGUSR1: max(self._options.grace_s, BEFORE_LIMIT_S),
            signal.SIGINT: float("inf"),  # somebody is there, who can do it again
        }[number]
        self._ask(number.name, seconds)

    def _ask(self, reason: str, seconds: float) -> None:
        self._until = min(self._until, time.monotonic() + seconds)
        self._reason = reason
        if not self._is_setup:
            report(f"{reason}: the run saves and stops; a second signal stops it at once")

    def _judge(self) -> None:
        """End the process if the main thread cannot."""
        word = self._peers and self._peers.ended
        if word and not self._handled:
            if word.code == codes.HUNG:
                self._dump()
            follows = word.code in (codes.PREEMPTED, codes.MISTAKE)
            self._end(word.code if follows else codes.PEER, str(word), peers_know=True)
        if self._reason and self._is_setup:
            self._end(codes.PREEMPTED, f"{self._reason}, with nothing to save yet")
        if time.monotonic() > self._until:
            self._end(
                codes.PREEMPTED,
                f"{self._reason}; the run could not save in time, the newest checkpoint remains",
            )
        if overdue := self.overdue():
            self._dump()
            self._end(codes.HUNG, f"{self._peers.name}: {overdue}" if self._peers else overdue)

    def _end(self, code: int, reason: str, *, peers_know: bool = False) -> NoReturn:
        """End the process from this thread, whatever the main thread does."""
        self._ending.acquire()  # never released: the process ends once
        report(f"error: {reason}" if code == codes.MISTAKE else f"{reason}; {codes.RESUMES}")
        status: Status = "preempted" if code == codes.PREEMPTED else "failed"
        for action in reversed(self._finals.values()):
            with contextlib.suppress(Exception):  # the process must end
                action(status, reason)
        if self._peers is not None:
            self._peers.leave(None if peers_know else code, reason)
        end_now(code)

    def _dump(self) -> None:
        """Write the stacks of all threads to a file; to standard error without one."""
        if self._stacks is not None:
            with contextlib.suppress(OSError):
                path = self._stacks / f"stacks_{os.getpid()}.txt"
                with path.open("w") as stream:
                    faulthandler.dump_traceback(stream, all_threads=True)
                report(f"stacks of all threads: {path}")
                return
        faulthandler.dump_traceback(sys.__stderr__, all_threads=True)


def _received(signals: socket.socket) -> bytes:
    """Return the numbers of the signals since the last call; wait a moment for one."""
    try:
        return signals.recv(64)
    except TimeoutError:
        return b""


IDLE = Watchdog()
"""A watchdog that watches nothing."""
