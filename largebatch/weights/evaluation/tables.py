"""An evaluation on the screen."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from largebatch.weights.evaluation.confusion import most_confused
from largebatch.weights.evaluation.outcomes import Share
from largebatch.weights.evaluation.results import Report

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

WORST = 10
_CELLS = 160


def screen() -> "Console":
    """Standard output; where it is no terminal, wide enough for rows to stay whole."""
    from rich.console import Console

    console = Console(markup=False, highlight=False, emoji=False)
    if console.is_terminal:
        return console
    return Console(markup=False, highlight=False, emoji=False, width=_CELLS)


def table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> "Table":
    """Rows without boxes; all but the first column that holds numbers go to the right.

    Args:
        title: Above it.
        headings: One a column; those that begin with a `>` are of columns set to the right.
        rows: Texts, in which brackets mean nothing.
    """
    from rich.table import Table
    from rich.text import Text

    made = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    for heading in headings:
        right = heading.startswith(">")
        made.add_column(heading.lstrip(">"), justify="right" if right else "left", overflow="fold")
    for row in rows:
        made.add_row(*map(Text, row))
    return made


def headline(report: Report) -> list[tuple[str, str]]:
    """The figures of the split, as (label, value)."""
    found = report.figures
    smoothing = report.settings.label_smoothing
    smoothed = f" ({found.objective:.4f} with labels smoothed by {smoothing:g}, as trained)"
    rows = [
        ("weights", report.weights),
        ("data", report.data),
        ("classes", report.among),
        ("top-1", _share(found.top1)),
        *([("top-5", _share(found.top5))] if _has_top5(report) else []),
        ("loss", f"{found.loss:.4f}{smoothed if smoothing else ''}"),
        (
            "calibration",
            f"expected error {report.reliability.expected_error:.2%} "
            f"({report.reliability_by_mass.expected_error:.2%} in bins of equally many images)",
        ),
        ("Brier score", f"{found.brier:.4f}"),
    ]
    if report.matching.note:
        rows.insert(3, ("matching", report.matching.note))
    if report.unreadable.count:
        rows.append(("unreadable", f"{report.unreadable.count:,} images, seen as grey"))
    if found.not_finite:
        rows.append(("not finite", f"{found.not_finite:,} images, counted as wrong"))
    return rows


def worst_classes(report: Report) -> "Table | None":
    """The classes of least recall; None where every image is right."""
    found, classes = report.per_class, report.matching.classes
    top5 = _has_top5(report)
    rows = [
        (
            classes[label],
            f"{found.support[label]:,}",
            f"{found.recall[label]:.1%}",
            *([f"{found.recall5[label]:.1%}"] if top5 else []),
            f"{found.precision[label]:.1%}" if found.predicted[label] else "–",
            f"{found.f1[label]:.3f}",
        )
        for label in found.worst(WORST).tolist()
    ]
    within5 = (">in top-5",) if top5 else ()
    headings = ("class", ">images", ">recall", *within5, ">precision", ">F1")
    return table("worst classes", headings, rows) if rows else None


def confused_pairs(report: Report) -> "Table | None":
    """The most frequent mistakes; None without any."""
    classes = report.matching.classes
    rows = [
        (classes[pair.label], classes[pair.predicted], f"{pair.images:,}", f"{pair.share:.1%}")
        for pair in most_confused(report.matrix, report.per_class.support, WORST)
    ]
    headings = ("class", "taken for", ">images", ">of the class")
    return table("most confused", headings, rows) if rows else None


def _has_top5(report: Report) -> bool:
    """Whether the first five guesses are not simply all classes."""
    return len(report.matching.classes) > 5


def _share(share: Share) -> str:
    return (
        f"{share.value:.2%} ({share.count:,} of {share.images:,}; "
        f"95 % interval {share.low:.2%} to {share.high:.2%})"
    )
