"""What a sweep prints: a line for each trial that begins or ends, and a table of all."""

import csv
import io
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from largebatch.files import replacing
from largebatch.tools.sweep.seeds import SEED, Group
from largebatch.tools.sweep.space import Axis
from largebatch.tools.sweep.trial import ENDED, Objective, State, Trial, is_accuracy
from largebatch.tracking.console import duration

_COLOURS: dict[State, str] = {
    "running": "cyan",
    "complete": "green",
    "diverged": "yellow",
    "pruned": "dim",
    "failed": "red",
}
_EVERY_S = 60.0
_WIDTH = 160
"""Cells of the table where there is no terminal."""


def short_names(keys: Sequence[str]) -> list[str]:
    """Return the options without their sections, unless two become equal."""
    last = [key.rpartition(".")[2] for key in keys]
    return [name if last.count(name) == 1 else key for key, name in zip(keys, last, strict=True)]


def objective_text(value: float | None, objective: Objective) -> str:
    """Return the value of an objective, inf for the worst."""
    if value is None:
        return ""
    return f"{100 * value:.2f} %" if is_accuracy(objective) else f"{value:.4g}"


def print_table(trials: Sequence[Trial], axes: Sequence[Axis], objective: Objective) -> None:
    """Print the trials in the order given, and why some failed."""
    out = _console()
    extra = {"top1": [], "target_s": ["to target"]}.get(objective, [objective])
    figures = ["step", "top-1", *extra, "time"]
    keys = [key for axis in axes for key in axis.keys]
    table = Table(header_style="bold", box=None)
    for name in ["trial", *short_names(keys), "state", *figures]:
        number = name in ("trial", *figures)
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    for trial in trials:
        row = [str(trial.number), *(trial.values.get(key, "") for key in keys), trial.state]
        row += ["" if trial.step is None else f"{trial.step:,}", objective_text(trial.top1, "top1")]
        row += [objective_text(trial.value, objective) for _ in extra]
        row += ["" if trial.seconds is None else duration(trial.seconds)]
        table.add_row(*row, style=_COLOURS.get(trial.state, ""))
    out.print(table)
    for trial in trials:
        if trial.error:
            out.print(f"trial {trial.number} {trial.state}: {trial.error}", soft_wrap=True)


def print_seeds(groups: Sequence[Group], axes: Sequence[Axis], objective: Objective) -> None:
    """Print mean and deviation over the seeds for each choice of the other options."""
    out = _console()
    keys = _keys_beside_seed(axes)
    table = Table(header_style="bold", box=None)
    for name in short_names(keys):
        table.add_column(name, no_wrap=True)
    for name in ("seeds", f"mean {objective}", "deviation"):
        table.add_column(name, justify="right", no_wrap=True)
    for group in groups:
        spread = "" if group.deviation is None else objective_text(group.deviation, objective)
        row = [str(len(group.trials)), objective_text(group.mean, objective), spread]
        table.add_row(*(group.values.get(key, "") for key in keys), *row)
    out.print(table)


def _console() -> Console:
    out = Console(markup=False, emoji=False, highlight=False)
    if not out.is_terminal:
        out.width = _WIDTH
    return out


def summary_line(trials: Sequence[Trial], total: int) -> str:
    """Return the number of trials in each state."""
    counts = Counter(trial.state for trial in trials)
    found = [f"{counts[state]} {state}" for state in (*ENDED, "running") if counts[state]]
    return ", ".join([*found, *([f"{total - len(trials)} to come"] * (total > len(trials)))])


class Progress:
    """Prints a line for each trial that begins or ends, and one a minute."""

    def __init__(self, trials: Sequence[Trial], objective: Objective, total: int) -> None:
        """Print nothing yet; trials that have ended by now are not printed."""
        self._objective, self._total, self._last = objective, total, time.monotonic()
        self._states = {trial.number: trial.state for trial in trials if trial.state in ENDED}

    def __call__(self, trials: Sequence[Trial]) -> bool:
        """Print what has changed; return whether a trial has begun or ended."""
        changed = [trial for trial in trials if self._states.get(trial.number) != trial.state]
        for trial in changed:
            print(line(trial, self._objective), flush=True)
            self._states[trial.number] = trial.state
        if not changed and time.monotonic() - self._last < _EVERY_S:
            return False
        if not changed:
            print(summary_line(trials, self._total), flush=True)
        self._last = time.monotonic()
        return bool(changed)


def line(trial: Trial, objective: Objective) -> str:
    """Return a trial in one line."""
    values = ", ".join(f"{key}={value}" for key, value in trial.values.items())
    text = f"trial {trial.number} {trial.state}: {values}"
    figures = []
    if trial.state in ENDED and trial.top1 is not None:
        figures.append(f"top-1 {objective_text(trial.top1, 'top1')}")
    if trial.state in ("complete", "diverged") and objective != "top1":
        figures.append(f"{objective} {objective_text(trial.value, objective)}")
    if trial.state in ENDED and trial.step is not None:
        figures.append(f"step {trial.step:,}")
    if trial.state in ENDED and trial.seconds is not None:
        figures.append(duration(trial.seconds))
    text += f" → {', '.join(figures)}" if figures else ""
    return text + (f": {trial.error}" if trial.error else "")


def write_csv(path: Path, trials: Sequence[Trial], axes: Sequence[Axis]) -> None:
    """Write a row for each trial in the order given; a cell without a figure is empty."""
    keys = [key for axis in axes for key in axis.keys]
    figures = ("value", "top1", "loss", "step", "seconds", "error")
    rows = [
        [
            t.number,
            *(t.values.get(key, "") for key in keys),
            t.state,
            *(getattr(t, f) for f in figures),
        ]
        for t in trials
    ]
    _write(path, [["trial", *keys, "state", *figures], *rows])


def write_seeds(path: Path, groups: Sequence[Group], axes: Sequence[Axis]) -> None:
    """Write mean and deviation over the seeds, a row for each choice of the other options."""
    keys = _keys_beside_seed(axes)
    rows = [
        [*(g.values.get(key, "") for key in keys), len(g.trials), g.mean, g.deviation]
        for g in groups
    ]
    _write(path, [[*keys, "seeds", "mean", "deviation"], *rows])


def _keys_beside_seed(axes: Sequence[Axis]) -> list[str]:
    return [key for axis in axes for key in axis.keys if key != SEED]


def _write(path: Path, rows: Sequence[Sequence[object]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    with replacing(path) as stream:
        stream.write(text.getvalue().encode())
