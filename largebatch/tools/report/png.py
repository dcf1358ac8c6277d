"""PNG files of the figures, for slides, papers and documents."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from largebatch.tools.report.figures import HEAT, SERIES, Bars, Chart, Figure, HeatMap, Line, Panel

_WIDTH = 6.0
_LETTERS = 100
"""Characters of a line of the legend."""
_CSS_INCH = 80.0
"""Pixels of a panel's height that make an inch."""
_INK, _MUTED, _GRID, _BAD = "#20242c", "#5b6371", "#e4e7ec", "#b3362c"
COLOURS = ("#1d6fb8", "#c4561b", "#1b8a5b", "#8750a8", "#a67a02", "#0c8891", "#c13a6d", "#69717d")
"""Colours of curves, as in the light theme of page.css; readable for colour-blind people."""
_STYLE = {
    "font.size": 8.2,
    "axes.titlesize": 8.5,
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.linewidth": 0.7,
    "lines.linewidth": 1.4,
    "legend.frameon": False,
    "text.color": _INK,
    "text.parse_math": False,
    **dict.fromkeys(("axes.titlecolor", "axes.labelcolor", "legend.labelcolor"), _MUTED),
    **dict.fromkeys(("xtick.labelcolor", "ytick.labelcolor"), _MUTED),
    **dict.fromkeys(("axes.edgecolor", "grid.color", "xtick.color", "ytick.color"), _GRID),
}


def write(figure: Figure, path: Path) -> None:
    """Write a figure with its title on white; a chart against the first axis that it has."""
    import matplotlib as mpl

    with mpl.rc_context(_STYLE):
        if isinstance(figure, Chart):
            made = _chart(figure)
        else:
            made = _map(figure) if isinstance(figure, HeatMap) else _bars(figure)
        made.suptitle(figure.title, x=0.01, ha="left", fontsize=9.5, fontweight="bold")
        made.savefig(path, dpi=180, metadata={"Software": None})


def _panels(heights: Sequence[float]) -> tuple[Any, list[Any]]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    made = Canvas(figsize=(_WIDTH, 0.8 + sum(heights)), layout="constrained")
    FigureCanvasAgg(made)
    options = {"squeeze": False, "sharex": True, "height_ratios": heights}
    return made, [row[0] for row in made.subplots(len(heights), 1, **options)]


def _chart(chart: Chart) -> Any:
    axis, label = next(iter(chart.axes.items()), ("epochs", "epochs"))
    made, axes = _panels([panel.height / _CSS_INCH + 0.3 for panel in chart.panels])
    for ax, panel in zip(axes, chart.panels, strict=True):
        for line in panel.lines:
            _line(ax, line, axis)
        for mark in chart.marks:
            at = float(mark.x[axis][0])
            if math.isfinite(at):
                colour = _BAD if mark.bad else _MUTED
                ax.axvline(at, color=colour, linewidth=0.8, alpha=0.6)
        for value, text in panel.levels:
            ax.axhline(value, color=_MUTED, linewidth=1, linestyle="--", label=text)
        _scale(ax, panel)
    axes[-1].set_xlabel(label)
    found: dict[str, Any] = {}
    for ax in axes:
        found |= dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
    if len(found) > 1:
        columns = max(1, min(len(found), _LETTERS // (6 + max(map(len, found)))))
        made.legend(found.values(), found, loc="outside lower left", ncols=columns)
        made.set_figheight(made.get_figheight() + 0.18 * -(-len(found) // columns))
    return made


def _line(ax: Any, line: Line, axis: str) -> None:
    x = line.x[axis]
    known = np.isfinite(x)
    dashes, index = divmod(line.colour, SERIES)
    colour = COLOURS[index]
    if line.band is not None:
        low, high = (edge[known] for edge in line.band)
        ax.fill_between(x[known], low, high, color=colour, alpha=0.2, linewidth=0)
    ax.plot(
        x[known],
        line.y[known],
        color=colour,
        # Matplotlib leaves labels with a leading underscore out of the legend.
        label=f" {line.label}" if line.label.startswith("_") else line.label,
        linestyle=("-", "--", ":", "-.")[dashes % 4],
        drawstyle="steps-post" if line.steps else "default",
        marker="o" if line.dots else None,
        markersize=3,
    )


def _scale(ax: Any, panel: Panel) -> None:
    ax.set_title(panel.title)
    if panel.log:
        ax.set_yscale("log")
        _plain_log(ax.yaxis)
    elif panel.zero:
        ax.set_ylim(bottom=0)


def _plain_log(axis: Any) -> None:
    """Set ticks that are plain numbers, at least two in any range."""
    from matplotlib.ticker import LogLocator, NullLocator

    low, high = sorted(axis.get_view_interval())
    decades = math.log10(high / low) if low > 0 else 1.0
    subs = (1.0,) if decades > 3 else (1.0, 3.0) if decades > 1.5 else (1.0, 2.0, 5.0)
    axis.set_major_locator(LogLocator(subs=subs, numticks=8))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter("{x:g}")


def _map(found: HeatMap) -> Any:
    from matplotlib.colors import LogNorm

    count = len(found.names)
    made, (ax,) = _panels([max(0.9, 0.135 * count)])
    low, high = found.scale
    shown = np.where(found.values > 0, found.values, np.where(found.values == 0, low, np.nan))
    # A column reaches from the one before it, or from 0, to its own x.
    edges = np.concatenate([[min(0.0, found.x[0] - 1e-9)], found.x])
    norm, rows = LogNorm(low, high, clip=True), np.arange(count + 1) - 0.5
    image = ax.pcolormesh(edges, rows, shown, norm=norm, cmap=HEAT, rasterized=True)
    ax.set(ylim=(count - 0.5, -0.5), xlabel=found.label)
    ax.set_yticks(range(count), found.names, fontsize=6.5)
    ax.grid(visible=False)
    bar = made.colorbar(image, cax=ax.inset_axes((1.02, 0, 0.025, 1)))
    bar.outline.set_visible(False)
    _plain_log(bar.ax.yaxis)
    return made


def _bars(found: Bars) -> Any:
    made, (ax,) = _panels([0.4 + 0.26 * len(found.rows)])
    titles = [title for title, _ in found.rows]
    left = np.zeros(len(titles))
    for part, colour in found.colours.items():
        width = np.array([parts.get(part, 0.0) for _, parts in found.rows])
        if width.any():
            hue = COLOURS[colour]
            bars = ax.barh(titles, width, 0.66, left, color=hue, label=part)
            left += width
    if len(found.colours) == 1:
        ax.bar_label(bars, fmt="%.1f", padding=3)
    else:
        ax.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=6, borderaxespad=0.2)
    ax.set(xlabel=found.unit, ylim=(len(titles) - 0.5, -0.5))
    ax.grid(axis="y", visible=False)
    return made
