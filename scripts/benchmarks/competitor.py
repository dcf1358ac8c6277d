"""Races: interleaved repeats of competitors, in this process or in child processes.

A child process is stopped (SIGSTOP) while another one is measured, so that its prefetching, worker
processes and threads do not disturb the measurement. It runs the code of its parent:
`multiprocessing` gives it the parent's import path.
"""

import contextlib
import ctypes
import dataclasses
import multiprocessing
import os
import signal
import traceback
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Self

from benchmarks.measure import Result
from largebatch.errors import UserError, one_line

Figures = dict[str, float]
"""Figures of one repeat, by unit."""
Prepare = Callable[[Any], tuple[Callable[[], Figures], str]]
"""Work → the function that does one repeat and returns its figures, and a text on how it works."""
_SPAWN = multiprocessing.get_context("spawn")
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
        answer_s: Seconds that it may take for an answer.
    """

    cores: tuple[int, ...] = ()
    answer_s: float = 3600.0

    @classmethod
    def of(cls, flags: Namespace, **more: Any) -> Self:
        """The work that the flags with the names of its attributes describe."""
        names = {each.name for each in dataclasses.fields(cls)}
        return cls(**{k: v for k, v in vars(flags).items() if k in names} | more)

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment variables of its process beyond those of this one."""
        return {}


class Competitor:
    """One competitor's process.

    Attributes:
        about: How it works, in its own words.
    """

    def __init__(self, prepare: Prepare, work: Work) -> None:
        """Start it and wait until it is ready.

        Raises:
            Absent: It cannot take part.
            UserError: The work is impossible, such as data that cannot be read.
            FailedError: It failed, or did not answer within `work.answer_s`.
        """
        self._answer_s = work.answer_s
        self._connection, theirs = _SPAWN.Pipe()
        arguments = theirs, dict(work.environment), work.cores
        self._process = _SPAWN.Process(target=_serve, args=arguments)
        self._process.start()
        theirs.close()
        try:
            # Not an argument: receiving it imports libraries, after the child is set up.
            with contextlib.suppress(BrokenPipeError):  # _reply reports a child that has ended
                self._connection.send((prepare, work))
            self.about: str = self._reply()
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
            if not self._connection.poll(self._answer_s):
                self._signal(signal.SIGKILL)
                raise FailedError(f"failed: no answer in {self._answer_s:g} s")
            reply = self._connection.recv()
        except (EOFError, ConnectionResetError):
            raise FailedError("failed: its process ended") from None
        if isinstance(reply, Exception):
            raise reply
        return reply


def _serve(connection: Connection, environment: Mapping[str, str], cores: Iterable[int]) -> None:
    """Run in the child: prepare, then do a repeat for each message, until the parent is gone."""
    os.setsid()  # signals reach its descendants too
    with contextlib.suppress(OSError, AttributeError):  # Linux ends it with its parent, if stopped
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.environ.update(environment)
    if cores:
        os.sched_setaffinity(0, cores)
    try:
        prepare, work = connection.recv()
        repeat, about = prepare(work)
        connection.send(about)
        with contextlib.suppress(EOFError):
            while connection.recv():
                connection.send(repeat())
    except (Absent, UserError) as error:
        connection.send(error)
    except Exception as error:
        traceback.print_exc()
        connection.send(FailedError(f"failed: {type(error).__name__}: {error}"))


@dataclass(frozen=True)
class Race:
    """Figures of the competitors by name; ours is `ours`.

    Attributes:
        figures: Figures of each competitor, repeat by repeat.
        absent: Why the others did not.
        about: How each works.
        first: Figures of the repeat that warmed up each competitor.
    """

    figures: Mapping[str, Sequence[Figures]]
    absent: Mapping[str, str] = field(default_factory=dict)
    about: Mapping[str, str] = field(default_factory=dict)
    first: Mapping[str, Figures] = field(default_factory=dict)

    def column(self, unit: str, name: str = "ours") -> tuple[float, ...]:
        """One figure of a competitor, repeat by repeat."""
        return tuple(one[unit] for one in self.figures[name])

    def results(self, name: str) -> list[Result]:
        """Our figures, then beside each peer those that both have; `name` is what was measured."""
        units, found = list(self.figures["ours"][0]), []
        for peer, figures in self.figures.items():
            for unit in units:
                note = self.about.get(peer, "") if unit == units[0] else ""
                if peer == "ours":
                    found.append(Result(name, unit, self.column(unit), note=note))
                elif unit in figures[0]:
                    sides = self.column(unit), self.column(unit, peer), peer
                    found.append(Result(f"{name} vs {peer}", unit, *sides, note=note))
        for peer, reason in self.absent.items():
            found.append(Result(f"{name} vs {peer}", units[0], peer_name=peer, absent=reason))
        return found


def interleave(
    competitors: Mapping[str, Callable[[], Figures]], repeats: int
) -> dict[str, list[Figures]]:
    """Call all competitors once, then again (A B C, A B C), so that drift affects all alike."""
    rounds = [{name: call() for name, call in competitors.items()} for _ in range(repeats)]
    return {name: [each[name] for each in rounds] for name in competitors}


def compete(tasks: Mapping[str, tuple[Prepare, Work]], repeats: int) -> Race:
    """Race child processes: interleaved repeats, after one of each to warm up.

    Args:
        tasks: By name; `ours` must take part.
        repeats: Number of repeats.

    Raises:
        Absent, FailedError: Ours cannot take part, or failed.
    """
    running, absent, about, first = {}, {}, {}, {}
    with ExitStack() as stack:
        for name, task in tasks.items():
            try:
                competitor = stack.enter_context(Competitor(*task))
                warmed = competitor.repeat()
            except (Absent, FailedError) as reason:
                if name == "ours":
                    raise
                absent[name] = one_line(reason)
                continue
            running[name], about[name] = competitor.repeat, competitor.about
            first[name] = warmed
        return Race(interleave(running, repeats), absent, about, first)
