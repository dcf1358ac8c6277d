"""The guard of a run: a thread that sees what the main thread cannot while it waits or compiles."""

import contextlib
import faulthandler
import os
import re
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Self

from largebatch.config.sections import Health
from largebatch.errors import UserError, one_line
from largebatch.fault_tolerance import exit_codes as codes
from largebatch.fault_tolerance.limits import Limits, Section

if TYPE_CHECKING:
    from largebatch.fault_tolerance.peers import Kind, Peers
    from largebatch.tracking.summary import Status

_TICK_S = 0.25
_ONE_SIGNAL_S = 1.0  # terminals and launchers may deliver the same one twice
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
_KINDS: Mapping[int, "Kind"] = {
    codes.MISTAKE: "mistake",
    codes.PREEMPTED: "preempted",
    codes.HUNG: "hung",
}
_FOLLOWING: Mapping["Kind", int] = {"preempted": codes.PREEMPTED, "mistake": codes.MISTAKE}
_SHOW_CURSOR = "\x1b[?25h"
RESUMES = "the same command resumes"


class Interrupted(Exception):
    """The run has been told to stop; raised where nothing is lost by it."""

    def __init__(self, reason: str, then: str = RESUMES) -> None:
        """Raised for ``reason``; ``then`` says what to do next."""
        super().__init__(reason)
        self.then = then


class PeerError(UserError):
    """Another process of the run has ended."""


class Guard:
    """Signals, time limits, hangs and the death of other processes.

    A signal only asks: ``requested`` says so, the run looks at it where it can stop, saves and
    ends. Where it cannot look, since it compiles or waits, and where it takes too long, the guard's
    thread ends the process. A second signal ends it at once.

    Without ``watching`` a guard is idle: nothing is watched and nothing is ever requested.
    """

    def __init__(self, options: Health | None = None) -> None:
        self._options = options or Health()
        self._limits = Limits(self._options)
        self._peers: Peers | None = None
        self._finals: dict[str, Callable[[Status, str], None]] = {}
        self._stacks: Path | None = None
        self._reason: str | None = None
        self._signalled = self._until = float("inf")
        self._ending = threading.Lock()
        self._handled = False
        """The main thread has met an error and will say what there is to say."""
        self._watches = False

    @property
    def requested(self) -> str | None:
        """Why the run is to stop, or None."""
        return self._reason

    def poll(self) -> None:
        """Stop here if the run is to stop.

        For one process: several must agree on where, which they do by what they tell each other
        with every step.

        Raises:
          Interrupted: it is.
        """
        if self._reason and self._peers is None:
            raise Interrupted(self._reason)

    def alive(self) -> None:
        """Progress was made in the present section."""
        self._limits.alive()

    @property
    def patience(self) -> float | None:
        """Seconds that a wait for data may last before `poll` is called."""
        return _TICK_S if self._watches else None

    @contextlib.contextmanager
    def section(self, name: Section) -> Iterator[None]:
        """The body is this part of the run, with its own limit."""
        before = self._limits.section
        self._limits.enter(name)
        try:
            yield
        finally:
            self._limits.enter(before)

    def join(self, peers: "Peers | None") -> None:
        """Listen to the other processes from now on."""
        self._peers = peers

    def finally_do(self, name: str, action: Callable[["Status", str], None]) -> None:
        """What is to be done if the process ends without the main thread; the newest name first.

        Args:
          name: another action of this name is forgotten.
          action: called with the status of the summary and the reason.
        """
        if self._watches:
            self._finals[name] = action

    def keep_stacks(self, folder: Path) -> None:
        """Where the stacks of a run that hangs are written, beside standard error."""
        self._stacks = folder

    def end(self, reason: str) -> None:
        """End the run at once, from whatever thread: to go on would do harm."""
        self._finals.pop("summary", None)  # the directory may be another run's by now
        self._end(codes.MISTAKE, reason)

    @contextlib.contextmanager
    def watching(self) -> Iterator[Self]:
        """Take over the signals, and watch; from the main thread."""
        reading, writing = socket.socketpair()
        writing.setblocking(False)
        # Python's handlers run when the main thread is back from C; the byte is written at once.
        descriptor = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
        handlers = {number: signal.signal(number, lambda *_: None) for number in _SIGNALS}
        stopping = threading.Event()
        thread = threading.Thread(
            target=self._watch, args=(reading, stopping), name="largebatch-guard", daemon=True
        )
        thread.start()
        self._watches = True
        try:
            with self._peers_told():
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
    def _peers_told(self) -> Iterator[None]:
        """Tell the others how this process ends; a failure that was theirs is said to be so."""
        try:
            yield
        except BaseException as error:
            self._handled = True
            if self._peers is None:
                raise
            if isinstance(error, Interrupted):
                self._leave_peers()
                raise
            # A collective fails as soon as the process at its other end is gone; who that was is
            # known after it has been missed for a while.
            # Runtime errors, but a ValueError from a collective of the host: told by its status.
            import jax  # nothing else here needs it

            theirs = isinstance(error, jax.errors.JaxRuntimeError) or (
                re.match(r"[A-Z_]+: ", str(error)) is not None
            )
            word = self._peers.wait(1.5 * self._options.peer_timeout_s) if theirs else None
            if word is None:
                kind = "mistake" if isinstance(error, UserError) else "failed"
                with contextlib.suppress(Exception):  # process 0 may be gone already
                    self._peers.tell(kind, one_line(error))
            self._leave_peers()
            if word is None:
                raise
            raise PeerError(f"{word}; {RESUMES}") from error
        finally:
            if self._peers is not None:
                with contextlib.suppress(Exception):  # process 0 may be gone already
                    self._peers.close()

    def _leave_peers(self) -> None:
        with contextlib.suppress(Exception):  # process 0 may be gone already
            self._peers.leave()

    def _watch(self, signals: socket.socket, stopping: threading.Event) -> None:
        signals.settimeout(_TICK_S)
        job_end = _job_end(os.environ)
        while not stopping.is_set():
            for number in _received(signals):
                if number not in _SIGNALS:
                    continue
                if time.monotonic() - self._signalled > _ONE_SIGNAL_S:
                    _at_once(128 + number)
                if self._signalled == float("inf"):
                    self._request(signal.Signals(number))
            if self._reason is None and job_end - time.time() < self._options.before_limit_s:
                left = max(0.0, job_end - time.time())
                self._ask(f"the SLURM job ends in {left:.0f} s", left)
            self._judge()

    def _request(self, number: signal.Signals) -> None:
        self._signalled = time.monotonic()
        seconds = {
            signal.SIGTERM: self._options.grace_s,
            signal.SIGUSR1: max(self._options.grace_s, self._options.before_limit_s),
            signal.SIGINT: float("inf"),  # somebody is there, who can do it again
        }[number]
        self._ask(number.name, seconds)

    def _ask(self, reason: str, seconds: float) -> None:
        self._until = min(self._until, time.monotonic() + seconds)
        self._reason = reason
        if not self._limits.setup:
            _say(f"{reason}: the run saves and stops; a second signal stops it at once")

    def _judge(self) -> None:
        """End the process if nobody else will."""
        word = self._peers and self._peers.ended
        if word and not self._handled:
            if word.kind == "hung":
                self._dump()
            code = _FOLLOWING.get(word.kind, codes.PEER)
            self._end(code, str(word), told=True)
        if self._reason and self._limits.setup:
            self._end(codes.PREEMPTED, f"{self._reason}, with nothing to save yet")
        if time.monotonic() > self._until:
            self._end(
                codes.PREEMPTED,
                f"{self._reason}, and the run could not save in time; the newest checkpoint stays",
            )
        overdue = self._limits.overdue()
        if overdue:
            self._dump()
            self._end(codes.HUNG, f"{self._peers.name}: {overdue}" if self._peers else overdue)

    def _end(self, code: int, reason: str, *, told: bool = False) -> NoReturn:
        """End the process from this thread; the main thread may be anywhere."""
        self._ending.acquire()  # never released: one end is enough
        _say(f"error: {reason}" if code == codes.MISTAKE else f"{reason}; {RESUMES}")
        status: Status = "preempted" if code == codes.PREEMPTED else "failed"
        for action in reversed(self._finals.values()):
            with contextlib.suppress(Exception):  # the end must come
                action(status, reason)
        if self._peers is not None:
            with contextlib.suppress(Exception):
                if not told:
                    self._peers.tell(_KINDS[code], reason)
                self._peers.leave()
        _at_once(code)

    def _dump(self) -> None:
        """Stacks of every thread, to standard error and to a file."""
        faulthandler.dump_traceback(sys.__stderr__, all_threads=True)
        if self._stacks is not None:
            with contextlib.suppress(OSError):
                path = self._stacks / f"stacks_{os.getpid()}.txt"
                with path.open("w") as stream:
                    faulthandler.dump_traceback(stream, all_threads=True)
                _say(f"stacks of all threads: {path}")


def _received(signals: socket.socket) -> bytes:
    """Numbers of the signals since the last call, waited for a moment."""
    try:
        return signals.recv(64)
    except TimeoutError:
        return b""


def _job_end(environ: Mapping[str, str]) -> float:
    """When SLURM will end this job, in seconds since 1970; never without SLURM."""
    text = environ.get("SLURM_JOB_END_TIME", "")
    end = float(text) if text.isdigit() else float("inf")
    return end if end > time.time() else float("inf")  # extended since, or another job's


def _at_once(code: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            if stream.isatty():
                stream.write(_SHOW_CURSOR)  # a live display may have hidden it
            stream.flush()
    os._exit(code)


def _say(text: str) -> None:
    with contextlib.suppress(Exception):
        print(text, file=sys.stderr, flush=True)


def exit_code(run: Callable[[], int | None]) -> int:
    """Run; how it failed, if it did, is said on standard error.

    Args:
      run: what the process does; it may return an exit code of its own.

    Returns:
      The code that the process is to end with.
    """
    try:
        return run() or 0
    except Interrupted as reason:
        _say(f"stopped ({reason}); {reason.then}")
        return codes.PREEMPTED
    except KeyboardInterrupt:  # of a command without a guard
        _say("interrupted")
        return codes.INTERRUPTED
    except UserError as error:
        _say(f"error: {error}")
        return codes.PEER if isinstance(error, PeerError) else codes.MISTAKE
    except Exception:  # one of several must not wait for the others while it ends
        traceback.print_exc()
        return codes.FAILED


def leave(code: int) -> NoReturn:
    """End this process; one of several that fails does not wait for the others, who never come."""
    jax = sys.modules.get("jax")  # absent where the command line was already refused
    if code and jax is not None and jax.distributed.is_initialized():
        _at_once(code)
    sys.exit(code)


IDLE = Guard()
"""Watches nothing."""
