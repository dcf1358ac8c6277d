"""Competitors in child processes: each is stopped (SIGSTOP) while another one is measured.

So what one reads ahead, its worker processes and its thread pools take nothing from the others.
A child runs the code of its parent: `multiprocessing` gives it the parent's import path.
"""

import contextlib
import ctypes
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.measure import Result, interleave
from largebatch.errors import UserError

Figures = dict[str, float]
"""Of one repeat, by unit."""
Prepare = Callable[[Any], tuple[Callable[[], Figures], str]]
"""Work → the function that does one repeat and returns its figures, and a text on how it works."""
_SPAWN = multiprocessing.get_context("spawn")
_STARTING = threading.Lock()
_GRACE_S = 10.0
_PR_SET_PDEATHSIG = 1


class Absent(Exception):
    """A competitor cannot take part here; the message gives the reason."""


class FailedError(RuntimeError):
    """A competitor's process failed; its traceback is on standard error."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """What every competitor is given.

    Attributes:
        cores: Numbers of the CPU cores to pin it to; empty leaves that to the system.
        limit_s: Seconds that it may take for an answer.
    """

    cores: tuple[int, ...] = ()
    limit_s: float = 3600.0

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment variables of its process beyond those of this one."""
        return {}


class Competitor:
    """One competitor's process.

    Attributes:
        about: How it works, in its own words.
        ready_s: Seconds from the start of the process until it was ready.
    """

    def __init__(self, prepare: Prepare, work: Work) -> None:
        """Start it and wait until it is ready.

        Raises:
            Absent: It cannot take part.
            UserError: The work is impossible, such as data that cannot be read.
            FailedError: It failed, or did not answer within `work.limit_s`.
        """
        self._limit_s = work.limit_s
        self._connection, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_serve, args=(theirs, prepare, work))
        start = time.perf_counter()
        with _STARTING, _inheriting(work):
            self._process.start()
        theirs.close()
        try:
            self.about: str = self._reply()
            self.ready_s = time.perf_counter() - start
            self._signal(signal.SIGSTOP)
        except BaseException:
            self.close()
            raise

    def repeat(self) -> Figures:
        """Let it do one repeat; raises like the constructor."""
        self._signal(signal.SIGCONT)
        with contextlib.suppress(BrokenPipeError):
            self._connection.send("repeat")
        figures = self._reply()
        self._signal(signal.SIGSTOP)
        return figures

    def close(self) -> None:
        """End it and its descendants."""
        self._signal(signal.SIGCONT)
        self._connection.close()
        self._process.join(_GRACE_S)
        self._signal(signal.SIGKILL)
        self._process.kill()
        self._process.join()

    def __enter__(self) -> "Competitor":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _reply(self) -> Any:
        try:
            if not self._connection.poll(self._limit_s):
                self._signal(signal.SIGKILL)
                raise FailedError(f"no answer in {self._limit_s:g} s")
            reply = self._connection.recv()
        except (EOFError, ConnectionResetError):
            raise FailedError("its process ended") from None
        if isinstance(reply, Exception):
            raise reply
        return reply


@contextlib.contextmanager
def _inheriting(work: Work) -> Iterator[None]:
    """Environment and cores that a child has before it imports any library."""
    before = dict(os.environ)
    cores = os.sched_getaffinity(0) if work.cores else ()
    os.environ.update(work.environment)
    if cores:
        os.sched_setaffinity(0, work.cores)
    try:
        yield
    finally:
        if cores:
            os.sched_setaffinity(0, cores)
        for name in work.environment:
            del os.environ[name]
            os.environ.update({name: before[name]} if name in before else {})


def _serve(connection: Connection, prepare: Prepare, work: Work) -> None:
    """Run in the child: prepare, then do a repeat for each message, until the parent is gone."""
    os.setsid()  # signals reach its descendants too
    with contextlib.suppress(OSError, AttributeError):  # Linux ends it with its parent, if stopped
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        repeat, about = prepare(work)
        connection.send(about)
        with contextlib.suppress(EOFError):
            while connection.recv():
                connection.send(repeat())
    except (Absent, UserError) as error:
        connection.send(error)
    except Exception as error:
        traceback.print_exc()
        connection.send(FailedError(f"{type(error).__name__}: {error}"))


@dataclass(frozen=True)
class Race:
    """Figures of the competitors by name; ours is `ours`.

    Attributes:
        figures: Of each that took part, repeat by repeat.
        absent: Why the others did not.
        about: How each works.
    """

    figures: Mapping[str, Sequence[Figures]]
    absent: Mapping[str, str] = field(default_factory=dict)
    about: Mapping[str, str] = field(default_factory=dict)

    def column(self, unit: str, name: str = "ours") -> tuple[float, ...]:
        """One figure of a competitor, repeat by repeat."""
        return tuple(one[unit] for one in self.figures[name])

    def results(
        self, name: str, goals: Mapping[tuple[str, str], float | None] | None = None
    ) -> list[Result]:
        """Our figures, then beside each peer those that both have.

        Args:
            name: What was measured.
            goals: By competitor and unit.
        """
        goals, units = goals or {}, list(self.figures["ours"][0])
        found = []
        for unit in units:
            note = self.about.get("ours", "") if unit == units[0] else ""
            goal = goals.get(("ours", unit))
            found.append(Result(name, unit, self.column(unit), goal=goal, note=note))
        for peer, figures in self.figures.items():
            for unit in units if peer != "ours" else ():
                if unit in figures[0]:
                    note = self.about.get(peer, "") if unit == units[0] else ""
                    sides = self.column(unit), self.column(unit, peer), peer
                    goal = goals.get((peer, unit))
                    found.append(Result(f"{name} vs {peer}", unit, *sides, goal=goal, note=note))
        for peer, reason in self.absent.items():
            found.append(Result(f"{name} vs {peer}", units[0], peer_name=peer, absent=reason))
        return found


def compete(tasks: Mapping[str, tuple[Prepare, Work]], repeats: int) -> Race:
    """Interleave the repeats of competitors, after one of each to warm up.

    Args:
        tasks: By name; `ours` must take part.
        repeats: Number of repeats.

    Raises:
        Absent, FailedError: Ours cannot take part, or failed.
    """
    running, absent, about = {}, {}, {}
    with ExitStack() as stack:
        for name, task in tasks.items():
            try:
                competitor = stack.enter_context(Competitor(*task))
                competitor.repeat()
            except (Absent, FailedError) as reason:
                if name == "ours":
                    raise
                absent[name] = why(reason)
                continue
            running[name], about[name] = competitor.repeat, competitor.about
        return Race(interleave(running, repeats), absent, about)


def why(reason: Absent | FailedError) -> str:
    """In a line, why a competitor does not take part."""
    words = str(reason).partition("\n")[0]
    return f"failed: {words}" if isinstance(reason, FailedError) else words
