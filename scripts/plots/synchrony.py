"""Figures of the synchrony study, from its record."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from largebatch.plots import band, colours, error_bars, figure

Record = dict[str, Any]
_SHOWN = (
    "wait for all",
    "drop 4",
    "2 backup",
    "deadline 22 ms",
    "asynchronous 4",
    "asynchronous 16",
    "asynchronous 16, no momentum",
)
_HISTOGRAMS = ("wait for all", "drop 1", "4 backup", "deadline 22 ms")


def accuracy(kept: Record) -> Any:
    """Plot accuracy against simulated time, and against the images used."""
    made, (by_time, by_images) = figure(2, height=4.3)
    shown = [each for each in kept["policies"] if each["name"] in _SHOWN] or kept["policies"]
    for each, colour in zip(shown, colours(len(shown)), strict=False):
        curve = each["curve"]
        line = "-" if each["kind"] == "barrier" else "--"
        style = {"color": colour, "label": each["name"], "linestyle": line}
        top1 = curve["top1"], curve["top1_deviation"]
        band(by_time, curve["seconds"], *top1, **style)
        band(by_images, np.asarray(curve["images"]) / 1000, *top1, **style)
    # A few asynchronous workers need several times as long; the axis ends a little after the rest.
    synchronous = [e["seconds"]["mean"] for e in shown if e["kind"] == "barrier"]
    by_time.set_xlim(0, 1.15 * max(synchronous, default=1.0))
    by_time.set_xlabel("simulated time, s")
    by_images.set_xlabel("images used, thousands")
    by_time.set_ylabel("top-1 on held-out digits, %")
    lines, names = by_images.get_legend_handles_labels()
    made.legend(lines, names, fontsize=8, loc="outside lower center", ncols=4, frameon=False)
    for axes in (by_time, by_images):
        axes.set_ylim(0, 100)
    return made


def policies(kept: Record) -> Any:
    """Plot final accuracy and time of each policy of about as many machines."""
    made, (top1, time) = figure(2, height=4.4)
    workers = kept["setup"]["workers"]
    found = [e for e in kept["policies"] if e["kind"] == "barrier" or e["machines"] == workers]
    rows = list(range(len(found)))[::-1]
    mean = [100 * each["top1"]["mean"] for each in found]
    bars = [100 * (each["top1"]["deviation"] or 0.0) for each in found]
    first, second = colours(3)[1:]
    top1.errorbar(mean, rows, xerr=bars, fmt="o", capsize=3, markersize=5, color=first)
    top1.set_yticks(rows, [f"{each['name']} ({each['machines']})" for each in found])
    top1.set_xlim(min(80.0, *mean) - 2 if min(mean) > 60 else 0, 100)
    top1.set_xlabel("top-1 at the end, % (policy, and its machines)")
    time.barh(rows, [e["seconds"]["mean"] for e in found], color=first, alpha=0.35)
    for row, each in zip(rows, found, strict=True):
        if each["to_target_s"]:
            time.plot(each["to_target_s"]["mean"], row, "D", color=second, markersize=6)
    time.plot([], [], "D", color=second, label=f"to {100 * kept['target']:.0f} % top-1")
    time.set_yticks(rows, [""] * len(rows))
    for axes in (top1, time):
        axes.set_ylim(-0.7, len(rows) - 0.3)
    time.set_xlabel("simulated seconds of the whole training")
    time.legend(fontsize=8, loc="lower right")
    return made


def staleness(kept: Record) -> Any:
    """Plot the final accuracy of asynchronous training against the mean staleness."""
    made, (axes,) = figure(1, width=6.0)
    found = [each for each in kept["policies"] if each["kind"] == "asynchronous"]
    for momentum, colour in zip((0.9, 0.0), colours(3)[1:], strict=True):
        if chosen := [each for each in found if each["momentum"] == momentum]:
            stale, top1 = ([e["staleness"]["mean"] for e in chosen], [e["top1"] for e in chosen])
            error_bars(axes, stale, top1, color=colour, label=f"momentum {momentum:g}")
    waited = next((e for e in kept["policies"] if e["name"] == "wait for all"), None)
    if waited:
        label = f"wait for all, {waited['machines']} workers"
        axes.axhline(100 * waited["top1"]["mean"], color="black", linestyle=":", label=label)
    axes.set_xscale("symlog", base=2, linthresh=1)
    axes.set_xticks(ticks := [0, 1, 3, 7, 15, 31], [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlim(-0.15, 40)
    axes.set_ylim(0, 102)
    axes.set_xlabel("mean staleness τ of a gradient, updates")
    axes.set_ylabel("top-1 after the same images, %")
    axes.legend(fontsize=8, loc="lower left")
    return made


def steps(kept: Record) -> Any:
    """Plot the arrivals of gradients and the distribution of step times."""
    made, (curves, histogram) = figure(2)
    ranks, ms = kept["arrivals"]["ranks"], 1000 * np.asarray(kept["arrivals"]["seconds"])
    for each, colour in zip(ranks, colours(len(ranks)), strict=True):
        drawn, exact = (100 * np.asarray(each[key]) for key in ("drawn", "closed_form"))
        label = f"{each['rank']} of {kept['setup']['workers']}"
        curves.plot(ms, drawn, color=colour, linewidth=1.6)
        curves.plot(ms[::3], exact[::3], "o", color=colour, markersize=3, label=label)
    curves.set_xlabel("time since the step began, ms")
    curves.set_ylabel("steps in which so many gradients are there, %")
    curves.legend(fontsize=8, title="drawn, and closed form (dots)", loc="lower right")
    named = {name: kept["steps"][name] for name in _HISTOGRAMS if name in kept["steps"]}
    named = named or kept["steps"]
    for (name, each), colour in zip(named.items(), colours(len(named)), strict=True):
        # Three of the record's bins in one, or the tail is mostly noise.
        edges = 1000 * np.asarray(each["edges"])[::3]
        share = 100 * np.asarray(each["share"]).reshape(-1, 3).sum(1)
        label = f"{name}: mean {1000 * each['mean_s']:.1f} ms"
        histogram.stairs(share, edges, color=colour, label=label, linewidth=1.4)
    histogram.set_yscale("log")
    histogram.set_ylim(0.02, 130)
    histogram.set_xlabel(f"step time, ms; the last bin also holds all above {edges[-1]:.0f} ms")
    histogram.set_ylabel("steps, %")
    histogram.legend(fontsize=8)
    return made


FIGURES: Mapping[str, Callable[[Record], Any]] = {
    "synchrony_accuracy": accuracy,
    "synchrony_policies": policies,
    "synchrony_staleness": staleness,
    "synchrony_steps": steps,
}
