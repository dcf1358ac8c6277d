"""The objective against each option with numbers, a line for each choice of the others."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

from largebatch import plots
from largebatch.tools.sweep import view
from largebatch.tools.sweep.seeds import SEED, Group
from largebatch.tools.sweep.space import Axis
from largebatch.tools.sweep.trial import Objective, is_accuracy

FILE = "curves.png"
_LEAST, _MOST = 3, 8  # points of a line, and lines of a panel
_LOGARITHMIC = 8  # ratio of the greatest to the least number from which an axis is logarithmic


@dataclasses.dataclass(frozen=True)
class Panel:
    """The objective against one option."""

    key: str
    unit: str
    """Unit of a duration; empty for a number."""
    lines: dict[str, list[tuple[float, Group]]]
    """Points by those values of the other options that tell them apart, in the order of numbers."""


def panels(groups: Sequence[Group], axes: Sequence[Axis]) -> list[Panel]:
    """Return a panel for each axis along which a number changes.

    Options of one axis change together. The first one whose numbers differ along a line is the
    abscissa; other numbers of the axis follow it, as the learning rate follows the batch. An axis
    with more lines than a panel can show is left out.
    """
    finite = [group for group in groups if math.isfinite(group.mean)]
    others = [key for axis in axes for key in axis.keys if key != SEED]
    return [panel for axis in axes if (panel := _panel(finite, axis, others)) is not None]


def _panel(groups: Sequence[Group], axis: Axis, keys: Sequence[str]) -> Panel | None:
    own = [key for key in axis.keys if key != SEED]
    read = {key: _numbers([group.values[key] for group in groups]) for key in own}
    for key, found in read.items():
        if found is None:
            continue
        numbers, unit = found
        named = _distinguishing_keys(
            groups, [each for each in keys if each not in own or read[each] is None]
        )
        shown = view.short_names(named)
        lines: dict[str, list[tuple[float, Group]]] = {}
        for number, group in zip(numbers, groups, strict=True):
            pairs = zip(shown, named, strict=True)
            name = ", ".join(f"{short}={group.values[each]}" for short, each in pairs)
            lines.setdefault(name, []).append((number, group))
        is_function = all(len(dict(line)) == len(line) for line in lines.values())
        longest = max(map(len, lines.values()), default=0)
        if is_function and longest >= _LEAST and len(lines) <= _MOST:
            ordered = {name: sorted(line, key=lambda p: p[0]) for name, line in lines.items()}
            return Panel(key, unit, dict(sorted(ordered.items(), key=_first_trial)))
    return None


def _distinguishing_keys(groups: Sequence[Group], keys: Sequence[str]) -> list[str]:
    """Return the keys without those that follow from the ones before them."""
    found: list[str] = []
    for key in keys:
        without, with_key = (
            {tuple(group.values[each] for each in chosen) for group in groups}
            for chosen in (found, [*found, key])
        )
        if len(with_key) > len(without):
            found.append(key)
    return found


def _first_trial(line: tuple[str, Sequence[tuple[float, Group]]]) -> int:
    return min(trial.number for _, group in line[1] for trial in group.trials)


def draw(
    directory: Path, groups: Sequence[Group], swept: Sequence[Axis], objective: Objective
) -> list[str]:
    """Draw means, with bars of one standard deviation over seeds; returns the name of the file.

    Nothing is drawn if no number changes.
    """
    found = panels(groups, swept)
    if not found:
        return []
    scale = 100 if is_accuracy(objective) else 1
    made, all_axes = plots.figure(len(found), height=4.6)
    for panel, axes in zip(found, all_axes, strict=True):
        for (name, line), colour in zip(panel.lines.items(), plots.colours(_MOST), strict=False):
            numbers = [number for number, _ in line]
            means = [scale * group.mean for _, group in line]
            bars = [scale * (group.deviation or 0.0) for _, group in line]
            style = {"marker": "o", "markersize": 4, "linewidth": 1.4, "capsize": 3}
            axes.errorbar(numbers, means, yerr=bars, color=colour, label=name, **style)
        every = [number for line in panel.lines.values() for number, _ in line]
        if min(every) > 0 and max(every) >= _LOGARITHMIC * min(every):
            axes.set_xscale("log")
        axes.set_xlabel(f"{panel.key}, {panel.unit}" if panel.unit else panel.key)
        axes.set_ylabel(f"{objective}, %" if is_accuracy(objective) else objective)
        if any(panel.lines):
            axes.legend(fontsize=8, frameon=False)
    plots.save(made, directory / FILE)
    return [FILE]


def _numbers(texts: Sequence[str]) -> tuple[list[float], str] | None:
    """Return the numbers and their unit; None if one is no finite number, or units differ."""
    parts = [text.split(maxsplit=1) for text in texts]
    try:
        numbers = [float(part[0]) for part in parts]
    except (ValueError, IndexError):
        return None
    # A zero is the same in all units.
    units = {" ".join(part[1:]) for part, n in zip(parts, numbers, strict=True) if n or part[1:]}
    if len(units) > 1 or not all(map(math.isfinite, numbers)):
        return None
    return numbers, units.pop() if units else ""
