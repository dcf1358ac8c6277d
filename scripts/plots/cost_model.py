"""Figures of the cost model, each from one study of its record."""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from largebatch.plots import colours, draw_all, figure

Study = Mapping[str, Any]
COLOURS = colours(8)[1:]
_DASHES = ("-", "--", "-.")
_GREY = "#4a4a4a"
_NAMES = {
    "abci": "V100, ABCI",
    "dgx-a100": "A100, DGX",
    "dgx-h100": "H100, DGX",
    "tpu-v4": "TPU v4",
}
_ALGORITHMS = {
    "parameter_server": "parameter server",
    "ring": "ring, in step",
    "pipelined_ring": "ring, pipelined",
    "halving_doubling": "halving-doubling, flat",
    "tree": "tree, long",
    "double_tree": "double tree, in blocks",
    "hierarchical": "hierarchical, tree between nodes",
    "hierarchical_ring": "hierarchical, ring between nodes",
    "multilevel": "rings of node, rack, racks",
}


def calibration(study: Study) -> Any:
    """Plot predicted against published rates, each row held out."""
    made, (ax,) = figure(1, width=6.2, height=5.2)
    limits = np.array([300, 10_000])
    for share, colour in ((0.3, "#eeeeee"), (0.1, "#d4dfea")):
        low, high = (1 - share) * limits, (1 + share) * limits
        ax.fill_between(limits, low, high, color=colour, label=f"within {100 * share:.0f} %")
    families = dict.fromkeys(row["family"] for row in study["rows"])
    for colour, family in zip(COLOURS, families, strict=False):
        rows = [row for row in study["rows"] if row["family"] == family]
        ax.plot(_all(rows, "published"), _all(rows, "predicted"), "o", color=colour, label=family)
    ax.set(xscale="log", yscale="log", xlim=limits, ylim=limits)
    for axis in (ax.xaxis, ax.yaxis):
        _plain_ticks(axis, [300, 500, 1000, 2000, 5000, 10000])
    ax.set(
        xlabel="published images/s per device",
        ylabel="predicted, row held out",
        title=f"22 runs: median error {100 * study['median_error']:.1f} %, "
        f"worst {100 * study['worst_error']:.1f} %",
    )
    ax.legend(fontsize=9)
    return made


def time_to_train(study: Study) -> Any:
    """Plot the clock of 90 epochs at the record's batch against devices."""
    made, (ax,) = figure(1, width=7.0, height=4.2)
    for colour, (name, rows) in zip(COLOURS, study["strong"].items(), strict=False):
        devices, low, high = (_all(rows, key) for key in ("devices", "low_s", "high_s"))
        ax.fill_between(devices, low, high, color=colour, alpha=0.15, linewidth=0)
        ax.plot(devices, _all(rows, "clock_s"), "o-", color=colour, label=_NAMES[name])
    ax.plot([2048], [74.7], "k*", markersize=13, label="Fujitsu, 74.7 s (published)")
    ax.set(xscale="log", yscale="log", xlabel="devices", ylabel="clock, seconds")
    _plain_ticks(ax.xaxis, [128, 256, 512, 1024, 2048, 4096])
    _plain_ticks(ax.yaxis, [5, 10, 20, 50, 100, 200, 500])
    ax.set_title(f"Batch {study['batch']:,}, {study['epochs']} epochs; bands hold 9 of 10 runs")
    ax.legend(fontsize=9)
    return made


def efficiency(study: Study) -> Any:
    """Plot the rate of a device at 40 images over that in one node."""
    made, (ax,) = figure(1, width=7.0, height=4.2)
    for colour, (name, rows) in zip(COLOURS, study["weak"].items(), strict=False):
        kept = [100 * share for share in _all(rows, "efficiency")]
        ax.plot(_all(rows, "devices"), kept, "o-", color=colour, label=_NAMES[name])
    ax.set(xscale="log", xlabel="devices", ylabel="rate of a device over the smallest's, %")
    _plain_ticks(ax.xaxis, [4, 16, 64, 256, 1024, 4096])
    ax.set(ylim=(75, 101), title="40 images per device at every step")
    ax.legend(fontsize=9)
    return made


def step_times(study: Study) -> Any:
    """Plot the distribution of the slowest of many workers: the survey article's figure."""
    made, (ax,) = figure(1, width=7.0, height=4.2)
    edges, one = np.asarray(study["edges"]), study["mean_worker"]
    for colour, row in zip(COLOURS, study["rows"], strict=False):
        ax.stairs(row["drawn_density"], edges, color=colour, fill=True, alpha=0.25)
        ax.plot((edges[1:] + edges[:-1]) / 2, row["density"], color=colour)
        ax.axvline(row["mean"], color=colour, linestyle=":")
        ax.annotate(
            f"{row['workers']:,} workers\nmean {row['mean']:.1f}, σ {row['drawn_deviation']:.2f}",
            (row["mean"] - 0.1, 1.06 * max(row["density"])),
            ha="right",
            color=colour,
            fontsize=9,
        )
    ax.axvline(one, color=_GREY, linestyle="--")
    ax.annotate(f"one worker:\nmean {one:.1f}", (one - 0.1, 0.2), ha="right", fontsize=9)
    ax.set(xlim=(16.5, 33), ylim=(0, 0.56), xlabel="step time: the slowest worker's")
    ax.set(ylabel="density", title="Log-normal workers, μ = 3, σ = 0.1: lines exact, areas drawn")
    return made


def bucket_timeline(study: Study) -> Any:
    """Draw a step of the record: the compute row over the network row."""
    made, (ax,) = figure(1, width=8.6, height=2.9)

    def bar(row: int, part: Study, colour: str, label: str, **style: Any) -> None:
        begin, length = 1e3 * part["begin_s"], 1e3 * (part["end_s"] - part["begin_s"])
        ink = style.pop("ink", "black")
        ax.barh(row, length, left=begin, height=0.55, color=colour, edgecolor="white", **style)
        ax.text(begin + length / 2, row, label, ha="center", va="center", fontsize=9, color=ink)

    for i, part in enumerate(study["compute"]):
        length = 1e3 * (part["end_s"] - part["begin_s"])
        label = f"backward {i}" if length > 3 else str(i) if length > 1 else ""
        if part["name"] == "forward":
            bar(1, part, "#b8b8b8", "forward")
        else:
            bar(1, part, COLOURS[i - 1], label, ink="white")
    for colour, part in zip(COLOURS, study["transfers"], strict=False):
        bar(0, part, colour, f"{part['nbytes'] / 1e6:.0f} MB", alpha=0.75)
    end = 1e3 * study["compute"][-1]["end_s"]
    ax.axvline(end, color=_GREY, linestyle="--", linewidth=1)
    ax.annotate(
        f"{1e3 * study['exposed_s']:.1f} ms exposed", (end - 0.2, 0.42), ha="right", fontsize=9
    )
    ax.set_yticks([0, 1], ["network", "compute"])
    ax.set(ylim=(-0.5, 1.5), xlabel="milliseconds", xlim=(0, 1e3 * study["total_s"] * 1.01))
    ax.set_title("40 images, 2,048 V100: the record's four groups of layers, last layer first")
    ax.grid(axis="y", visible=False)
    return made


def bucket_sizes(study: Study) -> Any:
    """Plot the time exposed after backward against the least size of a bucket."""
    made, (ax,) = figure(1, width=7.0, height=4.2)
    sizes = _all(study["least_mib"], "mib")
    exposed = [1e3 * seconds for seconds in _all(study["least_mib"], "exposed_s")]
    ax.plot(sizes, exposed, color=COLOURS[0], label="equal least size")
    at = int(np.argmin(exposed))
    ax.plot(sizes[at], exposed[at], "o", color=COLOURS[0])
    ax.annotate(
        f"best: {sizes[at]:.3g} MiB,\n{study['least_mib'][at]['buckets']} buckets",
        (sizes[at], exposed[at]),
        xytext=(0.75 * sizes[at], 4.6),
        arrowprops={"arrowstyle": "-", "color": COLOURS[0]},
        fontsize=9,
        color=COLOURS[0],
    )
    for colour, dash, (name, row) in zip(
        COLOURS[1:], ("--", "-.", ":"), study["named"].items(), strict=False
    ):
        ms = 1e3 * row["exposed_s"]
        label = f"{name}: {row['buckets']} buckets, {ms:.2f} ms"
        ax.axhline(ms, color=colour, linestyle=dash, label=label)
    ax.set(xscale="log", xlabel="least size of a bucket, MiB", ylabel="exposed, ms", ylim=(0, 9))
    _plain_ticks(ax.xaxis, [0.125, 0.25, 0.5, 1, 2, 4, 8, 16, 32, 64])
    ax.set_title(
        f"51 MB of fp16 gradients, 2,048 V100, {1e3 * study['backward_s']:.0f} ms of backward"
    )
    ax.legend(fontsize=9, loc="upper center")
    return made


def all_reduce(study: Study) -> Any:
    """Plot the algorithms of the all-reduce against bytes and against devices."""
    made, (left, right) = figure(2, width=5.2, height=4.9)
    for i, (name, label) in enumerate(_ALGORITHMS.items()):
        look = {"color": COLOURS[i % len(COLOURS)], "linestyle": _DASHES[i % len(_DASHES)]}
        megabytes = np.asarray(study["nbytes"]) / 1e6
        left.plot(megabytes, 1e3 * np.asarray(study["at_2048"][name]), label=label, **look)
        ms = 1e3 * np.asarray(study["of_gradients"][name])
        right.plot(study["devices"], ms, label=label, **look)
    for ax in (left, right):
        ax.set(xscale="log", yscale="log", ylabel="milliseconds")
    left.set(ylim=(0.1, 3e3), xlabel="megabytes", title="2,048 V100 of ABCI")
    right.set(ylim=(0.4, 3e4), xlabel="devices", title="51 MB: ResNet-50's gradients in fp16")
    _plain_ticks(left.xaxis, [0.001, 0.01, 0.1, 1, 10, 100, 1000])
    _plain_ticks(left.yaxis, [0.1, 1, 10, 100, 1000])
    _plain_ticks(right.xaxis, [4, 16, 64, 256, 1024, 4096])
    _plain_ticks(right.yaxis, [1, 10, 100, 1000, 10000])
    handles, labels = right.get_legend_handles_labels()
    made.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=9)
    return made


def backups(study: Study) -> Any:
    """Plot the efficiency of 100 machines against the number of backups among them."""
    made, (ax,) = figure(1, width=7.0, height=4.2)
    of = study["backups"]
    used = _all(of["rows"], "ignored")
    ax.plot(used, _all(of["rows"], "efficiency"), color=COLOURS[0], label="closed form")
    drawn = {"color": COLOURS[1], "markersize": 4, "label": f"drawn, {of['draws']:,} steps"}
    ax.plot(used, _all(of["rows"], "drawn_efficiency"), "o", **drawn)
    ax.axvspan(*of["within_1_percent"], color="#d4dfea", label="within 1 % of the best")
    ax.axvline(4, color=_GREY, linestyle="--", label="4, published")
    ax.set(xlabel="backups among 100 machines", ylabel="gradients per second and machine")
    _plain_ticks(ax.xaxis, list(range(0, 21, 2)))
    ax.set_title(f"Best: {of['best']}; 1 is a worker that never waits")
    ax.legend(fontsize=9, loc="lower right")
    return made


FIGURES: Mapping[str, tuple[str, Callable[[Study], Any]]] = {
    "calibration": ("calibration", calibration),
    "time_to_train": ("scaling", time_to_train),
    "efficiency": ("scaling", efficiency),
    "step_times": ("survey", step_times),
    "bucket_timeline": ("timeline", bucket_timeline),
    "bucket_sizes": ("bucket_sizes", bucket_sizes),
    "all_reduce": ("algorithms", all_reduce),
    "backups": ("arrivals", backups),
}
"""Name of each figure, its study, and the function that draws it."""


def draw(studies: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write every figure as cost_model_NAME.png; return the files."""
    drawings = {
        f"cost_model_{name}": functools.partial(_drawn, study, drawing)
        for name, (study, drawing) in FIGURES.items()
    }
    return draw_all(drawings, dict(studies), folder)


def _drawn(study: str, drawing: Callable[[Study], Any], studies: Mapping[str, Any]) -> Any:
    return drawing(studies[study])


def _all(rows: Sequence[Study], key: str) -> list[Any]:
    return [row[key] for row in rows]


def _plain_ticks(axis: Any, values: Sequence[float]) -> None:
    """Set ticks at these values alone, as numbers, on an axis of any scale."""
    axis.set_ticks(list(values), [f"{value:,g}" for value in values])
    axis.set_ticks([], minor=True)
