"""Check hosts, devices, data and network before a long job; each problem has a remedy.

    python scripts/doctor.py --config=configs/imagenette_resnet50.py --workdir=runs/a --devices=8

Use the launcher and the options of the job: all arguments of train.py and scripts/reproduce.py are
accepted. The doctor trains nothing and keeps no files. The exit code is 0 without a problem, 1 with
one, 2 for a mistake on the command line, 70 if another process does not respond.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from largebatch.cli import Overrides, Parser
from largebatch.config import load
from largebatch.config.recipe_file import label
from largebatch.config.scaling import Scale
from largebatch.fault_tolerance import exit_code, leave
from largebatch.files import check_parent, write_json

if TYPE_CHECKING:
    from largebatch.tools.doctor import Line

PROBLEM = 1
LIMIT_S = 1800.0
"""Default limit of a stage in seconds; compiling two steps takes longest."""


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, Overrides]:
    """Parse the flags, and the options of the recipe."""
    parser = Parser(__doc__)
    parser.add_recipe("recipe: a name in configs/ or a file (digits)", default="digits")
    add = parser.add_argument
    add("--workdir", type=Path, help="run directory (runs/RECIPE)")
    add("--devices", type=int, default=0, help="number of devices expected in all processes")
    add("--full", action="store_true", help="read every shard of a prepared dataset, not a sample")
    add("--measure_step", action="store_true", help="compile two steps and time the second")
    add("--seconds", type=float, default=3.0, help="time to measure decoding for (3)")
    add("--limit_s", type=float, default=LIMIT_S, help=f"of each stage, 0: none ({LIMIT_S:g})")
    add("--json", type=Path, help="file for the page as JSON")
    add("--coordinator", help="HOST:PORT of process 0, with several processes")
    add("--processes", type=int, help="number of processes")
    add("--process", type=int, help="number of this process, from 0")
    # The job and the doctor share an argument list; flags of the job alone have no effect here.
    add("--scale", choices=get_args(Scale), default="full", help=argparse.SUPPRESS)
    for name in ("--init_from", "--resume", "--runs", "--out", "--cluster"):
        add(name, help=argparse.SUPPRESS)
    for unused in ("--dry_run", "--eval_only", "--print_config", "--quiet"):
        add(unused, action="store_true", help=argparse.SUPPRESS)
    flags, overrides = parser.parse_run(arguments)
    ours = [("run.scale_to", flags.scale)] if flags.scale != "full" else []
    theirs = [("model.init_from", flags.init_from)] if flags.init_from else []
    return flags, [*ours, *overrides, *theirs]


def run(arguments: Sequence[str]) -> "list[Line]":
    """Parse the command line, run all checks and print the page."""
    flags, overrides = parse(arguments)
    config = load(flags.config, overrides)
    if flags.json:
        check_parent(flags.json)
    import jax  # after the command line is known to be correct
    from rich.console import Console

    from largebatch.parallel import processes
    from largebatch.tools.doctor import Job, examination

    early = examination.before_devices()
    if examination.is_fatal(early):
        return report(early, flags.json, devices=False)
    processes.initialise(
        coordinator=flags.coordinator, processes=flags.processes, process=flags.process
    )
    is_first = jax.process_index() == 0
    job = Job(
        config,
        workdir=flags.workdir or Path("runs") / label(flags.config),
        devices=flags.devices,
        full=flags.full,
        measure_step=flags.measure_step,
        seconds=flags.seconds,
        limit_s=flags.limit_s,
    )
    err = Console(stderr=True, highlight=False)

    def progress(stage: str) -> None:
        if is_first and err.is_terminal:
            err.print(f"{stage} …", style="dim")

    lines = examination.examine(job, early, progress)
    return report(lines, flags.json) if is_first else lines


def report(lines: "list[Line]", path: Path | None, *, devices: bool = True) -> "list[Line]":
    """Print the page, and write it if there is a path."""
    from rich.console import Console

    from largebatch.tools.doctor import as_json, as_text

    Console(highlight=False, soft_wrap=True).print(as_text(lines))
    if path:
        write_json(path, as_json(lines, devices=devices))
    return lines


def main(arguments: Sequence[str]) -> int:
    """Run; the result is the process's exit code (largebatch.fault_tolerance.exit_codes)."""
    return exit_code(
        lambda: PROBLEM if any(line.verdict == "PROBLEM" for line in run(arguments)) else 0
    )


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
