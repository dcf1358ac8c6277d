"""Helpers for the plots of the studies; each function imports matplotlib on use."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Axes = Any


def figure(columns: int, *, width: float = 5.2, height: float = 3.9) -> tuple[Any, Sequence[Axes]]:
    """Return a figure and its axes, panels in one row; no display is needed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(figsize=(width * columns, height), layout="constrained")
    FigureCanvasAgg(made)
    panels = [made.add_subplot(1, columns, 1 + index) for index in range(columns)]
    for axes in panels:
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    return made, panels


def save(made: Any, path: Path) -> None:
    """Write a PNG without date or version, so that equal plots give equal files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made.savefig(path, dpi=130, metadata={"Software": None})


def colours(count: int) -> list[Any]:
    """Return colours that most people with colour blindness can distinguish."""
    okabe_ito = (
        "#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A6D00"
    )  # fmt: skip
    return [okabe_ito[index % len(okabe_ito)] for index in range(count)]


def band(
    axes: Axes,
    x: Sequence[float],
    mean: Sequence[float],
    deviation: Sequence[float] | None,
    **style: Any,
) -> None:
    """Plot a mean in percent, with a band of one standard deviation."""
    middle = 100 * np.asarray(mean)
    axes.plot(x, middle, **style)
    if deviation is not None:
        around = 100 * np.asarray(deviation)
        low, high = np.maximum(middle - around, 0), np.minimum(middle + around, 100)
        axes.fill_between(x, low, high, color=style.get("color"), alpha=0.12, linewidth=0)


def error_bars(
    axes: Axes, x: Sequence[float], found: Sequence[dict[str, Any]], **style: Any
) -> None:
    """Plot means of fractions in percent, with error bars of one standard deviation."""
    mean = [100 * each["mean"] for each in found]
    bars = [100 * (each["deviation"] or 0.0) for each in found]
    axes.errorbar(x, mean, yerr=bars, capsize=3, marker="o", markersize=4, **style)


def draw_all(
    drawings: dict[str, Callable[[dict[str, Any]], Any]], kept: dict[str, Any], directory: Path
) -> list[Path]:
    """Draw each figure of a record and return the paths of the files."""
    paths = []
    for name, draw in drawings.items():
        paths.append(directory / f"{name}.png")
        save(draw(kept), paths[-1])
    return paths
