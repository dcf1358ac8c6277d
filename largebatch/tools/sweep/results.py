"""What the directory of a sweep keeps: settings, results, tables, the command of the winner."""

import csv
import dataclasses
import io
import math
import shlex
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from largebatch.environment import command_path
from largebatch.errors import ConfigError, DataError
from largebatch.files import plain, read_json, replacing, write_json
from largebatch.tools.sweep.space import Choice
from largebatch.tools.sweep.trial import ENDED, Objective, Trial, is_accuracy, worst
from largebatch.tracking.console import duration

NAME, RESULTS, SEEDS = "sweep.json", "results.csv", "seeds.csv"
IMPORTANCE = "importance.csv"
SEED = "run.seed"
_FIGURES = ("state", "value", "top1", "loss", "step", "seconds", "error")
"""Columns of a trial after its values."""
_WIDTH = 160
"""Cells of a table where there is no terminal."""


def is_sweep(workdir: Path) -> bool:
    """Return whether a directory is that of a sweep."""
    return (workdir / NAME).is_file()


def trial_directory(workdir: Path, number: int) -> Path:
    """Return the run directory of a trial."""
    return workdir / "trials" / f"{number:04d}"


def trial_directories(workdir: Path) -> list[Path]:
    """Return the run directories of a sweep by number; none if the directory is not a sweep's."""
    found = (workdir / "trials").glob("*") if is_sweep(workdir) else ()
    return sorted((path for path in found if path.name.isdecimal()), key=lambda p: int(p.name))


def is_trial(path: Path) -> bool:
    """Return whether a path has the place of a trial in a sweep."""
    return path.parent.name == "trials" and is_sweep(path.parent.parent)


def trials_by_number(workdir: Path) -> dict[int, Trial]:
    """Return the trials of a sweep; none if its results cannot be read."""
    try:
        return {trial.number: trial for trial in read_results(workdir)}
    except DataError:
        return {}


def keep_description(workdir: Path, about: Mapping[str, Any]) -> None:
    """Write the description of a sweep, or compare it to the one that is there.

    Args:
      workdir: directory of the sweep.
      about: recipe, overrides, objective, and ``settings``: option → value, with what must stay
        the same when the sweep is resumed.

    Raises:
      ConfigError: the directory holds another sweep, with what differs.
      DataError: the file is damaged.
    """
    path = workdir / NAME
    if not path.exists():
        if (workdir / RESULTS).exists():
            raise DataError(f"{path} is missing beside {RESULTS}; use another --workdir")
        write_json(path, about)
        return
    was, now = read_description(workdir).get("settings"), plain(about["settings"])
    if not isinstance(was, dict):
        raise DataError(f"{path} is damaged; use another --workdir")
    for key in {**now, **was}:
        old, new = was.get(key, "not given"), now.get(key, "not given")
        if old != new:
            raise ConfigError(
                f"{workdir} holds another sweep: {key} was {old}, now {new}; use another --workdir"
            )


def read_description(workdir: Path) -> dict[str, Any]:
    """Return what `keep_description` wrote.

    Raises:
      DataError: there is no sweep, or the file is damaged.
    """
    path = workdir / NAME
    try:
        return read_json(path)
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file; use the --workdir of a sweep") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is damaged ({error}); use another --workdir") from error


def write_results(workdir: Path, trials: Sequence[Trial], keys: Sequence[str]) -> None:
    """Write a row for each trial in the order given; a cell without a figure is empty."""
    rows = [
        [t.number, *(t.values.get(key, "") for key in keys), *(getattr(t, f) for f in _FIGURES)]
        for t in trials
    ]
    _write(workdir / RESULTS, [["trial", *keys, *_FIGURES], *rows])


def read_results(workdir: Path) -> list[Trial]:
    """Return the trials of a sweep in the order of the file.

    Raises:
      DataError: the file is absent or damaged.
    """
    path = workdir / RESULTS
    try:
        with path.open(newline="") as stream:
            return [_trial(row) for row in csv.DictReader(stream)]
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read ({error}); run the sweep again") from error


def write_importance(workdir: Path, shares: Mapping[str, float]) -> None:
    """Write the share of the objective's variance that each axis explains."""
    _write(workdir / IMPORTANCE, [["axis", "share"], *shares.items()])


def read_importance(workdir: Path) -> dict[str, float]:
    """Return what `write_importance` wrote; {} if the file is absent or damaged."""
    try:
        with (workdir / IMPORTANCE).open(newline="") as stream:
            return {row["axis"]: float(row["share"]) for row in csv.DictReader(stream)}
    except (OSError, ValueError, KeyError, TypeError, csv.Error):
        return {}


def _trial(row: Mapping[str, str]) -> Trial:
    values = {key: text for key, text in row.items() if key not in ("trial", *_FIGURES) and text}
    numbers = {key: float(row[key]) if row[key] else None for key in _FIGURES[1:-1]}
    numbers["step"] = int(row["step"]) if row["step"] else None
    return Trial(int(row["trial"]), values, row["state"], **numbers, error=row["error"])


def _write(path: Path, rows: Sequence[Sequence[object]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    with replacing(path) as stream:
        stream.write(text.getvalue().encode())


def train_options(
    recipe: Path, overrides: Sequence[tuple[str, str]], choice: Choice, workdir: Path
) -> tuple[str, ...]:
    """Return the arguments of train.py that run a trial."""
    pairs = [*overrides, *choice.items()]
    options = (f"--config.{key}={value}" for key, value in pairs)
    return (f"--config={recipe}", f"--workdir={workdir}", *options)


def pasteable(arguments: Sequence[str]) -> str:
    """Return the command line of train.py with these arguments, quoted for a shell."""
    parts = [argument.partition("=") for argument in arguments]
    train = shlex.join(["python", command_path("train.py")])
    return " ".join([train, *(f"{a}{b}{shlex.quote(c)}" for a, b, c in parts)])


def best_command(workdir: Path) -> tuple[str, int, int]:
    """Return the command line of train.py that runs the winner of a sweep again.

    Returns:
      The command; the number of trials that have ended; the number of all.

    Raises:
      DataError: there is no sweep, or none of its trials has a result.
    """
    about = read_description(workdir)
    trials = read_results(workdir)
    try:
        recipe, objective = Path(about["recipe"]), about["objective"]
        overrides = [(key, text) for key, text in about["overrides"]]
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{workdir / NAME} is damaged ({error}); use another --workdir") from error
    found = best(trials, objective)
    if found is None:
        raise DataError(f"none of the {len(trials)} trials in {workdir} has a result yet")
    command = pasteable(train_options(recipe, overrides, found.values, workdir / "best"))
    return command, sum(trial.state in ENDED for trial in trials), len(trials)


@dataclasses.dataclass(frozen=True)
class Group:
    """The ended trials with the same values of all options but the seed."""

    values: Choice
    """The options of the trials, without the seed."""
    trials: tuple[Trial, ...]
    """Complete and diverged ones, in the order of their numbers."""

    @property
    def mean(self) -> float:
        """Mean of the objective; of one that diverged, that of its newest evaluation."""
        return statistics.fmean(trial.value for trial in self.trials)

    @property
    def deviation(self) -> float | None:
        """Standard deviation of the objective; None for one trial, or if the mean is infinite."""
        values = [trial.value for trial in self.trials]
        return statistics.stdev(values) if len(values) > 1 and math.isfinite(self.mean) else None


def groups(trials: Sequence[Trial], objective: Objective) -> list[Group]:
    """Return the trials by their values without the seed, the best choice first.

    Choices of which fewer seeds have a result come last, then those of which more seeds have an
    infinite one; the others are in the order of their means.
    """
    found: dict[tuple[object, ...], dict[str, Trial]] = {}
    for trial in sorted(trials, key=lambda trial: trial.number):
        if trial.state in ("complete", "diverged") and trial.value is not None:
            # Equal values without a seed, as random searches may choose them, are not repetitions.
            seed = trial.values.get(SEED, str(trial.number))
            apart = () if SEED in trial.values else (trial.number,)
            found.setdefault((*_without_seed(trial).items(), apart), {}).setdefault(seed, trial)
    made = [
        Group(_without_seed(members[0]), tuple(members))
        for members in (list(each.values()) for each in found.values())
    ]
    sign = -1 if is_accuracy(objective) else 1

    def rank(group: Group) -> tuple[int, int, float]:
        finite = [trial.value for trial in group.trials if math.isfinite(trial.value)]
        mean = statistics.fmean(finite) if finite else 0.0
        return -len(group.trials), len(group.trials) - len(finite), sign * mean

    return sorted(made, key=rank)


def _without_seed(trial: Trial) -> Choice:
    return {key: value for key, value in trial.values.items() if key != SEED}


def best(trials: Sequence[Trial], objective: Objective) -> Trial | None:
    """Return the best trial of the best choice that has a complete one.

    Without a complete trial, those that diverged after an evaluation count; None without such.
    """
    sign = -1 if is_accuracy(objective) else 1
    found = groups(trials, objective)
    complete = [[t for t in group.trials if t.state == "complete"] for group in found]
    evaluated = [[t for t in group.trials if t.value != worst(objective)] for group in found]
    members = next((each for each in (*complete, *evaluated) if each), None)
    return members and min(members, key=lambda trial: sign * trial.value)


def ranked(trials: Sequence[Trial], objective: Objective) -> list[Trial]:
    """Return the best first; then those that were pruned, failed and have not ended.

    Trials that diverged are among the complete ones by their value, after them where it is equal.
    """
    order = (*ENDED, "running", "waiting")
    sign = -1 if is_accuracy(objective) else 1

    def key(trial: Trial) -> tuple[int, float, int, int]:
        value = -(trial.top1 or 0.0) if trial.value is None else sign * trial.value
        place = order.index(trial.state)
        return max(1, place), value, place, trial.number

    return sorted(trials, key=key)


def short_names(keys: Sequence[str]) -> list[str]:
    """Return the options without their sections, unless two become equal."""
    last = [key.rpartition(".")[2] for key in keys]
    return [name if last.count(name) == 1 else key for key, name in zip(keys, last, strict=True)]


def objective_text(value: float | None, objective: Objective) -> str:
    """Return the value of an objective, inf for the worst."""
    if value is None:
        return ""
    return f"{100 * value:.2f} %" if is_accuracy(objective) else f"{value:.4g}"


def summary_line(trials: Sequence[Trial]) -> str:
    """Return the number of trials in each state."""
    counts = Counter(trial.state for trial in trials)
    found = [f"{counts[state]} {state}" for state in (*ENDED, "running") if counts[state]]
    return ", ".join([*found, *([f"{counts['waiting']} to come"] * (counts["waiting"] > 0))])


def _figures(trial: Trial, objective: Objective) -> dict[str, str]:
    """Return how far a trial has come, and its results, as texts; empty where there is none."""
    found = {
        "step": "" if trial.step is None else f"{trial.step:,}",
        "top-1": objective_text(trial.top1, "top1"),
    }
    if objective != "top1":
        name = "to target" if objective == "target_s" else objective
        found[name] = objective_text(trial.value, objective)
    found["time"] = "" if trial.seconds is None else duration(trial.seconds)
    return found


def line(trial: Trial, objective: Objective) -> str:
    """Return a trial in one line."""
    values = ", ".join(f"{key}={value}" for key, value in trial.values.items())
    figures = [f"{name} {text}" for name, text in _figures(trial, objective).items() if text]
    shown = f"trial {trial.number} {trial.state}: {values}"
    shown += f" → {', '.join(figures)}" if figures else ""
    return shown + (f": {trial.error}" if trial.error else "")


def print_results(trials: Sequence[Trial], keys: Sequence[str], objective: Objective) -> None:
    """Print the trials in the order given, and why some failed."""
    figures = [_figures(trial, objective) for trial in trials]
    rows = [
        [str(t.number), *(t.values.get(key, "") for key in keys), t.state, *texts.values()]
        for t, texts in zip(trials, figures, strict=True)
    ]
    out = _print(["trial", *short_names(keys), "state"], [*figures[0]], rows)
    for trial in trials:
        if trial.error:
            out.print(f"trial {trial.number} {trial.state}: {trial.error}", soft_wrap=True)


def keep_seeds(
    workdir: Path, found: Sequence[Group], keys: Sequence[str], objective: Objective
) -> None:
    """Write and print mean and deviation over the seeds for each choice of the other options."""
    others, rows, texts = [key for key in keys if key != SEED], [], []
    for group in found:
        values = [*(group.values.get(key, "") for key in others), len(group.trials)]
        rows.append([*values, group.mean, group.deviation])
        means = (objective_text(number, objective) for number in (group.mean, group.deviation))
        texts.append([*map(str, values), *means])
    _write(workdir / SEEDS, [[*others, "seeds", "mean", "deviation"], *rows])
    _print(short_names(others), ["seeds", f"mean {objective}", "deviation"], texts)


def _print(left: Sequence[str], right: Sequence[str], rows: Sequence[Sequence[str]]) -> Console:
    """Print a table with columns of words and columns of numbers; return where it went."""
    table = Table(header_style="bold", box=None)
    for names, justify in ((left, "left"), (right, "right")):
        for name in names:
            table.add_column(name, justify=justify, no_wrap=True)
    for row in rows:
        table.add_row(*row)
    out = Console(markup=False, emoji=False, highlight=False)
    if not out.is_terminal:
        out.width = _WIDTH
    out.print(table)
    return out
