"""The trials of the study of batch sizes, which is a sweep of configs/imagenette_batch.py."""

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path

from largebatch.config.facts import KNOWN_SETS
from largebatch.errors import UserError

Trial = Mapping[str, str]
"""A row of a sweep's results.csv."""
IMAGES = 32
"""Images of a worker of configs/imagenette_batch.py."""
EXAMPLES = KNOWN_SETS["folder:imagenette2-320"].train
RULES = {"sgd": "SGD, linear scaling", "lars": "LARS, √ scaling", "lamb": "LAMB, √ scaling"}
"""Optimizers, and how their learning rates follow from the batch."""


def batch(trial: Trial) -> int:
    """Return the number of images in a step of a trial of configs/imagenette_batch.py."""
    return int(trial["batch.workers"]) * IMAGES


def by_batch(trials: Iterable[Trial]) -> dict[int, list[Trial]]:
    """Return the trials at each batch, the smallest batch first."""
    found: dict[int, list[Trial]] = {}
    for trial in sorted(trials, key=batch):
        found.setdefault(batch(trial), []).append(trial)
    return found


def complete_top1(trials: Iterable[Trial]) -> list[float]:
    """Return top-1 of the complete ones, as fractions."""
    return [float(trial["top1"]) for trial in trials if trial["state"] == "complete"]


def ended_trials(folder: Path) -> list[Trial]:
    """Return the complete and the diverged trials of a sweep, or of a record of several sweeps.

    Args:
      folder: with results.csv, or results_SEED.csv.

    Raises:
      UserError: no such trial.
    """
    rows: list[Trial] = []
    for file in sorted(folder.glob("results*.csv")):
        with file.open(newline="") as lines:
            rows += csv.DictReader(lines)
    rows = [row for row in rows if row.get("state") in ("complete", "diverged")]
    if not rows:
        raise UserError(
            f"{folder}: expected results.csv of a sweep with an ended trial; found none"
        )
    return rows
