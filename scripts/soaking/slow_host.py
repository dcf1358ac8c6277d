"""The trial ``slow_host`` of scripts/soak.py."""

import inspect
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import header

from largebatch.cli import Parser
from largebatch.environment import ROOT
from largebatch.files import check_parent, read_json, write_json
from largebatch.tracking import read_rows

IMAGES, MICROBATCHES = 8, 4  # of a worker; of a step on each device
_SETTLED = 5  # the first steps open connections


def slow_host(arguments: Sequence[str]) -> None:
    """Measure a deadline while one of several processes is slow.

        python scripts/soak.py slow_host --json=records/slow_host.json

    Each of --processes processes has one CPU device. The last one takes --delay_s longer for every
    microbatch except the last of a step. The same training runs undisturbed, with the slow process,
    and with the slow process and batch.deadline_s.
    """
    parser = Parser(inspect.getdoc(slow_host), usage="soak.py slow_host --json FILE [flags]")
    parser.add_argument("--processes", type=int, default=4, help="number of processes (4)")
    parser.add_argument("--steps", type=int, default=60, help="steps of each training (60)")
    parser.add_argument("--delay_s", type=float, default=0.4, help="of a slow microbatch (0.4)")
    parser.add_argument("--deadline_s", type=float, default=0.2, help="batch.deadline_s (0.2)")
    parser.add_record(required=True)
    flags = parser.parse_args(arguments)
    check_parent(flags.json)
    workers = flags.processes * MICROBATCHES
    cases = {
        "undisturbed": ("none", 0.0),
        "one slow host": ("slow", 0.0),
        "one slow host, deadline": ("slow", flags.deadline_s),
    }
    found = {}
    for name, (fault, deadline_s) in cases.items():
        with tempfile.TemporaryDirectory() as place:
            command = [
                *(sys.executable, "scripts/launch_local.py", f"--processes={flags.processes}"),
                *("--", "scripts/soaking/faulty.py", fault, str(flags.processes - 1)),
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
            found[name] = figures(Path(place, "run"), workers * IMAGES)
        print(f"{name}: {found[name]}", flush=True)
    record = header("soak.py", ["slow_host", *arguments])
    record |= {"options": vars(flags), "batch": workers * IMAGES, "runs": found}
    write_json(flags.json, record)


def figures(workdir: Path, batch: int) -> dict[str, Any]:
    """Return seconds of a step, losses and the slowest hosts of a training."""
    rows = read_rows(workdir / "metrics.jsonl")
    seconds = [batch / row["images_per_s"] for row in rows[_SETTLED:]]
    hosts = [row for row in read_rows(workdir / "events.jsonl") if row["event"] == "hosts"]
    return {
        "step_s_median": statistics.median(seconds),
        "step_s_quartiles": statistics.quantiles(seconds, n=4)[::2],
        "left_out": statistics.fmean(row.get("left_out", 0.0) for row in rows[_SETTLED:]),
        "loss_first_steps": statistics.fmean(row["loss"] for row in rows[:5]),
        "loss_last_steps": statistics.fmean(row["loss"] for row in rows[-5:]),
        "top1": read_json(workdir / "summary.json")["top1"],
        "slowest": [(row["slowest"], row["factor"], row["cause"]) for row in hosts],
    }
