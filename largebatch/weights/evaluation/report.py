"""An evaluation on the screen, as JSON and CSV files, and as figures."""

import csv
import io
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from largebatch.files import replacing, write_json
from largebatch.plots import colours, figure, save
from largebatch.weights.evaluation.metrics import Evaluation, wilson_interval

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_WIDTH = 160
_WORST = 10
_MATRIX_CLASSES = 50  # up to which the confusion matrix is drawn with all classes
_DRAWN_CLASSES = 30  # of more
_COUNTED_CLASSES = 20  # up to which its cells hold numbers
_LETTERS = 24  # of a name in a figure
_AXIS = (0, 1.02)  # a line at 100 % stays off the frame


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
    count, not_finite = evaluation.unreadable.count, found["not_finite"]
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
    """Write ``summary.json``, three CSV files and two figures, each complete or not at all.

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
    drawn = {
        "confusion.png": confusion_figure(evaluation),
        "reliability.png": reliability_figure(evaluation),
    }
    for name, each in drawn.items():
        save(each, directory / name)
    return [directory / name for name in ("summary.json", *rows, *drawn)]


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
    grey = set(evaluation.unreadable.ids)
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


def reliability_figure(evaluation: Evaluation) -> Any:
    """Draw accuracy against confidence in bins of equal width, and the images of each bin."""
    edges, counts, confidence, accuracy = evaluation.reliability
    summary = evaluation.summary
    drawn, (left, right) = figure(2, width=4.6, height=4.2)
    ink, blue, orange = colours(3)
    bars = {"width": edges[:, 1] - edges[:, 0], "color": blue, "alpha": 0.75}
    middle = edges.mean(axis=1)
    left.bar(middle, accuracy, label="accuracy", **bars)
    pairs = zip(np.rint(accuracy * counts).astype(int), counts.astype(int), strict=True)
    ends = np.array([wilson_interval(*map(int, pair)) for pair in pairs]).reshape(-1, 2).T
    beside = np.maximum([accuracy - ends[0], ends[1] - accuracy], 0)
    label = "at mean confidence, 95 %"
    left.errorbar(confidence, accuracy, yerr=beside, fmt="o", color=ink, label=label)
    left.plot([0, 1], [0, 1], "--", color=orange, label="calibrated")
    left.set(xlim=_AXIS, ylim=_AXIS, xlabel="confidence", ylabel="accuracy")
    left.set_title(
        f"calibration error {summary['expected_calibration_error']:.2%} "
        f"({summary['expected_calibration_error_equal_mass']:.2%} in bins of equal counts)",
        fontsize=9,
    )
    left.legend(loc="upper left", frameon=False, fontsize=8)
    right.bar(middle, counts / max(1, counts.sum()), **bars)
    right.set(xlim=_AXIS, xlabel="confidence", ylabel="fraction of images")
    means = f"mean confidence {summary['mean_confidence']:.2%}, top-1 {summary['top1']:.2%}"
    right.set_title(f"{evaluation.images:,} images, {means}", fontsize=9)
    return drawn


def confusion_figure(evaluation: Evaluation) -> Any:
    """Draw the confusion matrix; of more than 50 classes, that of the 30 of least recall."""
    labels = evaluation.matching.outputs
    if len(labels) > _MATRIX_CLASSES:
        labels = evaluation.per_class.worst(_DRAWN_CLASSES)
    names = [_short(evaluation.matching.classes[label]) for label in labels]
    counts = evaluation.matrix[np.ix_(labels, labels)]
    columns, other = names, evaluation.matrix[labels].sum(axis=1) - counts.sum(axis=1)
    if other.any():
        counts, columns = np.column_stack([counts, other]), [*names, "other"]
    fractions = counts / np.maximum(evaluation.per_class.support[labels][:, None], 1)
    side = max(4.8, 0.24 * len(names) + 2.4)
    drawn, (axes,) = figure(1, width=side + 0.8, height=side)
    image = axes.imshow(fractions, cmap="Blues", vmin=0, vmax=1)
    axes.grid(visible=False)
    axes.set_xticks(range(len(columns)), columns, rotation=90, fontsize=7)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set(xlabel="predicted", ylabel="class")
    axes.set_title(f"{evaluation.classes_text}, {evaluation.images:,} images", fontsize=9)
    if len(names) <= _COUNTED_CLASSES:
        for row, column in zip(*np.nonzero(counts), strict=True):
            colour = "white" if fractions[row, column] > 0.55 else "black"
            text = f"{counts[row, column]:,}"
            axes.text(column, row, text, ha="center", va="center", fontsize=6.5, color=colour)
    drawn.colorbar(image, ax=axes, label="fraction of the class", shrink=0.75)
    return drawn


def _short(name: str) -> str:
    """A name as a figure shows it; a dollar sign would begin a formula."""
    name = name.replace("$", r"\$")
    return name if len(name) <= _LETTERS else f"{name[: _LETTERS - 1]}…"


def _number(value: Any) -> str:
    """Seven significant digits, as many as float32 has; nothing for what is not finite."""
    if isinstance(value, np.integer):
        return str(value)
    return f"{value:.7g}" if math.isfinite(value) else ""
