"""Figures of a sweep: every trial as a line through its values, and which of them mattered."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from largebatch.plots import figure, save
from largebatch.tools.sweep.outcome import Objective, Trial, maximised
from largebatch.tools.sweep.space import Axis
from largebatch.tools.sweep.view import short_names

_BELOW = -0.1
"""Height of what has no objective."""
_ASIDE = 0.03
_RANKS = ("#d9dde3", "#8fb4d9", "#0b5cad")
"""Colours from the worst rank to the best."""
_TITLES = {"top1": "top-1, %", "loss": "validation loss", "target_s": "s to target"}


def parallel(
    axes: Sequence[Axis], trials: Sequence[Trial], objective: Objective, path: Path
) -> bool:
    """Draw every trial as a line through its values to its objective, coloured by its rank.

    Trials that diverged or never reached the target are dashed and end below it; so are pruned
    ones, which end where they had come to.

    Returns:
      Whether there was one to draw.
    """
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.ticker import MaxNLocator

    scored = [trial for trial in trials if _score(trial, objective) is not None]
    scores = [_score(trial, objective) for trial in scored]
    if not scores:
        return False
    low, high = min(scores), max(scores)
    if low == high:
        low, high = low - abs(low or 1) / 100, high + abs(high or 1) / 100
    # One bad trial would leave a single colour for all others, were it the value.
    ranks = sorted(set(scores), reverse=not maximised(objective))
    made, (panel,) = figure(1, width=max(5.2, 2.1 * (len(axes) + 1)))
    panel.grid(False)
    panel.spines[["left", "bottom"]].set_visible(False)
    panel.tick_params(bottom=False)
    columns = len(axes)
    colours = LinearSegmentedColormap.from_list("ranks", _RANKS)

    def height(trial: Trial) -> float:
        score = _score(trial, objective)
        return _BELOW if score is None else (score - low) / (high - low)

    drawn = [trial for trial in trials if trial.state in ("complete", "diverged", "pruned")]
    # The best are drawn last, on top.
    for index, trial in enumerate(sorted(drawn, key=lambda t: _order(t, objective))):
        score = _score(trial, objective)
        aside = _ASIDE * (_spread(index, len(drawn)) - 0.5)  # or those that share a value hide
        first = score is not None and score == ranks[-1]
        panel.plot(
            range(columns + 1),
            [*(place(axis, trial) + aside for axis in axes), height(trial)],
            color="0.75" if score is None else colours(_spread(ranks.index(score), len(ranks))),
            linestyle="--" if trial.state != "complete" or score is None else "-",
            linewidth=2.6 if first else 1.4,
            alpha=0.9,
        )
    for column, axis in enumerate(axes):
        _upright(panel, column, _ticks(axis))
    scale = 100 if objective == "top1" else 1
    rounds = [n / scale for n in MaxNLocator(6).tick_values(scale * low, scale * high)]
    ends = [(n - low) / (high - low) for n in rounds]
    labels = [(at, f"{scale * n:g}") for at, n in zip(ends, rounds, strict=True) if 0 <= at <= 1]
    lost = sorted({t.state for t in drawn if _score(t, objective) is None} - {"complete"})
    lost_any = any(_score(trial, objective) is None for trial in drawn)
    if lost_any:
        labels.append((_BELOW, ", ".join(lost) or "never"))
    _upright(panel, columns, labels, right=True)
    names = short_names([axis.keys[0] for axis in axes])
    panel.set_xticks([])
    for column, name in enumerate([*names, _TITLES[objective]]):
        panel.text(column, 1.04, name, ha="center", va="bottom", fontsize=9, fontweight="bold")
    panel.set_yticks([])
    panel.set_title(f"{len(drawn)} trials, the best in blue", fontsize=9)
    panel.set_xlim(-0.3, columns + 0.3)
    panel.set_ylim(_BELOW - 0.06 if lost_any else -0.04, 1.12)
    save(made, path)
    return True


def importance(found: Mapping[str, float], trials: int, path: Path) -> None:
    """Draw the share of the objective's variance that each axis explains."""
    made, (panel,) = figure(1, height=1.2 + 0.45 * len(found))
    keys = list(reversed(found))
    names = short_names([key.partition(",")[0] for key in keys])
    bars = panel.barh(names, [100 * found[key] for key in keys], color="#0072B2", height=0.6)
    panel.bar_label(bars, fmt="%.0f %%", padding=3)
    panel.set_xlim(0, 112)
    panel.set_xticks(range(0, 101, 25))
    panel.grid(False, axis="y")
    panel.set_xlabel(f"share of the variance explained, % (fANOVA, {trials} trials)")
    save(made, path)


def place(axis: Axis, trial: Trial) -> float:
    """Where a trial's value stands on an axis, from 0 to 1."""
    if axis.range is None:
        values = tuple(trial.values[key] for key in axis.keys)
        return _spread(axis.points.index(values), len(axis.points))
    return _share(axis, float(trial.values[axis.keys[0]].split()[0]))


def _share(axis: Axis, number: float) -> float:
    low, high = axis.range.low, axis.range.high
    if axis.range.shape == "log":
        low, high, number = math.log(low), math.log(high), math.log(number)
    return (number - low) / (high - low)


def _spread(index: int, count: int) -> float:
    return 0.5 if count == 1 else index / (count - 1)


def _ticks(axis: Axis) -> list[tuple[float, str]]:
    if axis.range is None:
        count = len(axis.points)
        return [(_spread(i, count), " · ".join(axis.points[i])) for i in range(count)]
    texts = [point[0] for point in axis.points] if 0 < len(axis.points) <= 8 else None
    if texts is None:
        texts = list(dict.fromkeys(axis.range.at(share) for share in np.linspace(0, 1, 5)))
    return [(_share(axis, float(text.split()[0])), text) for text in texts]


def _upright(
    panel: Any, x: float, ticks: Sequence[tuple[float, str]], *, right: bool = False
) -> None:
    """A vertical axis over a height of 0 to 1, with its labels beside it."""
    panel.plot([x, x], [0, 1], color="0.4", linewidth=0.8, zorder=3)
    white = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.8}
    side = 1 if right else -1
    for share, text in ticks:
        panel.plot([x, x + side * 0.015], [share, share], color="0.4", linewidth=0.8, zorder=4)
        panel.text(
            x + side * 0.03,
            share,
            text,
            ha="left" if right else "right",
            va="center",
            fontsize=8,
            zorder=5,
            bbox=white,
        )


def _order(trial: Trial, objective: Objective) -> tuple[bool, float]:
    """So that the best come last."""
    score = _score(trial, objective)
    return score is not None, (score or 0.0) * (1 if maximised(objective) else -1)


def _score(trial: Trial, objective: Objective) -> float | None:
    """What a trial is coloured by; None where it has no figure of its own."""
    if trial.state == "pruned":
        value = {"top1": trial.top1, "loss": trial.loss, "target_s": None}[objective]
    else:
        value = trial.value if trial.state == "complete" else None
    return value if value is not None and math.isfinite(value) else None
