"""What the study scripts share: flags, the record, its figures."""

import argparse
import datetime
import json
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import environment, write

from largebatch.cli import Parser
from largebatch.errors import ConfigError, DataError
from largebatch.files import check_parent
from largebatch.plots import draw_all

Drawings = dict[str, Callable[[dict[str, Any]], Any]]


def parser(description: str) -> Parser:
    """The flags of a study."""
    made = Parser(description)
    made.add_argument("--quick", action="store_true", help="a few steps of everything, one seed")
    made.add_argument("--seeds", help="with commas between (0,1,2; quick: 0)")
    made.add_argument("--json", type=Path, help="where to write the record")
    made.add_argument("--images", type=Path, help="folder to draw the figures into")
    made.add_argument(
        "--draw", type=Path, help="a record to draw again into --images, instead of a study"
    )
    return made


def seeds(flags: argparse.Namespace) -> list[int]:
    """The seeds asked for.

    Raises:
      ConfigError: they are no numbers.
    """
    text = flags.seeds or ("0" if flags.quick else "0,1,2")
    try:
        return [int(each) for each in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"--seeds={text} are not whole numbers with commas between") from error


def check_files(flags: argparse.Namespace) -> None:
    """Refuse to begin what could not be written at the end.

    Raises:
      UserError: with the file.
    """
    for path in (flags.json, flags.images and flags.images / "any.png"):
        if path:
            check_parent(path)


def draw(flags: argparse.Namespace, drawings: Drawings) -> None:
    """Draw the figures of a record that is there.

    Raises:
      DataError: there is none.
    """
    try:
        kept = json.loads(flags.draw.read_text())
    except (OSError, ValueError) as error:
        raise DataError(f"--draw={flags.draw}: no record ({error}); run the study") from error
    if not flags.images:
        raise ConfigError("--draw needs to know where to; give --images, such as docs/images")
    try:
        _draw(flags.images, drawings, kept)
    except KeyError as error:
        raise DataError(
            f"--draw={flags.draw} is no record of this study: it lacks {error}; give one of its own"
        ) from error


def finish(
    flags: argparse.Namespace,
    kept: dict[str, Any],
    drawings: Drawings,
    script: str,
    arguments: Sequence[str],
) -> None:
    """Write the record and the figures that were asked for."""
    about = {
        "date": datetime.date.today().isoformat(),
        "command": shlex.join(["python", f"scripts/{script}", *arguments]),
        "environment": environment(),
    }
    if flags.json:
        write(flags.json, about | kept)
    if flags.images:
        _draw(flags.images, drawings, kept)


def say(text: str) -> None:
    """Print at once, also into a file."""
    print(text, flush=True)


def _draw(directory: Path, drawings: Drawings, kept: dict[str, Any]) -> None:
    for path in draw_all(drawings, kept, directory):
        say(f"drawn {path}")
