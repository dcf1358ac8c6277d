"""What people see of a sweep: a live table in a terminal, plain lines elsewhere, a table of all."""

import csv
import io
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console as RichConsole
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from largebatch.files import replacing
from largebatch.tools.sweep.outcome import ENDED, Objective, State, Trial, ranked
from largebatch.tools.sweep.space import Axis
from largebatch.tracking.progress import duration

_COLOURS: dict[State, str] = {
    "running": "cyan",
    "complete": "green",
    "diverged": "yellow",
    "pruned": "dim",
    "failed": "red",
}
_EVERY_S = 60.0
_FRAME = 8
"""Lines of a terminal that are not rows."""


def short_names(keys: Sequence[str]) -> list[str]:
    """Names of options without their sections, where that leaves them different."""
    last = [key.rpartition(".")[2] for key in keys]
    return [name if last.count(name) == 1 else key for key, name in zip(keys, last, strict=True)]


def objective_text(value: float | None, objective: Objective) -> str:
    """The objective for people."""
    if value is None:
        return ""
    if objective == "top1":
        return f"{100 * value:.2f} %"
    if math.isinf(value):
        return "never" if objective == "target_s" else "diverged"
    return f"{value:.1f} s" if objective == "target_s" else f"{value:.4f}"


def cells(trial: Trial, axes: Sequence[Axis], objective: Objective) -> list[str]:
    """A row of the table."""
    top1 = "" if trial.top1 is None else f"{100 * trial.top1:.2f} %"
    row = [
        str(trial.number),
        *(trial.values.get(key, "") for axis in axes for key in axis.keys),
        trial.state,
        "" if trial.step is None else f"{trial.step:,}",
        top1,
    ]
    if objective != "top1":
        row.append(objective_text(trial.value, objective))
    return [*row, "" if trial.seconds is None else duration(trial.seconds)]


def headings(axes: Sequence[Axis], objective: Objective) -> list[str]:
    """Of the columns of the table."""
    keys = [key for axis in axes for key in axis.keys]
    extra = {"top1": [], "loss": ["loss"], "target_s": ["to target"]}[objective]
    return ["trial", *short_names(keys), "state", "step", "top-1", *extra, "time"]


def table(trials: Sequence[Trial], axes: Sequence[Axis], objective: Objective) -> Table:
    """The trials in the order given."""
    made = Table(header_style="bold", box=None)
    for name in headings(axes, objective):
        numeric = name in ("trial", "step", "top-1", "loss", "to target", "time")
        made.add_column(name, justify="right" if numeric else "left", no_wrap=True)
    for trial in trials:
        made.add_row(*cells(trial, axes, objective), style=_COLOURS.get(trial.state, ""))
    return made


def errors(trials: Sequence[Trial]) -> list[str]:
    """A line for each trial that says why it failed."""
    return [f"trial {t.number} {t.state}: {t.error}" for t in trials if t.error]


def console() -> RichConsole:
    """Standard output; text is printed as it is."""
    return RichConsole(markup=False, emoji=False, highlight=False)


def summary_line(trials: Sequence[Trial], total: int) -> str:
    """How many trials are where."""
    counts = [
        f"{count} {state}"
        for state in ("complete", "diverged", "pruned", "failed", "running")
        if (count := sum(trial.state == state for trial in trials))
    ]
    waiting = total - len(trials)
    return ", ".join([*counts, *([f"{waiting} to come"] if waiting > 0 else [])])


@contextmanager
def watching(
    axes: Sequence[Axis], objective: Objective, total: int
) -> Iterator[Callable[[Sequence[Trial]], None]]:
    """A function to call with the trials again and again while the body runs."""
    out = console()
    if not (out.is_terminal and out.is_interactive) or out.is_dumb_terminal:
        yield PlainLines(axes, objective, total)
        return
    with Live(console=out, transient=True, refresh_per_second=4) as live:

        def show(trials: Sequence[Trial]) -> None:
            shown = sorted(ranked(trials, objective), key=lambda trial: trial.state != "running")
            room = max(3, out.height - _FRAME)
            counts = Text(f"{summary_line(trials, total)}; {total} in all")
            live.update(Group(counts, table(shown[:room], axes, objective)))

        yield show


class PlainLines:
    """A line for each trial that begins or ends, and one a minute."""

    def __init__(
        self,
        axes: Sequence[Axis],
        objective: Objective,
        total: int,
        say: Callable[[str], None] = lambda text: print(text, flush=True),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prints nothing yet."""
        self._axes, self._objective, self._total = axes, objective, total
        self._say, self._clock = say, clock
        self._states: dict[int, State] | None = None
        self._last = clock()

    def __call__(self, trials: Sequence[Trial]) -> None:
        """Says what has changed."""
        now = {trial.number: trial.state for trial in trials}
        before = now if self._states is None else self._states
        if self._states is None:  # what ended in earlier turns is not news
            before = {number: state for number, state in now.items() if state in ENDED}
        for trial in trials:
            if before.get(trial.number) != trial.state:
                self._say(line(trial, self._objective))
                self._last = self._clock()
        if self._clock() - self._last >= _EVERY_S:
            self._say(summary_line(trials, self._total))
            self._last = self._clock()
        self._states = now


def line(trial: Trial, objective: Objective) -> str:
    """A trial in one line."""
    values = ", ".join(f"{key}={value}" for key, value in trial.values.items())
    text = f"trial {trial.number} {trial.state}: {values}"
    if trial.state in ENDED:
        found = trial.value if trial.state == "complete" else None
        about = [
            f"top-1 {100 * trial.top1:.2f} %" if trial.top1 is not None else "",
            f"{objective} {objective_text(found, objective)}"
            if objective != "top1" and found is not None
            else "",
            f"step {trial.step:,}" if trial.step is not None else "",
            duration(trial.seconds) if trial.seconds is not None else "",
        ]
        text += " → " + ", ".join(word for word in about if word)
    return text.removesuffix(" → ") + (f": {trial.error}" if trial.error else "")


def write_csv(path: Path, trials: Sequence[Trial], axes: Sequence[Axis]) -> None:
    """The trials in the order given, a row each; numbers in full, empty where there is none."""
    keys = [key for axis in axes for key in axis.keys]
    figures = ("value", "top1", "loss", "step", "seconds", "error")
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["trial", *keys, "state", *figures])
    for trial in trials:
        values = [trial.values.get(key, "") for key in keys]
        rows.writerow([trial.number, *values, trial.state, *(getattr(trial, f) for f in figures)])
    with replacing(path) as stream:
        stream.write(text.getvalue().encode())
