"""Measurements on a GPU, by commands of less than nine minutes.

    gpu --out records/gpu
    gpu --out records/gpu --parts step_512_40
    gpu --out /tmp/rehearsal --size tiny

Each part is a separate process with its own time limit, so that a failure affects only this part.
OUT gets PART.json of each successful part, PART.tgz with its profiles, and output.txt, to which the
output of all parts is appended. The parts come in the order of what one wants to know first; those
that do not fit into the time are named, with the command for the rest.
"""

import argparse
import dataclasses
import json
import os
import shlex
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from benchmarks.measure import RATE, Result, chosen

LIMIT_S = 600.0 - 70.0
"""Default for all parts: a job of 10 minutes, a usual limit for short jobs, in which the start of
the job and the copy of the records take about a minute."""
COMMAND = Path(__file__).resolve().parents[1] / "benchmark.py"


@dataclasses.dataclass(frozen=True)
class Part:
    """One command of scripts/benchmark.py.

    Attributes:
        words: Its words, the subcommand first.
        limit_s: Seconds that it may take. On 16 cores and an H100, a ResNet-50 step is ready in 35
            s, of which 17 compile it and try algorithms; torch.compile takes a minute.
        traces: Whether it profiles.
    """

    words: str
    limit_s: float
    traces: bool = False


_STEP = "step --dtype bfloat16 --answer_s 200"
_TINY = "--image_size 32 --network resnet18 --width 8 --classes 10"
_SHORT = "--repeats 1 --seconds 0.05"
# Memory of 80 GiB holds three of them at 256 images: those that wait keep theirs.
_PEERS = "--peer flax,torch_compile"
SIZES: Mapping[str, Mapping[str, Part]] = {
    "full": {
        "step_256": Part(f"{_STEP} --batch 256 {_PEERS}", 220, traces=True),
        "optimizer": Part("optimizer --repeats 5", 160),
        "correctness": Part("correctness", 150),
        "step_512_40": Part(f"{_STEP} --batch 512,40", 260, traces=True),
    },
    "tiny": {
        "step_256": Part(
            f"step --batch 4 --peer flax,torch_eager {_SHORT} {_TINY}",
            300,
            traces=True,
        ),
        "optimizer": Part(f"optimizer --network resnet18 --width 8 --sets 1 {_SHORT}", 300),
        "correctness": Part(f"correctness --batch 4 --dtype float32 {_TINY}", 300),
        "step_512_40": Part(f"step --batch 4,2 {_SHORT} {_TINY}", 300, traces=True),
    },
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the subcommand."""
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder for the records")
    add("--parts", default="", help=f"comma-separated (all): {', '.join(SIZES['full'])}")
    add("--limit_s", type=float, default=LIMIT_S, help=f"seconds in all ({LIMIT_S:.0f})")
    add("--size", choices=SIZES, default="full", help="tiny rehearses it anywhere (full)")


def run(flags: argparse.Namespace) -> list[Result]:
    """Run the parts one after the other; returns rates, ratios and what is missing."""
    parts = SIZES[flags.size]
    names = chosen("--parts", flags.parts, parts) or list(parts)
    flags.out.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + flags.limit_s
    results, waiting = [], []
    with (
        tempfile.TemporaryDirectory() as traces,
        flags.out.joinpath("output.txt").open("a") as output,
    ):
        for name in names:
            left = until - time.monotonic()
            if left < parts[name].limit_s and (name != names[0] or left <= 0):
                waiting.append(name)
                continue
            start = time.monotonic()
            output.write(f"==== {name}\n")
            output.flush()
            record, trace = flags.out / f"{name}.json", Path(traces, name)
            failure = run_part(parts[name], record, trace, output, min(parts[name].limit_s, left))
            seconds = time.monotonic() - start
            print(f"{name}: {failure or 'done'} after {seconds:.0f} s", flush=True)
            results += short(name, record) or [Result(name, "s", absent=failure)]
            if trace.is_dir():
                with tarfile.open(flags.out / f"{name}.tgz", "w:gz") as tar:
                    tar.add(trace, name)
    if waiting:
        words = ["gpu", "--out", str(flags.out), "--parts", ",".join(waiting)]
        words += ["--size", flags.size] if flags.size != "full" else []
        rest = shlex.join(words)
        reason = f"no time was left; continue with: python scripts/benchmark.py {rest}"
        results += [Result(name, "s", absent=reason) for name in waiting]
    return results


def run_part(part: Part, record: Path, trace: Path, output: TextIO, limit_s: float) -> str:
    """Run one part in a process of its own; returns why it failed, empty if it did not.

    Args:
        part: Its command.
        record: File for its record.
        trace: Folder for its profiles.
        output: File for its output.
        limit_s: Seconds after which it is ended.
    """
    record.unlink(missing_ok=True)
    command = [sys.executable, str(COMMAND), *shlex.split(part.words), "--json", str(record)]
    # The package of this process; lines of a table as long as they need to be.
    path = os.pathsep.join(filter(None, sys.path))
    own = {"PYTHONPATH": path, "COLUMNS": "160", "PYTHONUNBUFFERED": "1"}
    try:
        code = subprocess.run(  # its competitors end with it
            [*command, "--trace", str(trace)] if part.traces else command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | own,
            timeout=limit_s,
            check=False,
        ).returncode
    except subprocess.TimeoutExpired:
        return f"ended at its limit of {limit_s:.0f} s"
    return "" if code == 0 else f"failed (exit code {code}); see {output.name}"


def short(name: str, record: Path) -> list[Result]:
    """Rates, ratios and what is missing of a part's record; the record has the rest."""
    if not record.is_file():
        return []
    found = [Result.from_json(kept) for kept in json.loads(record.read_text())["results"]]
    return [
        dataclasses.replace(each, name=f"{name}: {each.name}", note="")
        for each in found
        if each.peer_name or each.absent or each.unit == RATE
    ]
