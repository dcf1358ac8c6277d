"""Train a recipe once for each of several seeds; report each, the median and the spread.

    python scripts/seeds.py --config=configs/digits.py --seeds=0,1,2,3,4 --json=records/digits.json

Each run is a process of its own, `train.py` as a user would call it, in a temporary directory.
Further options are passed on: `--config.section.key=value`.
"""

import argparse
import datetime
import json
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from largebatch.train.describe import peak_bytes
from largebatch.train.memory import GIB

TRAIN = Path(__file__).resolve().parent.parent / "train.py"


def train(config: Path, seed: int, options: Sequence[str], workdir: Path) -> dict:
    """One run; its summary and what it ran on."""
    command = [sys.executable, str(TRAIN), f"--config={config}", f"--workdir={workdir}"]
    subprocess.run([*command, f"--config.run.seed={seed}", *options], check=True)
    described = json.loads((workdir / "config.json").read_text())
    summary = json.loads((workdir / "summary.json").read_text())
    peak = peak_bytes(resource.RUSAGE_CHILDREN) / GIB  # the largest so far: runs are alike
    return {
        "seed": seed,
        **summary,
        "peak_gib": round(peak, 2),
        "environment": described["environment"],
    }


def main(arguments: Sequence[str]) -> int:
    """Run all seeds and report."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--config", type=Path, required=True, help="recipe")
    parser.add_argument("--seeds", default="0,1,2,3,4", help="comma-separated (0,1,2,3,4)")
    parser.add_argument("--json", type=Path, help="where to write the record")
    flags, options = parser.parse_known_args(arguments)
    runs = []
    for seed in [int(text) for text in flags.seeds.split(",")]:
        with tempfile.TemporaryDirectory() as directory:
            runs.append(train(flags.config, seed, options, Path(directory) / "run"))
    environment = runs[0]["environment"]
    for run in runs:
        del run["environment"]
        print(
            f"seed {run['seed']}  top-1 {run['top1']:.2%}  {run['wall_s']:.1f} s  "
            f"{run['images_per_s']:,.0f} images/s  {run['peak_gib']:.2f} GiB"
        )
    top1 = [run["top1"] for run in runs]
    seconds = [run["wall_s"] for run in runs]
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
        flags.json.parent.mkdir(parents=True, exist_ok=True)
        flags.json.write_text(json.dumps(record, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
