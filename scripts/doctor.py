"""Look at hosts, devices, data and network before a long job; each line says what to do.

    python scripts/doctor.py --config=configs/imagenette_resnet50.py --workdir=runs/a --devices=8

Start it as the job will be started, with its launcher and its options: the whole argument list of
train.py or scripts/reproduce.py is accepted. Nothing is trained and nothing is left behind. The
exit code is 0 if all is well, 1 if there is a problem, 2 for a mistake on the command line, 70
where another process did not answer.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import jax
from rich.console import Console

from largebatch.cli import Overrides, Parser
from largebatch.config import load
from largebatch.config.recipe_file import label
from largebatch.config.scaling import Scale
from largebatch.fault_tolerance import exit_code, leave
from largebatch.files import check_parent, write_json
from largebatch.parallel import processes
from largebatch.tools.doctor import Line, Request, as_json, as_text, examine
from largebatch.tools.doctor.examination import before_devices, is_fatal
from largebatch.tools.doctor.patience import LIMIT_S, Patience

PROBLEM = 1


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, Overrides]:
    """The flags, and the options of the recipe."""
    parser = Parser(__doc__)
    parser.add_recipe("recipe: a name in configs/ or a file (digits)", default="digits")
    add = parser.add_argument
    add("--workdir", type=Path, help="where the run would be kept (runs/RECIPE)")
    add("--devices", type=int, default=0, help="devices expected, of all processes together")
    add("--full", action="store_true", help="read every shard of a prepared set, not a sample")
    add("--measure_step", action="store_true", help="compile two steps and time the second")
    add("--seconds", type=float, default=3.0, help="to measure decoding for (3)")
    add("--limit_s", type=float, default=LIMIT_S, help=f"of each stage, 0: none ({LIMIT_S:g})")
    add("--json", type=Path, help="where to write the page for machines")
    add("--coordinator", help="HOST:PORT of process 0, with several processes")
    add("--processes", type=int, help="how many processes there are")
    add("--process", type=int, help="which of them this is, from 0")
    # The same argument list serves the job and the doctor; what says how to run is left unused.
    add("--scale", choices=get_args(Scale), default="full", help=argparse.SUPPRESS)
    for name in ("--init_from", "--resume", "--runs", "--out", "--cluster"):
        add(name, help=argparse.SUPPRESS)
    for unused in ("--dry_run", "--eval_only"):
        add(unused, action="store_true", help=argparse.SUPPRESS)
    flags, overrides = parser.parse_run(arguments)
    ours = [("run.scale_to", flags.scale)] if flags.scale != "full" else []
    theirs = [("model.init_from", flags.init_from)] if flags.init_from else []
    return flags, [*ours, *overrides, *theirs]


def run(arguments: Sequence[str]) -> list[Line]:
    """Look at everything and print the page."""
    flags, overrides = parse(arguments)
    config = load(flags.config, overrides)
    if flags.json:
        check_parent(flags.json)
    early = before_devices()
    if is_fatal(early):
        return report(early, flags.json, devices=False)
    processes.initialise(
        coordinator=flags.coordinator, processes=flags.processes, process=flags.process
    )
    first = jax.process_index() == 0
    request = Request(
        workdir=flags.workdir or Path("runs") / label(flags.config),
        devices=flags.devices,
        full=flags.full,
        measure_step=flags.measure_step,
        seconds=flags.seconds,
    )
    err = Console(stderr=True, highlight=False)

    def say(text: str) -> None:
        if first and err.is_terminal:
            err.print(f"{text} …", style="dim")

    patience = Patience(flags.limit_s)
    with patience.watching():
        lines = examine(config, request, early, patience, say)
    return report(lines, flags.json) if first else lines


def report(lines: list[Line], path: Path | None, *, devices: bool = True) -> list[Line]:
    """Print the page; and write it."""
    Console(highlight=False, soft_wrap=True).print(as_text(lines))
    if path:
        write_json(path, as_json(lines, devices=devices))
    return lines


def main(arguments: Sequence[str]) -> int:
    """Look; the result is the process's exit code."""
    return exit_code(
        lambda: PROBLEM if any(line.verdict == "PROBLEM" for line in run(arguments)) else 0
    )


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
