"""Deadline: steps of several processes of which one is slow, with and without batch.deadline_s.

    slow_host --json records/slow_host.json

Each process has one CPU device. The last one takes --delay_s longer for every microbatch except the
last of a step.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import Result, require_positive
from largebatch.environment import ROOT
from largebatch.tracking import read_rows

IMAGES, MICROBATCHES = 8, 4  # of a worker; of a step on each device
_SETTLED = 5  # the first steps open connections


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the subcommand."""
    add = parser.add_argument
    add("--processes", type=int, default=4, help="number of processes (4)")
    add("--steps", type=int, default=60, help="steps of each training (60)")
    add("--repeats", type=int, default=1, help="trainings of each kind (1)")
    add("--delay_s", type=float, default=0.4, help="of a slow microbatch (0.4)")
    add("--deadline_s", type=float, default=0.2, help="batch.deadline_s (0.2)")


def run(flags: argparse.Namespace) -> list[Result]:
    """Train undisturbed, with the slow process, and with it and the deadline.

    Raises:
        ConfigError: A number below 1.
    """
    require_positive(flags, "processes", "steps", "repeats")
    cases = {"none": ("none", 0.0), "slow": ("slow", 0.0), "cut": ("slow", flags.deadline_s)}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in cases}
    for _ in range(flags.repeats):
        for name, case in cases.items():
            found[name].append(_train(flags, *case))

    def values(name: str, key: str) -> tuple[float, ...]:
        return tuple(each[key] for each in found[name])

    slow = f"one of {flags.processes} hosts is slow"
    return [
        Result(
            f"{what} with the deadline, {slow}", unit, values("cut", key), values(peer, key), kind
        )
        for key, what, unit in (("seconds", "step", "s"), ("loss", "last loss", "nats"))
        for peer, kind in (("slow", "without the deadline"), ("none", "no host is slow"))
    ] + [Result("share of images left out", "%", values("cut", "left_out"))]


def _train(flags: argparse.Namespace, fault: str, deadline_s: float) -> dict[str, float]:
    """Return the median step in seconds, the loss of the last steps, and what was left out."""
    workers = flags.processes * MICROBATCHES
    with tempfile.TemporaryDirectory() as place:
        command = [
            *(sys.executable, "scripts/launch_local.py", f"--processes={flags.processes}"),
            *("--", "scripts/benchmarks/faulty.py", fault, str(flags.processes - 1)),
            *(str(flags.delay_s), "--", f"--workdir={place}/run", "--config=digits"),
            *("--config.model.name=resnet10", "--config.model.width=4"),
            f"--config.batch.workers={workers}",
            f"--config.batch.images_per_worker={IMAGES}",
            "--config.batch.microbatch=1",
            f"--config.batch.deadline_s={deadline_s}",
            *("--config.schedule.peak=1.0", "--config.schedule.warmup=5 steps"),
            f"--config.schedule.length={flags.steps} steps",
            *("--config.run.log_every=1 steps", "--config.health.hosts_every=20 steps"),
        ]
        environ = os.environ | {"PYTHONPATH": str(ROOT)}
        subprocess.run(command, cwd=ROOT, env=environ, check=True, stdout=subprocess.DEVNULL)
        rows = read_rows(Path(place, "run", "metrics.jsonl"))[_SETTLED:]
    return {
        "seconds": statistics.median(workers * IMAGES / row["images_per_s"] for row in rows),
        "loss": statistics.fmean(row["loss"] for row in rows[-5:]),
        "left_out": 100 * statistics.fmean(row.get("left_out", 0.0) for row in rows),
    }
