"""An evaluation on the screen, and as JSON and CSV files."""

import csv
import io
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from largebatch.files import replacing, write_json
from largebatch.weights.evaluation.metrics import Evaluation

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_WIDTH = 160
_WORST = 10


def screen() -> "Console":
    """Return a console on standard output, wide where that is not a terminal."""
    from rich.console import Console

    console = Console(markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console = Console(markup=False, highlight=False, emoji=False, width=_WIDTH)
    return console


def table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> "Table":
    """Return a table without borders; headings that begin with ``>`` are aligned right."""
    from rich.table import Table
    from rich.text import Text

    result = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    for heading in headings:
        justify = "right" if heading.startswith(">") else "left"
        result.add_column(heading.lstrip(">"), justify=justify, overflow="fold")
    for row in rows:
        result.add_row(*map(Text, row))
    return result


def tables(evaluation: Evaluation) -> list["Table"]:
    """Return the worst classes and the most confused pairs; no table if all images are correct."""
    each, names = evaluation.per_class, evaluation.matching.classes
    worst = [
        (
            names[label],
            f"{each.support[label]:,}",
            f"{each.recall[label]:.1%}",
            f"{each.top5_recall[label]:.1%}",
            f"{each.precision[label]:.1%}" if each.predicted[label] else "–",
            f"{each.f1[label]:.3f}",
        )
        for label in each.worst(_WORST).tolist()
    ]
    confused = [
        (names[label], names[predicted], f"{images:,}", f"{images / each.support[label]:.1%}")
        for label, predicted, images in evaluation.most_confused(_WORST)
    ]
    recalls = ("class", ">images", ">recall", ">in top-5", ">precision", ">F1")
    both = (
        ("worst classes", recalls, worst),
        ("most confused", ("class", "predicted as", ">images", ">of the class"), confused),
    )
    return [table(*each) for each in both if each[2]]


def headline(evaluation: Evaluation) -> list[tuple[str, str]]:
    """Return the metrics of the split, as (label, value)."""
    found, images = evaluation.summary, evaluation.images

    def accuracy(name: str) -> str:
        low, high = found[f"{name}_interval"]
        return (
            f"{found[name]:.2%} ({found[f'{name}_count']:,} of {images:,}; "
            f"95 % interval {low:.2%} to {high:.2%})"
        )

    smoothing, smoothed = found["label_smoothing"], ""
    if smoothing:
        smoothed = f" ({found['smoothed_loss']:.4f} with label smoothing {smoothing:g})"
    note = evaluation.matching.note
    count, not_finite = len(evaluation.unreadable.found), found["not_finite"]
    return [
        ("weights", evaluation.weights),
        ("data", evaluation.data),
        ("classes", evaluation.classes_text),
        *([("matching", note)] if note else []),
        ("top-1", accuracy("top1")),
        ("top-5", accuracy("top5")),
        ("loss", f"{found['loss']:.4f}{smoothed}"),
        (
            "calibration",
            f"expected error {found['expected_calibration_error']:.2%} "
            f"({found['expected_calibration_error_equal_mass']:.2%} in bins of equal counts)",
        ),
        ("Brier score", f"{found['brier']:.4f}"),
        *([("corrupt", f"{count:,} images, evaluated as grey")] if count else []),
        *([("not finite", f"{not_finite:,} images, counted as wrong")] if not_finite else []),
    ]


def write(
    evaluation: Evaluation,
    directory: Path,
    name_of: Callable[[int], str],
    environment: dict[str, Any],
) -> list[Path]:
    """Write ``summary.json`` and three CSV files, each complete or not at all.

    Args:
        evaluation: What was found.
        directory: Created if absent.
        name_of: The file or record of an image, by its id.
        environment: Devices and versions, for the summary.

    Returns:
        The files.
    """
    write_json(directory / "summary.json", evaluation.summary | {"environment": environment})
    rows = {
        "classes.csv": _class_rows(evaluation),
        "confusion.csv": _confusion_rows(evaluation),
        "predictions.csv": _prediction_rows(evaluation, name_of),
    }
    for name, lines in rows.items():
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerows(lines)
        with replacing(directory / name) as stream:
            # File names need not be UTF-8; their bytes are kept.
            stream.write(text.getvalue().encode("utf-8", "surrogateescape"))
    return [directory / name for name in ("summary.json", *rows)]


def _class_rows(evaluation: Evaluation) -> Iterable[Sequence[Any]]:
    found = evaluation.per_class
    columns = ("support", "predicted", "recall", "top5_recall", "precision", "f1")
    yield ("label", "class", *columns)
    for label in evaluation.matching.outputs.tolist():
        values = (_number(getattr(found, column)[label]) for column in columns)
        yield (label, evaluation.matching.classes[label], *values)


def _confusion_rows(evaluation: Evaluation) -> Iterable[Sequence[Any]]:
    matrix, labels = evaluation.matrix, evaluation.matching.outputs
    others = np.setdiff1d(np.flatnonzero(matrix.sum(axis=0)), labels)
    columns = np.concatenate([labels, others])
    names = evaluation.matching.classes
    yield ("class", *(names[column] for column in columns.tolist()))
    for label in labels.tolist():
        yield (names[label], *matrix[label, columns].tolist())


def _prediction_rows(
    evaluation: Evaluation, name_of: Callable[[int], str]
) -> Iterable[Sequence[Any]]:
    outputs, names = evaluation.outputs, evaluation.matching.classes
    ranks = range(1, outputs.top.shape[1] + 1)
    yield (
        *("id", "name", "label", "class", "right", "unreadable", "loss", "probability"),
        *(column for rank in ranks for column in (f"top{rank}", f"top{rank}_probability")),
    )
    grey = {found.example for found in evaluation.unreadable.found}
    for example, label in enumerate(outputs.label.tolist()):
        yield (
            *(example, name_of(example), label, names[label]),
            *(int(outputs.top1[example]), int(example in grey)),
            *(_number(outputs.loss[example]), _number(outputs.label_probability[example])),
            *(
                cell
                for k, p in zip(outputs.top[example], outputs.probabilities[example], strict=True)
                for cell in (names[k] if k >= 0 else "", _number(p))
            ),
        )


def _number(value: Any) -> str:
    """Seven significant digits, as many as float32 has; nothing for what is not finite."""
    if isinstance(value, np.integer):
        return str(value)
    return f"{value:.7g}" if math.isfinite(value) else ""
