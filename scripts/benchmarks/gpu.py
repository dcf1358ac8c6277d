"""All that a GPU is to be measured for, in one command and less than nine minutes.

    gpu --out records/gpu
    gpu --out records/gpu --parts step_256,microbatch
    gpu --out /tmp/rehearsal --size tiny

Each part is a process of its own with a limit of its own, so that what fails costs only itself; its
record is OUT/PART.json, what it printed OUT/PART.txt. Parts that no time is left for are named.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.competitor import SCRIPTS
from benchmarks.measure import Result
from benchmarks.step_results import RATE
from largebatch.errors import ConfigError, did_you_mean

_GRACE_S = 15.0
_LEAST_S = 20.0  # with less than this left no part is begun


@dataclass(frozen=True)
class Part:
    """One command of scripts/benchmark.py.

    Attributes:
        arguments: With the subcommand first.
        limit_s: Seconds that it may take.
        traces: Whether it profiles; the kernels then come to OUT too.
    """

    arguments: tuple[str, ...]
    limit_s: float
    traces: bool = False


_BF16 = ("--dtype", "bfloat16")
_STEP = ("step", *_BF16, "--answer_s", "150")
FULL: Mapping[str, Part] = {
    "correctness": Part(("correctness",), 90),
    "step_512_40": Part((*_STEP, "--batch", "512,40"), 170, traces=True),
    "step_256": Part(
        (
            *(*_STEP, "--batch", "256", "--second_batch", "0"),
            *("--peer", "flax,torch_eager,torch_compile"),
        ),
        270,
        traces=True,
    ),
    "optimizer": Part(("optimizer",), 60),
    "end_to_end": Part(("end_to_end", *_BF16, "--repeats", "2"), 200),
    "microbatch": Part(("microbatch", *_BF16), 300),
}
_SMALL = ("--image_size", "32", "--network", "resnet18", "--width", "8", "--classes", "10")
_SHORT = ("--seconds", "0.05")
TINY: Mapping[str, Part] = {
    "correctness": Part(("correctness", "--batch", "4", "--dtype", "float32", *_SMALL), 120),
    "step_512_40": Part(
        ("step", "--batch", "4,2", "--repeats", "1", *_SHORT, *_SMALL), 180, traces=True
    ),
    "step_256": Part(
        (
            *("step", "--batch", "4", "--second_batch", "0", "--repeats", "1"),
            *("--peer", "flax,torch_eager", *_SHORT, *_SMALL),
        ),
        180,
        traces=True,
    ),
    "optimizer": Part(
        ("optimizer", "--network", "resnet18", "--width", "8", "--repeats", "1", *_SHORT), 120
    ),
    "end_to_end": Part(
        (
            *("end_to_end", "--total", "8", "--images", "2", "--workers", "2", "--repeats", "1"),
            *(*_SHORT, *_SMALL),
        ),
        120,
    ),
    "microbatch": Part(
        ("microbatch", "--total", "4", "--images", "2", *_SMALL, "--config.batch.memory_gib=0.5"),
        120,
    ),
}
SIZES = {"full": FULL, "tiny": TINY}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the subcommand."""
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder for the records")
    add("--parts", default="", help=f"comma-separated, in this order (all): {', '.join(FULL)}")
    add("--limit_s", type=float, default=530.0, help="seconds for all parts together (530)")
    add("--size", choices=SIZES, default="full", help="tiny rehearses it anywhere (full)")


def run(flags: argparse.Namespace) -> list[Result]:
    """Runs the parts one after the other; returns rates, goals and what is missing."""
    parts = SIZES[flags.size]
    names = [name for name in flags.parts.split(",") if name] or list(parts)
    for name in names:
        if name not in parts:
            raise ConfigError(f"--parts {name} is unknown; {did_you_mean(name, parts)}")
    flags.out.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + flags.limit_s
    results = []
    for name in names:
        left = until - time.monotonic()
        if left < _LEAST_S:
            results.append(Result(name, "part", absent="left out: no time was left"))
            continue
        start = time.monotonic()
        said = run_part(parts[name], flags.out / name, min(parts[name].limit_s, left))
        print(f"{name}: {said} after {time.monotonic() - start:.0f} s", flush=True)
        results += measured(name, flags.out / f"{name}.json", said)
    # The records have the rest; this table is to be short.
    return [each for each in results if each.goal is not None or each.absent or each.unit == RATE]


def run_part(part: Part, out: Path, limit_s: float) -> str:
    """Runs one part in a process of its own.

    Args:
        part: What to run.
        out: Path of the record and of the output, without suffix.
        limit_s: After which it is ended.

    Returns:
        How it ended, in words: `done` if well.
    """
    record = out.with_suffix(".json")
    record.unlink(missing_ok=True)
    command = [sys.executable, str(SCRIPTS / "benchmark.py"), *part.arguments]
    command += ["--json", str(record)]
    if part.traces:
        command += ["--trace", str(out)]
    with out.with_suffix(".txt").open("w") as printed:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            # Lines of a table are then as long as they have to be.
            env=os.environ | {"COLUMNS": "160", "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return f"ended at its limit of {limit_s:.0f} s"
        finally:
            end(process)
    return "done" if code == 0 else f"failed (exit code {code}); see {out.with_suffix('.txt')}"


def end(process: subprocess.Popen) -> None:
    """Asks a process to end its competitors and itself; kills it if it does not."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S)


def measured(name: str, record: Path, said: str) -> list[Result]:
    """The results that a part has left, in its name."""
    try:
        kept = json.loads(record.read_text())["results"]
    except (OSError, ValueError):
        return [Result(name, "part", absent=said)]
    return [restored(f"{name}: {each['name']}", each) for each in kept]


def restored(name: str, kept: Mapping[str, Any]) -> Result:
    """A result as `Result.as_json` has kept it; its note is in the part's own output."""

    def repeats(summary: Mapping[str, Any] | None) -> Sequence[float]:
        return tuple(summary["repeats"]) if summary else ()

    return Result(
        name,
        kept["unit"],
        repeats(kept["ours"]),
        repeats(kept["peer"]),
        kept["peer_name"] or "",
        kept["absent"] or "",
        kept["better"],
        kept["goal"],
    )
