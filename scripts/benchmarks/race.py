"""Competitors in turn: which take part, what their repeats gave, and why others did not."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from benchmarks.competitor import Competitor, FailedError
from benchmarks.measure import interleave
from benchmarks.runner import Figures
from benchmarks.workload import Absent, Task


@dataclass(frozen=True)
class Race:
    """What came of the competitors, by name; ours is `ours`.

    Attributes:
        figures: Of each that took part, repeat by repeat.
        absent: Why the others did not.
        about: How each did it.
    """

    figures: Mapping[str, Sequence[Figures]]
    absent: Mapping[str, str] = field(default_factory=dict)
    about: Mapping[str, str] = field(default_factory=dict)


def compete(tasks: Mapping[str, tuple[str, Task]], repeats: int) -> Race:
    """A repeat of each in turn, each in a process of its own that otherwise stands still.

    Args:
        tasks: By name, the module of `benchmarks.runner` and its work; `ours` must take part.
        repeats: After one of each to warm up.

    Raises:
        Absent: Ours cannot take part.
        FailedError: Ours failed.
    """
    running, absent, about = {}, {}, {}
    with ExitStack() as stack:
        for name, (module, work) in tasks.items():
            try:
                competitor = stack.enter_context(Competitor(module, work))
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
