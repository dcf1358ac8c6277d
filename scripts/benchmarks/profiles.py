"""Where the time of a step goes, ours beside that of peers that can be profiled alike."""

import json
from collections.abc import Mapping
from pathlib import Path

from benchmarks.measure import Result
from benchmarks.race import Race
from benchmarks.recorder import STEPS
from largebatch.errors import DataError
from largebatch.tools.report import trace
from largebatch.tools.report.trace import IDLE, Profile

_SHOWN = 25


def results(folder: Path, races: Mapping[int, Race]) -> list[Result]:
    """Milliseconds of a step by class of kernel; shows the longest kernels and keeps them all.

    Args:
        folder: As of --trace.
        races: By batch.
    """
    found = []
    for batch, race in races.items():
        read = {}
        for name in race.figures:
            place = folder / f"batch{batch}" / name
            if not place.is_dir():  # a peer that does not run on JAX
                continue
            try:
                read[name] = trace.read(place)
            except DataError as error:
                found.append(Result(f"batch {batch}: profile of {name}", "ms", absent=str(error)))
                continue
            keep(place / "kernels.json", read[name])
            print("\n".join(longest(f"batch {batch}: {name}", read[name])))
        found += by_class(batch, read)
    return found


def by_class(batch: int, read: Mapping[str, Profile]) -> list[Result]:
    """Ours, beside the first peer's where one was profiled."""
    if "ours" not in read:
        return []
    peer = next((name for name in read if name != "ours"), "")
    theirs = milliseconds(read[peer]) if peer else {}
    found = []
    for kind, spent in milliseconds(read["ours"]).items():
        both = spent > 0 and theirs.get(kind, 0) > 0  # no ratio to nothing
        found.append(
            Result(
                f"batch {batch}: {kind}",
                "ms of a profiled step",
                (spent,),
                peer=(theirs[kind],) if both else (),
                peer_name=peer if both else "",
                better="less",
            )
        )
    return found


def milliseconds(profile: Profile) -> dict[str, float]:
    """Of a step, by class of kernel and IDLE."""
    step = 1e3 * profile.window_s / STEPS
    return {kind: share * step for kind, share in profile.shares.items()}


def keep(path: Path, profile: Profile) -> None:
    """Writes all kernels, the longest first."""
    rows = [
        {"name": kernel.name, "ms_per_step": 1e3 * kernel.seconds / STEPS, "count": kernel.count}
        | kernel.origin._asdict()
        for kernel in profile.kernels
    ]
    kept = {"steps": STEPS, "window_s": profile.window_s, "shares": profile.shares}
    path.write_text(json.dumps(kept | {"kernels": rows}, indent=1) + "\n")


def longest(title: str, profile: Profile) -> list[str]:
    """The longest kernels, and the shares of all by class, as lines that are never folded."""
    total = sum(kernel.seconds for kernel in profile.kernels)
    lines = [f"{title}: the {_SHOWN} longest kernels", _row("ms a step", "share", "runs", "class")]
    for kernel in profile.kernels[:_SHOWN]:
        origin = kernel.origin
        what = (kernel.name, origin.result, origin.op_name.partition("/")[2], origin.source)
        lines.append(
            _row(
                f"{1e3 * kernel.seconds / STEPS:.3f}",
                f"{kernel.seconds / total:.1%}",
                str(kernel.count),
                origin.kind,
                "  ".join(part for part in what if part),
            )
        )
    shares = ", ".join(f"{kind} {share:.1%}" for kind, share in profile.shares.items())
    return [*lines, f"{shares} ({IDLE}: no kernel runs)"]


def _row(
    spent: str, share: str, runs: str, kind: str, what: str = "what, result, operation, source"
) -> str:
    return f"{spent:>10} {share:>6} {runs:>5}  {kind:<16} {what}"
