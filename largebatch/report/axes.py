"""What the axes of figures share: units, ticks that are plain numbers, legends."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from largebatch.report.canvas import Axes
from largebatch.report.runs import Run
from largebatch.report.series import against

_UNITS = ((3 * 3600.0, 3600.0, "hours"), (300.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))


def height(runs: Sequence[Run]) -> float:
    """Of a panel with a legend of all runs in two columns, in inches."""
    return 2.6 + 0.16 * max(0, len(runs) // 2 - 2)


def run_label(name: str) -> str:
    """A run's name as matplotlib takes it: dollars would be mathematics, `_` would hide it."""
    cut = name if len(name) <= 26 else f"…{name[-25:]}"
    return f" {cut}".replace("$", r"\$") if cut.startswith("_") else cut.replace("$", r"\$")


def legend(ax: Axes) -> None:
    """Above the panel, where no curve runs."""
    entries = len(ax.get_legend_handles_labels()[0])
    if entries:
        columns = 2 if entries > 4 else entries
        ax.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=columns, borderaxespad=0.2)


def unit_of(axis: str, runs: Sequence[Run]) -> tuple[float, str]:
    """What the values of an axis are divided by, and the name of that unit."""
    if axis != "time":
        return 1.0, axis
    times = [against(run.metrics, axis) for run in runs]
    longest = max((float(np.nanmax(x)) for x in times if np.isfinite(x).any()), default=0.0)
    return next((unit, name) for least, unit, name in _UNITS if longest >= least)


def finish(axes: Sequence[Axes], axis: str, unit: tuple[float, str]) -> None:
    """Label the axis that panels above each other share."""
    for ax in axes:
        ax.margins(x=0.01)
        ax.xaxis.set_major_formatter(counted if axis == "samples" else "{x:g}")
        ax.xaxis.set_major_locator(few(6))
    axes[-1].set_xlabel(unit[1])


def plain_log(axis: Any) -> None:
    """A logarithmic axis whose ticks are plain numbers, one to three in each decade."""
    from matplotlib.ticker import LogLocator, NullFormatter, NullLocator

    low, high = (float(edge) for edge in axis.get_view_interval())
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    decades = np.log10(high / low) if 0 < low < high else 1.0
    subs = (1.0,) if decades > 3 else (1.0, 3.0) if decades > 1.5 else (1.0, 2.0, 5.0)
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def few(most: int) -> Any:
    """At most so many ticks, at round numbers."""
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(most, steps=[1, 2, 2.5, 5, 10])


def counted(value: float, _: int = 0) -> str:
    """A large number in few characters."""
    for unit, suffix in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= max(unit, 1e4):
            return f"{value / unit:g}{suffix}"
    return f"{value:,g}"
