"""What a deadline is worth when one of several hosts is slow, measured with real processes.

    python scripts/slow_host.py --json=records/slow_host.json

Each of --processes processes has one CPU device. The last one takes --delay_s longer for every
microbatch but a step's last. The same training runs undisturbed, with the slow process, and with
the slow process and batch.deadline_s: seconds of a step (median), loss, and who was named.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import environment

from largebatch.cli import Parser
from largebatch.fault_tolerance import exit_code
from largebatch.files import check_parent, write_json
from largebatch.tracking import read_rows

ROOT = Path(__file__).resolve().parent.parent
IMAGES, MICROBATCHES = 8, 4  # of a worker; of a step on each device
_SETTLED = 5  # the first steps open connections


def parser() -> Parser:
    """The command line."""
    made = Parser(__doc__)
    made.add_argument("--processes", type=int, default=4, help="how many (4)")
    made.add_argument("--steps", type=int, default=60, help="of each training (60)")
    made.add_argument("--delay_s", type=float, default=0.4, help="of a slow microbatch (0.4)")
    made.add_argument("--deadline_s", type=float, default=0.2, help="batch.deadline_s (0.2)")
    made.add_record(required=True)
    return made


def train(flags: argparse.Namespace, workdir: Path, *, slow: bool, deadline_s: float) -> None:
    """One training by real processes."""
    fault = [("slow" if slow else "none"), str(flags.processes - 1), str(flags.delay_s)]
    command = [
        sys.executable,
        "scripts/launch_local.py",
        f"--processes={flags.processes}",
        "--",
        "scripts/soaking/faulty.py",
        *fault,
        "--",
        f"--workdir={workdir}",
        "--config.model.name=resnet10",
        "--config.model.width=4",
        f"--config.batch.workers={flags.processes * MICROBATCHES}",
        f"--config.batch.images_per_worker={IMAGES}",
        "--config.batch.microbatch=1",
        f"--config.batch.deadline_s={deadline_s}",
        "--config.schedule.peak=1.0",
        f"--config.schedule.length={flags.steps} steps",
        "--config.schedule.warmup=5 steps",
        "--config.run.log_every=1 steps",
        "--config.health.hosts_every=20 steps",
    ]
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run(command, cwd=ROOT, env=environ, check=True, stdout=subprocess.DEVNULL)


def figures(workdir: Path, batch: int) -> dict[str, Any]:
    """What a training was like."""
    rows = read_rows(workdir / "metrics.jsonl")
    seconds = [batch / row["images_per_s"] for row in rows[_SETTLED:]]
    hosts = [row for row in read_rows(workdir / "events.jsonl") if row["event"] == "hosts"]
    summary = json.loads((workdir / "summary.json").read_text())
    return {
        "step_s_median": statistics.median(seconds),
        "step_s_quartiles": statistics.quantiles(seconds, n=4)[::2],
        "left_out": statistics.fmean(row.get("left_out", 0.0) for row in rows[_SETTLED:]),
        "loss_first_steps": statistics.fmean(row["loss"] for row in rows[:5]),
        "loss_last_steps": statistics.fmean(row["loss"] for row in rows[-5:]),
        "top1": summary["top1"],
        "slowest": [(row["slowest"], row["factor"], row["cause"]) for row in hosts],
    }


def main(arguments: Sequence[str]) -> int:
    """Run; the result is the process's exit code."""
    return exit_code(lambda: run(arguments))


def run(arguments: Sequence[str]) -> None:
    """Train three times and write the record."""
    flags = parser().parse_args(arguments)
    check_parent(flags.json)
    batch = flags.processes * MICROBATCHES * IMAGES
    cases = {
        "undisturbed": {"slow": False, "deadline_s": 0.0},
        "one slow host": {"slow": True, "deadline_s": 0.0},
        "one slow host, deadline": {"slow": True, "deadline_s": flags.deadline_s},
    }
    found = {}
    with tempfile.TemporaryDirectory() as place:
        for name, case in cases.items():
            workdir = Path(place) / name.replace(" ", "_").replace(",", "")
            train(flags, workdir, **case)
            found[name] = figures(workdir, batch)
            print(f"{name}: {json.dumps(found[name])}", flush=True)
    command = "python scripts/slow_host.py " + " ".join(arguments)
    about = {"command": command, "environment": environment(), "options": vars(flags)}
    write_json(flags.json, {**about, "batch": batch, "runs": found})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
