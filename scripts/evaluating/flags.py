"""Flags that say how images are prepared, and how a script that has them ends."""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from largebatch.cli import Parser
from largebatch.errors import UserError
from largebatch.fault_tolerance import exit_code
from largebatch.training.memory import is_exhausted
from largebatch.weights.evaluation.settings import Wanted


def parser(description: str | None, usage: str) -> Parser:
    """A command line with the flags of both scripts; what they leave out is as in training."""
    made = Parser(description, usage=usage)
    made.add_argument("weights", type=Path, metavar="WEIGHTS", help="run, checkpoint, file, folder")
    made.add_argument("--image_size", type=int, metavar="N", help="pixels a side")
    made.add_argument("--crop", type=float, metavar="X", help="share of the shorter side to see")
    made.add_argument(
        "--resampling", choices=("linear", "antialias"), metavar="HOW", help="linear or antialias"
    )
    levels = "of each channel, grey levels 0 to 255"
    made.add_argument("--mean", type=numbers, metavar="A,B,C", help=levels)
    made.add_argument("--std", type=numbers, metavar="A,B,C", help=levels)
    made.add_argument(
        "--flip", action=argparse.BooleanOptionalAction, help="average with the mirror image"
    )
    made.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        metavar="TYPE",
        help="of convolutions: float32, bfloat16, float16",
    )
    made.add_argument("--batch", type=int, default=0, metavar="N", help="images at a time")
    return made


def wanted(flags: argparse.Namespace) -> Wanted:
    """What they say of the preparation."""
    names = Wanted.__dataclass_fields__
    return Wanted(**{name: value for name, value in vars(flags).items() if name in names})


def ended(run: Callable[[], None]) -> int:
    """Run; the result is the process's exit code (largebatch.fault_tolerance.exit_codes)."""
    return exit_code(lambda: _explained(run))


def _explained(run: Callable[[], None]) -> None:
    try:
        run()
    except BrokenPipeError:  # whoever reads, such as head, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except RuntimeError as error:  # of which JAX's are
        if not is_exhausted(error):
            raise
        raise UserError(
            "a device ran out of memory; use a smaller --batch (64 a device)"
        ) from error


def numbers(text: str) -> tuple[float, ...]:
    """Numbers with commas between."""
    return tuple(float(word) for word in text.split(","))
