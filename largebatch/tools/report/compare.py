"""Compare runs: options that differ, labels made of them, and intervals over seeds."""

import json
import math
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from largebatch.config.schema import Config, options
from largebatch.tools.report.runs import Run

NONE = "–"
SEED = "run.seed"
_PLACES = ("data.source", "data.data_dir")
"""Options that say where the dataset is."""
_EVALUATED = ("data.evaluation_", "norm.statistics", "norm.precise_")
"""Options of evaluation begin like these: they change the result, but not the training."""
_NAMED = 3
"""Most options in the label of a run."""
_LETTERS = 70
"""Most characters of a label."""


class Difference(NamedTuple):
    """An option that runs set differently."""

    key: str  # section.key
    values: tuple[Any, ...]  # in each run; None where the run has no configuration
    mathematics: bool | None  # whether it changes what is computed; None for an unknown option


def differing(runs: Sequence[Run]) -> tuple[Difference, ...]:
    """Return the options that not all runs have alike, in the order of the schema.

    An option that another version did not have counts at its default, or as None if it is unknown
    here. A run without a configuration makes no difference. The same dataset at another path does
    not change the mathematics.
    """
    moved = len({dataset(run) for run in runs if run.options}) == 1
    known = {key: field for key, _, field in options(Config())}
    every = [run.options for run in runs]
    rows = []
    for key in dict.fromkeys([*known, *(key for found in every for key in found)]):
        default = known[key].default if key in known else None
        default = list(default) if isinstance(default, tuple) else default
        values = tuple(found.get(key, default) if found else None for found in every)
        distinct = {repr(value) for value, found in zip(values, every, strict=True) if found}
        if len(distinct) > 1:
            mathematics = known[key].metadata["mathematics"] if key in known else None
            mathematics = mathematics and not (moved and key in _PLACES)
            rows.append(Difference(key, values, mathematics))
    return tuple(rows)


def dataset(run: Run) -> tuple[str, ...]:
    """Return what identifies the dataset of a run, wherever it is; the option without facts."""
    facts, source = run.config.get("facts") or {}, run.config.get("source") or {}
    if not facts.get("identity"):
        return tuple(repr(run.options.get(key)) for key in _PLACES)
    sizes = ("train_examples", "validation_examples", "classes", "identity", "content")
    return (*(str(facts.get(name)) for name in sizes), repr(source.get("classes")))


def dataset_names(runs: Sequence[Run]) -> list[str]:
    """Return the dataset of each run for people; equal only for the same dataset."""
    names: dict[tuple[str, ...], str] = {}
    for run in runs:
        facts, name = run.config.get("facts") or {}, str(run.options.get("data.source", NONE))
        if facts.get("identity"):
            name += f", {facts['train_examples']:,} images, {facts['classes']:,} classes"
        if dataset(run) not in names:
            others = sum(known.partition(" (")[0] == name for known in names.values())
            names[dataset(run)] = f"{name} ({others + 1})" if others else name
    return [names[dataset(run)] for run in runs]


def labels(runs: Sequence[Run]) -> list[str]:
    """Return a distinct label of each run: the options that distinguish it, or its directory.

    Options (`schedule.peak=0.5`) are used where one to three that change the mathematics differ,
    and for the trials of a sweep those that it varies. Labels that runs share get the
    directory as well.
    """
    found = [each for each in differing(runs) if each.mathematics is not False]
    if varied := {key for run in runs if run.trial for key in run.trial.values}:
        found = [each for each in found if each.key in varied]
    directories = [run.name for run in runs]
    if not 1 <= len(found) <= _NAMED:
        return directories
    made = [
        ", ".join(f"{each.key}={value_text(each.values[i])}" for each in found)
        if run.options
        else run.name
        for i, run in enumerate(runs)
    ]
    if max(map(len, made)) > _LETTERS:
        return directories
    shared = Counter(made)
    return [
        f"{label} ({name})" if shared[label] > 1 else label
        for label, name in zip(made, directories, strict=True)
    ]


def value_text(value: object) -> str:
    """Return the value of an option for people; floats with six significant digits."""
    if isinstance(value, str):
        return value or "(empty)"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(value_text, value))}]"
    return NONE if value is None else json.dumps(value, ensure_ascii=False)


class Interval(NamedTuple):
    """A mean and half the width of its 95 % interval, which is None for a single value."""

    mean: float
    half: float | None


def interval(values: Sequence[float]) -> Interval:
    """Return the mean with the 95 % interval of Student's t: mean ± t(0.975, n − 1) · s / √n.

    Args:
        values: one or more.
    """
    count, mean = len(values), statistics.fmean(values)
    if count < 2:
        return Interval(mean, None)
    from scipy.stats import t

    half = float(t.ppf(0.975, count - 1)) * statistics.stdev(values) / math.sqrt(count)
    return Interval(mean, half)


def groups(runs: Sequence[Run]) -> list[list[Run]]:
    """Group the runs on one dataset whose results differ by the seed only, in the order given.

    Options that do not change the mathematics (`run.profile`, `data.threads`) separate no runs.

    A seed counts once: of several runs with one seed, the first that is complete counts, else the
    first. The others are groups of their own, and so are runs without a configuration.
    """
    counting: dict[tuple[str, str], Run] = {}
    for run in sorted(runs, key=lambda run: not run.is_complete):
        counting.setdefault(_recipe_and_seed(run), run)
    found: dict[str, list[Run]] = {}
    for run in runs:
        recipe, seed = _recipe_and_seed(run)
        alone = not run.options or counting[recipe, seed] is not run
        found.setdefault(str(run.path.resolve()) if alone else recipe, []).append(run)
    return list(found.values())


def further_columns(runs: Sequence[Run], name: str) -> dict[str, str]:
    """Return {column: title} of further validation results.

    These are results of averaged weights (``schedule.ema``) and of further validation sets.

    Args:
        runs: their columns are joined, in the order of the rows.
        name: ``top1`` or ``loss``.
    """
    found = dict.fromkeys(
        column for run in runs for row in run.metrics for column in row if "/" in column
    )
    titles = {}
    for column in found:
        place, _, result = column.rpartition("/")
        if result == f"ema_{name}":
            titles[column] = f"{place}, averaged weights"
        elif result == name and place != "validation":
            titles[column] = place
    return titles


def complete(group: Sequence[Run]) -> list[Run]:
    """Return the complete runs; only these count in a mean over seeds."""
    return [run for run in group if run.is_complete]


def _recipe_and_seed(run: Run) -> tuple[str, str]:
    """Return what decides the result of a run beside its seed, and the seed."""
    known = {key: field for key, _, field in options(Config())}
    chosen = {key: repr(value) for key, value in run.options.items()}
    for key, field in known.items():
        kept = field.metadata["mathematics"] or key.startswith(_EVALUATED)
        if not kept or key in _PLACES:
            chosen.pop(key, None)
        elif key not in chosen:  # a version that did not have it
            value = field.default
            chosen[key] = repr(list(value) if isinstance(value, tuple) else value)
    seed = chosen.pop(SEED, "")
    return repr((dataset(run), sorted(chosen.items()))), seed
