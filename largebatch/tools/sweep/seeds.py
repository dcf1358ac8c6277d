"""Trials that differ in their seed alone, as one result with a mean and a deviation."""

import dataclasses
import math
import statistics
from collections.abc import Sequence

from largebatch.tools.sweep.space import Choice
from largebatch.tools.sweep.trial import Objective, Trial, is_accuracy, worst

SEED = "run.seed"


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


def _without_seed(trial: Trial) -> Choice:
    return {key: value for key, value in trial.values.items() if key != SEED}
