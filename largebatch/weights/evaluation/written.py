"""The files of an evaluation: summary.json, classes.csv, confusion.csv and predictions.csv."""

import csv
import io
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from largebatch.files import replacing, write_json
from largebatch.weights.evaluation import confusion
from largebatch.weights.evaluation import figures as plots
from largebatch.weights.evaluation.results import Report

_DIGITS = 7  # significant, as many as float32 has


def write(
    report: Report,
    directory: Path,
    name_of: Callable[[int], str],
    environment: dict[str, Any],
) -> list[Path]:
    """Writes all of it, each file whole or not at all.

    Args:
        report: What was found.
        directory: Made where it is absent.
        name_of: The name of an image by its id.
        environment: Devices and versions, for the summary.

    Returns:
        The files.
    """
    paths = [directory / name for name in ("summary.json", *_TABLES)]
    write_json(paths[0], report.summary() | {"environment": environment})
    for name, table in _TABLES.items():
        _write_csv(directory / name, table(report, name_of))
    drawings = {
        "confusion.png": plots.confusion_png,
        "reliability.png": plots.reliability_png,
    }
    for name, draw in drawings.items():
        paths.append(directory / name)
        draw(report, paths[-1])
    return paths


def class_rows(report: Report, name_of: Callable[[int], str]) -> Iterable[Sequence[Any]]:
    """A header and a row for each class of the data, in its order."""
    del name_of
    yield (
        "label", "class", "support", "predicted", "recall", "top5_recall", "precision", "f1"
    )  # fmt: skip
    found = report.per_class
    for label in report.matching.outputs.tolist():
        yield (
            label,
            report.matching.classes[label],
            found.support[label],
            found.predicted[label],
            *(
                _number(values[label])
                for values in (found.recall, found.recall5, found.precision, found.f1)
            ),
        )


def confusion_rows(report: Report, name_of: Callable[[int], str]) -> Iterable[Sequence[Any]]:
    """A header and a row for each class of the data: how many images were taken for which class."""
    del name_of
    rows, columns = confusion.shown(report.matrix, report.matching.outputs)
    classes = report.matching.classes
    yield ("class", *(classes[column] for column in columns.tolist()))
    for row in rows.tolist():
        yield (classes[row], *report.matrix[row, columns].tolist())


def prediction_rows(report: Report, name_of: Callable[[int], str]) -> Iterable[Sequence[Any]]:
    """A header and a row for each image."""
    outcomes, classes = report.outcomes, report.matching.classes
    kept = outcomes.kept
    ranks = range(1, kept.top.shape[1] + 1)
    yield (
        *("id", "name", "label", "class", "right", "unreadable", "loss", "probability"),
        *(column for rank in ranks for column in (f"top{rank}", f"top{rank}_probability")),
    )
    grey = set(report.unreadable.ids)
    for row, (example, label) in enumerate(
        zip(outcomes.ids.tolist(), outcomes.labels.tolist(), strict=True)
    ):
        top = zip(kept.top[row].tolist(), kept.probabilities[row].tolist(), strict=True)
        yield (
            example,
            name_of(example),
            label,
            classes[label],
            int(kept.top1[row]),
            int(example in grey),
            _number(kept.loss[row]),
            _number(kept.of_label[row]),
            *(
                cell
                for output, p in top
                for cell in (classes[output] if output >= 0 else "", _number(p))
            ),
        )


_TABLES = {
    "classes.csv": class_rows,
    "confusion.csv": confusion_rows,
    "predictions.csv": prediction_rows,
}


def _number(value: float | np.floating) -> str:
    """As short as float32 is exact; nothing for what is not defined."""
    return f"{value:.{_DIGITS}g}" if math.isfinite(value) else ""


def _write_csv(path: Path, rows: Iterable[Sequence[Any]]) -> None:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    with replacing(path) as stream:
        # Names of files need not be UTF-8; their bytes stay.
        stream.write(text.getvalue().encode("utf-8", "surrogateescape"))
