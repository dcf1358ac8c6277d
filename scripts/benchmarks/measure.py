"""Results of interleaved repeats: medians, ratios to a peer, the table, and the JSON record."""

import argparse
import datetime
import os
import shlex
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from largebatch import environment as machine
from largebatch.errors import ConfigError, did_you_mean

GIB = 1 << 30
RATE = "images/s"
PER_CPU = "images per CPU-second"
TOP1 = "top-1, %"
_MORE_IS_BETTER = (
    *(RATE, PER_CPU, TOP1, "images at a time", "GB/s", "TFLOP/s", "share of peak FLOP/s"),
)
# Beyond what a run reports: what the data path, compilers, kernels and peers depend on.
_PACKAGES = (
    *("largebatch", "jax-cuda12-plugin", "jax-cuda13-plugin", "libtpu"),
    *("nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu13"),
    *("nvidia-nvimgcodec-cu12", "nvidia-nvimgcodec-cu13", "opencv-python-headless", "pillow"),
    *("nvidia-dali-cuda120", "nvidia-dali-cuda130"),
    *("tensorflow-datasets", "array_record", "tensorflow", "tensorflow-cpu"),
    *("timm", "torch", "torchvision", "triton"),
)


@dataclass(frozen=True)
class Result:
    """One figure of ours and, where there is one, a peer's, from interleaved repeats.

    Attributes:
        name: What was measured.
        unit: Unit of `ours` and `peer`.
        ours: One value for each repeat.
        peer: The peer's values, in the same repeats; empty without a peer.
        peer_name: Name of the peer.
        absent: Why the peer, or the complete figure, is missing.
        note: Conditions of the measurement.
    """

    name: str
    unit: str
    ours: tuple[float, ...] = ()
    peer: tuple[float, ...] = ()
    peer_name: str = ""
    absent: str = ""
    note: str = ""

    @property
    def ratios(self) -> tuple[float, ...]:
        """Ours against the peer in each repeat; above 1 ours is better.

        Taken pair by pair, so that a machine that slows down with time slows both sides. There are
        none of accuracies.
        """
        pairs = zip(self.ours, self.peer, strict=True) if self.peer and self.unit != TOP1 else ()
        return tuple(a / b if self.unit in _MORE_IS_BETTER else b / a for a, b in pairs)

    def as_json(self) -> dict[str, Any]:
        """The result as the record keeps it."""
        return {
            "name": self.name,
            "unit": self.unit,
            "better": "more" if self.unit in _MORE_IS_BETTER else "less",
            "ours": summary(self.ours),
            "peer_name": self.peer_name or None,
            "peer": summary(self.peer),
            "ratio": summary(self.ratios),
            "absent": self.absent or None,
            "note": self.note or None,
        }

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> "Result":
        """The result that `as_json` has kept."""
        values = {side: (kept[side] or {"repeats": ()})["repeats"] for side in ("ours", "peer")}
        texts = {key: kept[key] or "" for key in ("name", "unit", "peer_name", "absent", "note")}
        return cls(**texts, **{side: tuple(each) for side, each in values.items()})


def summary(values: Sequence[float]) -> dict[str, Any] | None:
    """Median, extremes, spread ((max - min) / median) and the repeats; None without values."""
    if not values:
        return None
    median, low, high = statistics.median(values), min(values), max(values)
    spread = (high - low) / abs(median) if median else 0.0
    return {"median": median, "min": low, "max": high, "spread": spread, "repeats": list(values)}


def environment() -> dict[str, Any]:
    """Device, processor, versions and commit that the figures depend on."""
    described = machine.environment()
    return described | {
        "cpu": machine.cpu_model(),
        "driver": machine.gpu_driver(),
        "xla_flags": os.environ.get("XLA_FLAGS"),
        "commit": machine.commit(),
        "versions": described["versions"] | machine.versions(_PACKAGES),
    }


def header(
    script: str, arguments: Sequence[str], around: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The first keys of the record of a script: date, command, environment.

    Args:
        script: Its file in scripts/.
        arguments: Its command line.
        around: The environment, if it is not that of this process.
    """
    return {
        "date": datetime.date.today().isoformat(),
        "command": shlex.join(["python", f"scripts/{script}", *arguments]),
        "environment": around or environment(),
    }


def show(title: str, results: Sequence[Result]) -> None:
    """Print the table of medians, then notes and reasons of absence, each once."""
    console = Console()
    console.print(table(title, results))
    notes: dict[str, str] = {}
    for result in results:
        notes.setdefault(result.absent or result.note, result.name)
    for text, name in notes.items():
        if text:
            console.print(f"{name}: {text}", markup=False, highlight=False)


def table(title: str, results: Sequence[Result]) -> Table:
    """Ours, the peer's and the ratio: medians, with half the range of the repeats."""
    shown = Table("measured", "unit", title=title, title_justify="left")
    for heading in ("ours", "peer", "ratio"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for result in results:
        peer = "absent" if result.absent else figure(result.peer)
        cells = figure(result.ours), peer, figure(result.ratios)
        shown.add_row(result.name, result.unit, *cells)
    return shown


def figure(values: Sequence[float]) -> str:
    """The median to three digits and, of several repeats, ± half their range relative to it."""
    found = summary(values)
    if found is None:
        return "–"
    median, half = found["median"], found["spread"] / 2
    text = f"{median:,.0f}" if abs(median) >= 1000 else f"{median:.3g}"
    if len(values) == 1 or not median:
        return text
    # A percentage of a median near zero means nothing.
    return f"{text} ±{half:.0%}" if half < 1 else f"{text} ±{half * abs(median):.2g}"


def chosen(flag: str, text: str, known: Iterable[str]) -> list[str]:
    """The comma-separated names given with a flag.

    Raises:
        ConfigError: One is unknown.
    """
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in known:
            raise ConfigError(f"{flag} {name} is unknown; {did_you_mean(name, known)}")
    return names


def numbers(flag: str, text: str) -> list[int]:
    """Positive integers, comma-separated, each once.

    Raises:
        ConfigError: One is not.
    """
    words = text.split(",")
    if not all(word.isdecimal() and int(word) for word in words):
        raise ConfigError(f"{flag}: expected integers of 1 or more, got {text!r}")
    return list(dict.fromkeys(map(int, words)))


def require_positive(flags: argparse.Namespace, *names: str) -> None:
    """Raise a ConfigError unless each flag is at least 1."""
    for name in names:
        if getattr(flags, name) < 1:
            raise ConfigError(f"--{name}: expected 1 or more, got {getattr(flags, name)}")
