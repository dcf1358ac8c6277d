"""What scripts/evaluate.py and scripts/predict.py share: flags, exit codes, progress, output."""

import argparse
import contextlib
import math
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from largebatch.cli import Parser
from largebatch.errors import UserError
from largebatch.fault_tolerance import exit_code
from largebatch.files import replacing
from largebatch.training.memory import is_exhausted

_MAX_SIDE = 2**14
_MAX_BATCH = 2**20


def parser(description: str | None, usage: str) -> Parser:
    """Return a parser with the flags of both scripts; their defaults are as in training."""
    made = Parser(description, usage=usage)
    made.add_argument("weights", type=Path, metavar="WEIGHTS", help="run, checkpoint, file, folder")
    made.add_argument("--best", action="store_true", help="best checkpoint of a run, not newest")
    made.add_argument("--ema", action="store_true", help="averaged weights of a run (schedule.ema)")
    made.add_trust()
    side = within(1, _MAX_SIDE, int)
    made.add_argument("--image_size", type=side, metavar="N", help="pixels of a side")
    share = within(0.001, 1)
    made.add_argument("--crop", type=share, metavar="X", help="fraction of the shorter side to use")
    made.add_argument(
        "--resampling", choices=("linear", "antialias"), metavar="HOW", help="linear or antialias"
    )
    levels = "of each channel, grey levels 0 to 255"
    made.add_argument("--mean", type=_numbers, metavar="A,B,C", help=levels)
    made.add_argument("--std", type=_positive, metavar="A,B,C", help=levels)
    made.add_argument(
        "--flip", action=argparse.BooleanOptionalAction, help="average with the mirror image"
    )
    made.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        metavar="TYPE",
        help="of convolutions: float32, bfloat16, float16",
    )
    images = within(0, _MAX_BATCH, int)
    made.add_argument("--batch", type=images, default=0, metavar="N", help="images at a time")
    return made


def ended(run: Callable[[], None]) -> int:
    """Run; the result is the process's exit code (largebatch.fault_tolerance.exit_codes)."""

    def attempt() -> None:
        try:
            run()
        except BrokenPipeError:  # the reader, such as head, has closed the pipe
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except RuntimeError as error:  # JAX's errors are
            if not is_exhausted(error):
                raise
            raise UserError(
                "a device ran out of memory; use a smaller --batch (64 a device)"
            ) from error

    return exit_code(attempt)


def within(low: float, high: float, kind: type = float) -> Callable[[str], Any]:
    """Return the type of a flag: a number from low to high."""

    def read(text: str) -> Any:
        with contextlib.suppress(ValueError):
            if low <= (value := kind(text)) <= high:
                return value
        raise argparse.ArgumentTypeError(f"expected {low:,} to {high:,}, got {text!r}")

    return read


def _positive(text: str) -> tuple[float, ...]:
    found = _numbers(text)
    if min(found) <= 0:
        raise argparse.ArgumentTypeError(f"expected numbers above 0, got {text!r}")
    return found


def _numbers(text: str) -> tuple[float, ...]:
    try:
        found = tuple(float(word) for word in text.split(","))
    except ValueError:
        found = ()
    if not found or not all(map(math.isfinite, found)):
        raise argparse.ArgumentTypeError(f"expected numbers with commas between, got {text!r}")
    return found


@contextlib.contextmanager
def progress(images: int) -> Iterator[Callable[[int], None]]:
    """Show a bar on standard error if that is a terminal."""
    from rich.console import Console as RichConsole
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    screen = RichConsole(stderr=True)
    with Progress(
        *columns, console=screen, transient=True, disable=not screen.is_terminal
    ) as progress:
        task = progress.add_task("images", total=images)
        yield lambda count: progress.advance(task, count)


@contextlib.contextmanager
def json_lines(target: str | None) -> Iterator[Callable[[str], object]]:
    """Yield what writes a line of JSON: to a file, to standard output for ``-``, or nowhere."""
    if target is None:
        yield lambda line: None
    elif target == "-":
        yield lambda line: print(line, flush=True)
    else:
        with replacing(Path(target)) as stream:
            yield lambda line: stream.write(f"{line}\n".encode())


def unreadable(file: str) -> str:
    """Return why a file cannot be read; '' if it can."""
    try:
        open(file, "rb").close()
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    return ""
