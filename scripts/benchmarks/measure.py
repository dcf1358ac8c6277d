"""Repeats, their medians and spread, the ratio to a peer, and the record that is kept of them."""

import dataclasses
import datetime
import json
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from largebatch import environment as around

T = TypeVar("T")
# Beyond what a run reports: what the data path, compilers, kernels and peers depend on.
_PACKAGES = (
    "largebatch",
    "jax-cuda12-plugin",
    "jax-cuda13-plugin",
    "libtpu",
    "nvidia-cudnn-cu12",
    "nvidia-cudnn-cu13",
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
    "tensorflow-datasets",
    "array_record",
    "nvidia-nvimgcodec-cu12",
    "nvidia-nvimgcodec-cu13",
    "opencv-python-headless",
    "pillow",
    "tensorflow",
    "tensorflow-cpu",
    "timm",
    "torch",
    "torchvision",
    "triton",
)


@dataclasses.dataclass(frozen=True)
class Result:
    """One figure of ours and, where there is one, a peer's, from interleaved repeats.

    Attributes:
        name: What was measured.
        unit: Of `ours` and `peer`.
        ours: One value for each repeat.
        peer: The peer's, repeat by repeat beside ours; empty where there is none.
        peer_name: Who the peer is.
        absent: Why the peer, or the whole figure, is missing.
        better: Whether more or less is better.
        goal: What is to be reached: of the ratio where a peer is named, else of ours.
        note: What else the reader should know.
    """

    name: str
    unit: str
    ours: tuple[float, ...] = ()
    peer: tuple[float, ...] = ()
    peer_name: str = ""
    absent: str = ""
    better: Literal["more", "less"] = "more"
    goal: float | None = None
    note: str = ""

    @property
    def ratios(self) -> tuple[float, ...]:
        """How much better ours is than the peer in each repeat; above 1 ours is better.

        Taken repeat by repeat, so that a machine that slows down with time slows both sides.
        """
        if not self.peer:
            return ()
        pairs = zip(self.ours, self.peer, strict=True)
        return tuple(a / b if self.better == "more" else b / a for a, b in pairs)

    @property
    def reached(self) -> bool | None:
        """Whether the median is at the goal or beyond; None without a goal or a figure."""
        found = self.ratios if self.peer_name else self.ours
        if self.goal is None or not found:
            return None
        median = statistics.median(found)
        # A ratio is better above its goal whatever its figures are.
        return (
            median >= self.goal if self.peer_name or self.better == "more" else median <= self.goal
        )

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


def summary(values: Sequence[float]) -> dict[str, Any] | None:
    """Median, extremes, spread ((largest - least) / median) and the repeats; None of nothing."""
    if not values:
        return None
    median = statistics.median(values)
    low, high = min(values), max(values)
    return {
        "median": median,
        "min": low,
        "max": high,
        "spread": (high - low) / abs(median) if median else 0.0,
        "repeats": list(values),
    }


def interleave(competitors: Mapping[str, Callable[[], T]], repeats: int) -> dict[str, list[T]]:
    """Runs all competitors once, then again: A B C, A B C, so that drift meets all alike.

    Args:
        competitors: What to call, by name.
        repeats: How often.

    Returns:
        What each call gave, in the order of the repeats.
    """
    found: dict[str, list[T]] = {name: [] for name in competitors}
    for _ in range(repeats):
        for name, call in competitors.items():
            found[name].append(call())
    return found


def environment() -> dict[str, Any]:
    """Device, processor, versions and commit that the figures depend on."""
    described = around.environment()
    return described | {
        "cpu": around.cpu_model(),
        "driver": around.gpu_driver(),
        "xla_flags": os.environ.get("XLA_FLAGS"),
        "commit": around.commit(),
        "versions": described["versions"] | around.versions(_PACKAGES),
    }


def record(results: Sequence[Result], command: str) -> dict[str, Any]:
    """The record of a benchmark, to be kept as JSON."""
    return {
        "date": datetime.date.today().isoformat(),
        "command": command,
        "environment": environment(),
        "results": [result.as_json() for result in results],
    }


def write(path: Path, kept: Mapping[str, Any]) -> None:
    """Writes a record."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n")
