"""An evaluation's pictures: confusions and reliability."""

from pathlib import Path
from typing import Any

import numpy as np

from largebatch.plots import colours, figure, save
from largebatch.weights.evaluation.confusion import most_confused
from largebatch.weights.evaluation.outcomes import share_of
from largebatch.weights.evaluation.results import Report

MOST_CLASSES = 50
"""Of which the whole matrix is drawn."""
_COUNTED = 20  # classes up to which the cells hold numbers
_PAIRS = 30
_MOST = 1.02  # of axes of shares: a line at 100 % stays off the frame
_LETTERS = 24  # of a name
_OTHER = "other"


def confusion_png(report: Report, path: Path) -> None:
    """The whole matrix up to 50 classes of the data, else the most confused pairs."""
    drawn = _matrix(report) if len(report.matching.outputs) <= MOST_CLASSES else _pairs(report)
    save(drawn, path)


def reliability_png(report: Report, path: Path) -> None:
    """Accuracy against confidence in bins of equal width, and how many images each bin has."""
    found = report.reliability
    made, (left, right) = figure(2, width=4.6, height=4.2)
    ink, blue, orange = colours(3)
    middle, width = (found.edges[1:] + found.edges[:-1]) / 2, np.diff(found.edges)
    filled = found.counts > 0
    left.bar(
        middle[filled],
        found.accuracy[filled],
        width[filled],
        color=blue,
        alpha=0.75,
        edgecolor="white",
        label="accuracy",
    )
    accuracy, confidence = found.accuracy[filled], found.confidence[filled]
    intervals = [
        share_of(round(share * count), count)
        for share, count in zip(accuracy.tolist(), found.counts[filled].tolist(), strict=True)
    ]
    low, high = (np.array([getattr(each, end) for each in intervals]) for end in ("low", "high"))
    left.errorbar(
        confidence,
        accuracy,
        yerr=np.maximum([accuracy - low, high - accuracy], 0),
        fmt="o",
        color=ink,
        markersize=3.5,
        linewidth=1,
        clip_on=False,
        label="at mean confidence, 95 %",
    )
    left.plot([0, 1], [0, 1], "--", color=orange, linewidth=1.2, label="calibrated")
    left.set(xlim=(0, _MOST), ylim=(0, _MOST), xlabel="confidence", ylabel="accuracy")
    left.set_title(
        f"calibration error {found.expected_error:.2%} "
        f"({report.reliability_by_mass.expected_error:.2%} in bins of equally many)",
        fontsize=9,
    )
    left.legend(loc="upper left", frameon=False, fontsize=8)
    right.bar(middle, found.counts / max(1, found.counts.sum()), width, color=blue, alpha=0.75)
    means = (
        ("mean confidence", report.mean_confidence, ink, ":"),
        ("top-1", report.figures.top1.value, orange, "-"),
    )
    for name, value, colour, style in means:
        right.axvline(value, color=colour, linestyle=style, label=f"{name} {value:.2%}")
    right.set(xlim=(0, _MOST), xlabel="confidence", ylabel="share of images")
    right.set_title(f"{len(report.outcomes):,} images", fontsize=9)
    right.legend(loc="best", framealpha=0.85, edgecolor="none", fontsize=8)
    save(made, path)


def _matrix(report: Report) -> Any:
    labels, matrix = report.matching.outputs, report.matrix
    names = [_short(report.matching.classes[label]) for label in labels]
    counts = matrix[np.ix_(labels, labels)]
    other = matrix[labels].sum(axis=1) - counts.sum(axis=1)
    columns = list(names)
    if other.any():
        counts, columns = np.column_stack([counts, other]), [*names, _OTHER]
    support = np.maximum(report.per_class.support[labels][:, None], 1)
    side = max(4.8, 0.24 * len(names) + 2.4)
    made, (axes,) = figure(1, width=side + 0.8, height=side)
    image = axes.imshow(counts / support, cmap="Blues", vmin=0, vmax=1)
    axes.grid(visible=False)
    size = 8 if len(names) <= _COUNTED else 6
    axes.set_xticks(range(len(columns)), columns, rotation=90, fontsize=size)
    axes.set_yticks(range(len(names)), names, fontsize=size)
    axes.set(xlabel="predicted", ylabel="class")
    axes.set_title(f"{len(report.outcomes):,} images, {report.among}", fontsize=9)
    if len(names) <= _COUNTED:
        for row, column in zip(*np.nonzero(counts), strict=True):
            dark = counts[row, column] > 0.55 * support[row, 0]
            axes.text(
                column,
                row,
                f"{counts[row, column]:,}",
                ha="center",
                va="center",
                fontsize=6.5,
                color="white" if dark else "black",
            )
    made.colorbar(image, ax=axes, label="share of the class", shrink=0.75)
    return made


def _pairs(report: Report) -> Any:
    pairs = most_confused(report.matrix, report.per_class.support, _PAIRS)[::-1]
    classes = report.matching.classes
    made, (axes,) = figure(1, width=7.5, height=1.2 + 0.22 * max(len(pairs), 3))
    names = [f"{_short(classes[p.label])} → {_short(classes[p.predicted])}" for p in pairs]
    bars = axes.barh(range(len(pairs)), [pair.images for pair in pairs], color=colours(2)[1])
    axes.bar_label(bars, [f" {pair.share:.1%}" for pair in pairs], fontsize=7)
    axes.set_yticks(range(len(pairs)), names, fontsize=7)
    axes.set(xlabel="images of the class that are taken for the other (and their share of it)")
    axes.set_title(f"most confused of {report.among}, {len(report.outcomes):,} images", fontsize=9)
    axes.margins(y=0.01)
    return made


def _short(name: str) -> str:
    """What of a name is drawn; a dollar would begin a formula."""
    name = name.replace("$", r"\$")
    return name if len(name) <= _LETTERS else f"{name[: _LETTERS - 1]}…"
