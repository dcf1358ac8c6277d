"""What the cache of compiled programs is worth: first and second start of a recipe, in pairs.

    python scripts/second_start.py --config=configs/digits.py --json=records/second_start.json

Each pair has a cache of its own: train.py runs twice for a few steps, in directories of their own.
Compared are the seconds of compiling, the time until the process ends, and the log, to the bit.
Further options are passed on: `--config.section.key=value`.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import environment

from largebatch.cli import Parser, written
from largebatch.errors import UserError
from largebatch.fault_tolerance import exit_code
from largebatch.files import check_parent, write_json

TRAIN = Path(__file__).resolve().parent.parent / "train.py"
SHORT = ("--config.schedule.length=4 steps", "--config.schedule.warmup=1 steps")


def start(config: Path, options: Sequence[str], workdir: Path, cache: Path) -> dict[str, Any]:
    """One run; what it took, and its layers, which hold no times."""
    command = [
        *(sys.executable, str(TRAIN), f"--config={config}", f"--workdir={workdir}", *SHORT),
        "--config.run.layers_every=1 steps",
        *options,
    ]
    began = time.perf_counter()
    done = subprocess.run(
        command,
        env=os.environ | {"JAX_COMPILATION_CACHE_DIR": str(cache)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise UserError(f"train.py ended with {done.returncode}: {done.stdout.splitlines()[-1:]}")
    summary = json.loads((workdir / "summary.json").read_text())
    return {
        "compile_s": summary["compile_s"],
        "process_s": time.perf_counter() - began,
        "layers": (workdir / "layers.jsonl").read_bytes(),
    }


def run(arguments: Sequence[str]) -> None:
    """Start in pairs and write the record.

    Raises:
      UserError: a run failed, or the log of a second start differs from the first one's.
    """
    parser = Parser(__doc__)
    parser.add_recipe("recipe: a name in configs/ or a file (digits)", default="digits")
    parser.add_argument("--pairs", type=int, default=3, help="how many (3)")
    parser.add_record(required=True)
    flags, overrides = parser.parse_run(arguments)
    options = written(overrides)
    check_parent(flags.json)
    pairs, equal, sizes = [], True, []
    for _ in range(flags.pairs):
        with tempfile.TemporaryDirectory() as place:
            cache = Path(place, "cache")
            pair = [start(flags.config, options, Path(place, n), cache) for n in ("a", "b")]
            equal &= pair[0].pop("layers") == pair[1].pop("layers")
            sizes.append(sum(p.stat().st_size for p in cache.rglob("*") if p.is_file()))
        pairs.append(pair)
        print(json.dumps(pair), flush=True)
    found = {
        name: {
            "first": statistics.median(first[name] for first, _ in pairs),
            "second": statistics.median(second[name] for _, second in pairs),
            "ratio": statistics.median(first[name] / second[name] for first, second in pairs),
        }
        for name in ("compile_s", "process_s")
    }
    print(json.dumps(found), "equal to the bit" if equal else "DIFFERENT", flush=True)
    about = {
        "command": "python scripts/second_start.py " + " ".join(arguments),
        "environment": environment(),
    }
    results = {"medians": found, "equal": equal, "cache_bytes": max(sizes), "pairs": pairs}
    write_json(flags.json, {**about, **results})
    if not equal:
        raise UserError("programs from the cache computed other bits than those just compiled")


def main(arguments: Sequence[str]) -> int:
    """Run; the result is the process's exit code."""
    return exit_code(lambda: run(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
