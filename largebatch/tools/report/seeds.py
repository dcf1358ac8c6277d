"""Runs that differ in their seed only, and mean and interval over them."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from largebatch.tools.report.runs import Run

SEED = "run.seed"


class Interval(NamedTuple):
    """A mean and half the width of its 95 % interval; None where one value says nothing of it."""

    mean: float
    half: float | None
    count: int


def interval(values: Sequence[float]) -> Interval:
    """Mean with the 95 % interval of Student's t: mean ± t(0.975, n − 1) · s / √n.

    Args:
        values: one or more.
    """
    count, mean = len(values), statistics.fmean(values)
    if count < 2:
        return Interval(mean, None, count)
    from scipy.stats import t

    half = float(t.ppf(0.975, count - 1)) * statistics.stdev(values) / count**0.5
    return Interval(mean, half, count)


def groups(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs whose options are alike but for the seed, each list in the order given.

    A seed counts once: a run that repeats one stands alone, and so do runs without a configuration.
    Of several with one seed, the first that is complete counts, else the first.
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


def complete(group: Sequence[Run]) -> list[Run]:
    """Those whose end is known: figures of others say nothing of the recipe's."""
    return [run for run in group if run.is_complete]


def _recipe_and_seed(run: Run) -> tuple[str, str]:
    return _recipe(run.options), repr(run.options.get(SEED))


def _recipe(chosen: Mapping[str, Any]) -> str:
    return repr(sorted((key, repr(value)) for key, value in chosen.items() if key != SEED))
