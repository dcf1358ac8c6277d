"""What a run left in its directory, and how it differs from that of another."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from largebatch.checkpoint import manifest
from largebatch.config import Facts, Plan, freeze, resolve
from largebatch.tracking import read_rows

TIMED = ("images_per_s", "input_wait", "seconds")
"""What a row of metrics.jsonl says of time."""
_SHOWN = 5


def plan_of(workdir: Path) -> Plan:
    """The plan that a run wrote down."""
    kept = json.loads((workdir / "config.json").read_text())
    facts = Facts(**{**kept["facts"], "image_shape": tuple(kept["facts"]["image_shape"])})
    plan = kept["plan"]
    return resolve(freeze(kept["config"]), facts, microbatch=plan["microbatch"])


def checkpoints(workdir: Path) -> list[int]:
    """Steps of the complete checkpoints, ascending."""
    found = (workdir / "checkpoints").glob(f"*/{manifest.NAME}")
    return sorted(int(path.parent.name) for path in found if path.parent.name.isdigit())


def last_row(workdir: Path) -> int:
    """The last step of which metrics.jsonl has a row; 0 if it has none."""
    path = workdir / "metrics.jsonl"
    rows = read_rows(path) if path.exists() else []
    return rows[-1]["step"] if rows else 0


@dataclasses.dataclass(frozen=True)
class Evidence:
    """All that two runs of one command must agree in.

    Attributes:
        status: of summary.json.
        steps: likewise.
        checkpoint: step of the newest checkpoint.
        arrays: (shape, dtype, digest) of every array in it, by path.
        metrics: rows of metrics.jsonl, without times.
        layers: rows of layers.jsonl.
        leftovers: what a broken save left among the checkpoints.
    """

    status: str
    steps: int
    checkpoint: int
    arrays: Mapping[str, tuple[Any, ...]]
    metrics: Sequence[Mapping[str, Any]]
    layers: Sequence[Mapping[str, Any]]
    leftovers: Sequence[str]


def gather(workdir: Path) -> Evidence:
    """Reads a directory whose run has ended.

    Raises:
        OSError: a file is missing.
        ValueError: there is no checkpoint, or a file is no JSON.
    """
    summary = json.loads((workdir / "summary.json").read_text())
    newest = max(checkpoints(workdir))
    about = manifest.decode((workdir / "checkpoints" / str(newest) / manifest.NAME).read_bytes())
    names = {path.name for path in (workdir / "checkpoints").iterdir()}
    return Evidence(
        status=summary["status"],
        steps=summary["steps"],
        checkpoint=newest,
        arrays={path: dataclasses.astuple(array) for path, array in about.arrays.items()},
        metrics=[untimed(row) for row in read_rows(workdir / "metrics.jsonl")],
        layers=read_rows(workdir / "layers.jsonl"),
        leftovers=sorted(name for name in names if not name.isdigit()),
    )


def untimed(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row without what it says of time."""
    return {name: value for name, value in row.items() if name not in TIMED}


def differences(whole: Evidence, broken: Evidence) -> list[str]:
    """How a run that was killed differs from one that was not; empty: in nothing.

    Args:
        whole: the uninterrupted run.
        broken: the other.
    """
    found = []
    if (broken.status, broken.steps) != ("complete", whole.steps):
        found.append(f"it is {broken.status} at step {broken.steps}, not complete at {whole.steps}")
    if broken.checkpoint != whole.checkpoint:
        found.append(f"its newest checkpoint is {broken.checkpoint}, not {whole.checkpoint}")
    names = sorted({*whole.arrays, *broken.arrays})
    other = [name for name in names if whole.arrays.get(name) != broken.arrays.get(name)]
    if other or not names:
        found.append(
            f"{len(other)} of {len(names)} arrays of that checkpoint differ: {_some(other)}"
        )
    for name in ("metrics", "layers"):
        mine, theirs = getattr(broken, name), getattr(whole, name)
        if [row["step"] for row in mine] != [row["step"] for row in theirs]:
            found.append(f"{name}.jsonl has rows of other steps ({len(mine)} for {len(theirs)})")
            continue
        steps = [a["step"] for a, b in zip(mine, theirs, strict=True) if a != b]
        if steps:
            found.append(f"rows of {name}.jsonl differ at {len(steps)} steps: {_some(steps)}")
    if broken.leftovers:
        found.append(f"left among the checkpoints: {_some(broken.leftovers)}")
    return found


def _some(items: Sequence[Any]) -> str:
    return ", ".join(map(str, items[:_SHOWN])) + (" …" if len(items) > _SHOWN else "")
