"""The figures of the batch-size study, from its record."""

from collections.abc import Callable
from typing import Any

from largebatch.plots import colours, error_bars, figure

Record = dict[str, Any]
_RULES = {"sgd": "SGD, linear scaling", "lars": "LARS, √ scaling"}


def warm_up(kept: Record) -> Any:
    """Accuracy against the batch, with warm-up and without."""
    made, (axes,) = figure(1, width=6.4, height=4.8)
    _compare(axes, kept, lambda e: e["smoothing"], "warmup", "warm-up")
    return made


def statistics(kept: Record) -> Any:
    """The same with and without label smoothing, and with precise statistics or averages."""
    made, (smoothing, precise) = figure(2, width=6.0, height=4.6)
    _compare(smoothing, kept, lambda e: e["warmup"], "smoothing", "label smoothing")
    for (rule, name), colour in zip(_RULES.items(), colours(3)[1:], strict=True):
        found = [e for e in kept["results"] if e["rule"] == rule and e["warmup"] and e["smoothing"]]
        for key, style, what in (("top1", "-", "precise"), ("top1_ema", "--", "moving average")):
            _line(precise, found, key, color=colour, linestyle=style, label=f"{name}; {what}")
    _axes(precise, kept, "BatchNorm statistics")
    return made


def _compare(
    axes: Any, kept: Record, chosen: Callable[[Record], bool], key: str, what: str
) -> None:
    for (rule, name), colour in zip(_RULES.items(), colours(3)[1:], strict=True):
        for there, style in ((True, "-"), (False, "--")):
            found = [
                each
                for each in kept["results"]
                if each["rule"] == rule and chosen(each) and each[key] == there
            ]
            label = name if there else f"{name}, no {what}"
            _line(axes, found, "top1", color=colour, linestyle=style, label=label)
    _axes(axes, kept, f"with {what} and without")


def _line(axes: Any, found: list[Record], key: str, **style: Any) -> None:
    if found:
        share = [100 * each["share"] for each in found]
        error_bars(axes, share, [each[key] for each in found], linewidth=1.4, **style)


def _axes(axes: Any, kept: Record, title: str) -> None:
    shares = sorted({100 * each["share"] for each in kept["results"]})
    axes.set_xscale("log")
    axes.set_xticks(shares, [f"{share:.3g}" for share in shares])
    axes.minorticks_off()
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("batch, % of the training set")
    axes.set_ylabel(f"top-1 after {kept['grid']['epochs']} epochs, %")
    axes.set_ylim(0, 102)
    # Below the panel: lines are everywhere in it.
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16), frameon=False, ncols=2)


DRAWINGS = {"batch_size_warm_up": warm_up, "batch_size_statistics": statistics}
