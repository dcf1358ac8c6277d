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

from largebatch.config import command_line, load
from largebatch.config.scaling import Scale
from largebatch.doctor import Line, Request, as_json, as_text, examine
from largebatch.doctor.examination import before_devices, is_fatal
from largebatch.doctor.patience import LIMIT_S, Patience
from largebatch.files import check_parent, write_json
from largebatch.guard import exit_code, leave
from largebatch.parallel import processes

PROBLEM = 1


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The flags, and what is left: overrides of options."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--config", type=Path, default=Path("configs/digits.py"), help="recipe (configs/digits.py)")
    add("--workdir", type=Path, help="where the run would be kept (runs/RECIPE)")
    add("--devices", type=int, default=0, help="devices that there should be in all")
    add("--full", action="store_true", help="read every shard of a prepared set, not a sample")
    add("--measure_step", action="store_true", help="compile two steps and time the second")
    add("--seconds", type=float, default=3.0, help="to measure decoding for (3)")
    add("--limit_s", type=float, default=LIMIT_S, help=f"of each stage, 0: none ({LIMIT_S:g})")
    add("--json", type=Path, help="where to write the page for machines")
    add("--coordinator", help="HOST:PORT of process 0, with several processes")
    add("--processes", type=int, help="how many processes there are")
    add("--process", type=int, help="which of them this is, from 0")
    # The same argument list serves the job and the doctor; what says how to run is left unused.
    add("recipe", nargs="?", help=argparse.SUPPRESS)
    add("--scale", choices=get_args(Scale), default="full", help=argparse.SUPPRESS)
    for name in ("--init_from", "--resume", "--runs", "--out", "--cluster"):
        add(name, help=argparse.SUPPRESS)
    for unused in ("--dry_run", "--eval_only"):
        add(unused, action="store_true", help=argparse.SUPPRESS)
    flags, others = parser.parse_known_args(arguments)
    if flags.recipe:
        given = Path(flags.recipe)
        flags.config = given if given.suffix == ".py" else Path("configs") / f"{given}.py"
    return flags, others


def overrides_of(flags: argparse.Namespace, others: Sequence[str]) -> list[tuple[str, str]]:
    """Options over those of the recipe, those that are flags of the job among them."""
    ours = [("run.scale_to", flags.scale)] if flags.scale != "full" else []
    theirs = [("model.init_from", flags.init_from)] if flags.init_from else []
    return [*ours, *command_line.overrides(others), *theirs]


def run(arguments: Sequence[str]) -> list[Line]:
    """Look at everything and print the page."""
    flags, others = parse(arguments)
    config = load(flags.config, overrides_of(flags, others))
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
        workdir=flags.workdir or Path("runs") / flags.config.stem,
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
    found: list[Line] = []
    code = exit_code(lambda: found.extend(run(arguments)))
    return code or (PROBLEM if any(line.verdict == "PROBLEM" for line in found) else 0)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
