"""Train a recipe once for each of several seeds; report each, the median and the spread.

    python scripts/seeds.py --config=configs/digits.py --seeds=0,1,2,3,4 --json=records/digits.json

Each run is a process of its own, in a temporary directory. Further options are passed on:
`--config.section.key=value`.
"""

import dataclasses
import datetime
import math
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from largebatch.cli import Parser, written
from largebatch.environment import ROOT
from largebatch.errors import ConfigError, UserError
from largebatch.fault_tolerance import exit_code
from largebatch.files import check_parent, read_json, write_json
from largebatch.tracking.summary import Summary

_GIB = 2**30 if sys.platform == "darwin" else 2**20  # the unit of ru_maxrss is bytes, or KiB


def train(config: Path, seed: int, options: Sequence[str], workdir: Path) -> dict[str, Any]:
    """Return the summary and the environment of one run.

    Raises:
      UserError: it failed, for a reason that it has printed, or was not evaluated.
    """
    command = [sys.executable, str(ROOT / "train.py"), f"--config={config}", f"--workdir={workdir}"]
    code = subprocess.run([*command, f"--config.run.seed={seed}", *options], check=False).returncode
    if code:
        raise UserError(f"seed {seed}: train.py: exit code {code}; see its message above")
    summary = Summary.read(workdir)
    if summary is None or summary.top1 is None:
        raise UserError(f"seed {seed} was not evaluated; see run.evaluate_every")
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss  # the largest run so far
    return {
        "seed": seed,
        **dataclasses.asdict(summary),
        "peak_gib": round(peak / _GIB, 2),
        "environment": read_json(workdir / "config.json")["environment"],
    }


def seeds_of(text: str) -> list[int]:
    """Return the numbers of a comma-separated list.

    Raises:
      ConfigError: the text has another form.
    """
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() for word in words):
        raise ConfigError(f"--seeds={text}: expected whole numbers from 0; write --seeds=0,1,2")
    return [int(word) for word in words]


def main(arguments: Sequence[str]) -> int:
    """Run all seeds; return the exit code of the process."""
    return exit_code(lambda: run(arguments))


def run(arguments: Sequence[str]) -> None:
    """Run all seeds, print and keep the figures."""
    parser = Parser(__doc__)
    parser.add_recipe("recipe: a name in configs/ or a file")
    parser.add_argument("--seeds", default="0,1,2,3,4", help="comma-separated (0,1,2,3,4)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="file for the record")
    flags, overrides = parser.parse_run(arguments)
    runs, seeds = [], seeds_of(flags.seeds)
    if flags.json:
        check_parent(flags.json)
    for seed in seeds:
        with tempfile.TemporaryDirectory() as directory:
            runs.append(train(flags.config, seed, written(overrides), Path(directory) / "run"))
    environment = runs[0]["environment"]
    for run in runs:
        del run["environment"]
        print(
            f"seed {run['seed']}  top-1 {run['top1']:.2%}  {run['wall_s']:.1f} s  "
            f"{run['images_per_s'] or math.nan:,.0f} images/s  {run['peak_gib']:.2f} GiB"
        )
    top1, seconds = [run["top1"] for run in runs], [run["wall_s"] for run in runs]
    print(f"median top-1 {statistics.median(top1):.2%}, from {min(top1):.2%} to {max(top1):.2%}")
    print(f"median time {statistics.median(seconds):.1f} s, longest {max(seconds):.1f} s")
    if flags.json:
        record = {
            "date": datetime.date.today().isoformat(),
            "command": shlex.join(["python", "scripts/seeds.py", *arguments]),
            "environment": environment,
            "median_top1": statistics.median(top1),
            "median_wall_s": statistics.median(seconds),
            "runs": runs,
        }
        write_json(flags.json, record)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
