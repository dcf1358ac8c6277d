"""Results of interleaved repeats: medians, ratios to a peer, the table, and the JSON record."""

import argparse
import dataclasses
import datetime
import json
import os
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from rich.console import Console
from rich.table import Table

from largebatch import environment as machine
from largebatch.errors import ConfigError, did_you_mean

T = TypeVar("T")
GIB = 1 << 30
RATE = "images/s"
PER_CPU = "images per CPU-second"
PER_HOST = "images/s per host"
_MORE_IS_BETTER = (
    *(RATE, PER_CPU, PER_HOST, "images at a time", "GB/s", "TFLOP/s"),
    *("share of peak FLOP/s", "share"),
)
_SIDES = ("ours", "peer")
# Beyond what a run reports: what the data path, compilers, kernels and peers depend on.
_PACKAGES = (
    *("largebatch", "jax-cuda12-plugin", "jax-cuda13-plugin", "libtpu"),
    *("nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu13"),
    *("nvidia-nvimgcodec-cu12", "nvidia-nvimgcodec-cu13", "opencv-python-headless", "pillow"),
    *("tensorflow-datasets", "array_record", "tensorflow", "tensorflow-cpu"),
    *("timm", "torch", "torchvision", "triton"),
)


@dataclasses.dataclass(frozen=True)
class Result:
    """One figure of ours and, where there is one, a peer's, from interleaved repeats.

    Attributes:
        name: What was measured.
        unit: Of `ours` and `peer`.
        ours: One value for each repeat.
        peer: The peer's values, in the same repeats; empty without a peer.
        peer_name: Name of the peer.
        absent: Why the peer, or the complete figure, is missing.
        goal: Target of the ratio where a peer is named, else of `ours`.
        note: Conditions of the measurement.
    """

    name: str
    unit: str
    ours: tuple[float, ...] = ()
    peer: tuple[float, ...] = ()
    peer_name: str = ""
    absent: str = ""
    goal: float | None = None
    note: str = ""

    @property
    def better(self) -> Literal["more", "less"]:
        """Whether more or less of the unit is better."""
        return "more" if self.unit in _MORE_IS_BETTER else "less"

    @property
    def ratios(self) -> tuple[float, ...]:
        """Ours against the peer in each repeat; above 1 ours is better.

        Taken pair by pair, so that a machine that slows down with time slows both sides.
        """
        if not self.peer:
            return ()
        pairs = zip(self.ours, self.peer, strict=True)
        return tuple(a / b if self.better == "more" else b / a for a, b in pairs)

    @property
    def reached(self) -> bool | None:
        """Whether the median reaches the goal; None without a goal or a figure."""
        found = self.ratios if self.peer_name else self.ours
        if self.goal is None or not found:
            return None
        median = statistics.median(found)
        return median >= self.goal if self._goal_is_least else median <= self.goal

    @property
    def _goal_is_least(self) -> bool:
        return bool(self.peer_name) or self.better == "more"  # more of a ratio is always better

    @property
    def goal_text(self) -> str:
        """The goal as the table shows it."""
        if self.goal is None:
            return ""
        mark = {True: " ✓", False: " ✗", None: ""}[self.reached]
        return f"{'≥' if self._goal_is_least else '≤'} {self.goal:,.4g}{mark}"

    def as_json(self) -> dict[str, Any]:
        """The result as the record keeps it."""
        return {
            "name": self.name,
            "unit": self.unit,
            "better": self.better,
            "ours": summary(self.ours),
            "peer_name": self.peer_name or None,
            "peer": summary(self.peer),
            "ratio": summary(self.ratios),
            "goal": self.goal,
            "reached": self.reached,
            "absent": self.absent or None,
            "note": self.note or None,
        }

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> "Result":
        """The result that `as_json` has kept."""
        sides = {side: tuple((kept[side] or {"repeats": ()})["repeats"]) for side in _SIDES}
        texts = {key: kept[key] or "" for key in ("peer_name", "absent", "note")}
        return cls(kept["name"], kept["unit"], **sides, **texts, goal=kept["goal"])


def summary(values: Sequence[float]) -> dict[str, Any] | None:
    """Median, extremes, spread ((max - min) / median) and the repeats; None without values."""
    if not values:
        return None
    median, low, high = statistics.median(values), min(values), max(values)
    spread = (high - low) / abs(median) if median else 0.0
    return {"median": median, "min": low, "max": high, "spread": spread, "repeats": list(values)}


def interleave(competitors: Mapping[str, Callable[[], T]], repeats: int) -> dict[str, list[T]]:
    """Call all competitors once, then again (A B C, A B C), so that drift affects all alike.

    Returns:
        What each returned, in the order of the repeats.
    """
    found: dict[str, list[T]] = {name: [] for name in competitors}
    for _ in range(repeats):
        for name, call in competitors.items():
            found[name].append(call())
    return found


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


def record(results: Sequence[Result], command: str) -> dict[str, Any]:
    """The JSON record of a benchmark."""
    return {
        "date": datetime.date.today().isoformat(),
        "command": command,
        "environment": environment(),
        "results": [result.as_json() for result in results],
    }


def write(path: Path, kept: Mapping[str, Any]) -> None:
    """Write a record."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n")


def show(title: str, results: Sequence[Result]) -> None:
    """Print the table of medians, then notes and reasons of absence, a line each."""
    console = Console()
    console.print(table(title, results))
    for result in results:
        if text := result.absent or result.note:
            console.print(f"{result.name}: {text}", markup=False, highlight=False)


def table(title: str, results: Sequence[Result]) -> Table:
    """Ours, the peer's and the ratio: medians, with half the range of the repeats."""
    shown = Table(title=title, title_justify="left")
    for heading in ("measured", "unit"):
        shown.add_column(heading)
    for heading in ("ours", "peer", "ratio", "goal"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for result in results:
        peer = "absent" if result.absent else figure(result.peer)
        cells = figure(result.ours), peer, figure(result.ratios), result.goal_text
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


def require_positive(flags: argparse.Namespace, *names: str) -> None:
    """Raise a ConfigError unless each flag is at least 1."""
    for name in names:
        if getattr(flags, name) < 1:
            raise ConfigError(f"--{name}: expected 1 or more, got {getattr(flags, name)}")
