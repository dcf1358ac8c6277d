"""Results as a table for the eye."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from benchmarks.measure import Result, summary


def table(title: str, results: Sequence[Result]) -> Table:
    """Ours, the peer's and the ratio: medians, with half the spread of the repeats."""
    shown = Table(title=title, title_justify="left")
    shown.add_column("measured")
    shown.add_column("unit")
    for heading in ("ours", "peer", "ratio", "goal"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for result in results:
        shown.add_row(
            result.name,
            result.unit,
            figure(result.ours),
            "absent" if result.absent else figure(result.peer),
            figure(result.ratios),
            _goal(result),
        )
    return shown


def remarks(results: Sequence[Result]) -> list[str]:
    """What the table has no room for, a line for each result that has such."""
    said = [(result.name, result.absent or result.note) for result in results]
    return [f"{name}: {text}" for name, text in said if text]


def figure(values: Sequence[float]) -> str:
    """The median to three digits and, of several repeats, ± half their range as a share of it."""
    found = summary(values)
    if found is None:
        return "–"
    median, half = found["median"], found["spread"] / 2
    text = f"{median:,.0f}" if abs(median) >= 1000 else f"{median:.3g}"
    if len(values) == 1 or not median:
        return text
    # A share of a median near zero says nothing.
    return f"{text} ±{half:.0%}" if half < 1 else f"{text} ±{half * abs(median):.2g}"


def _goal(result: Result) -> str:
    if result.goal is None:
        return ""
    upward = bool(result.peer_name) or result.better == "more"
    mark = {True: " ✓", False: " ✗", None: ""}[result.reached]
    return f"{'≥' if upward else '≤'} {result.goal:,.4g}{mark}"


def show(title: str, results: Sequence[Result]) -> None:
    """Prints the table, then the remarks."""
    console = Console()
    console.print(table(title, results))
    for line in remarks(results):
        console.print(line, markup=False, highlight=False)
