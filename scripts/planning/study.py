"""The command line of a study that trains: flags, the record, its figures."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import header
from plots.studies import Figures

from largebatch.cli import Parser
from largebatch.errors import ConfigError, DataError
from largebatch.fault_tolerance import exit_code
from largebatch.files import check_parent, read_json, write_json
from largebatch.plots import draw_all

Measure = Callable[[bool, list[int]], dict[str, Any]]
"""(quick, seeds) → the study's record without date, command and environment."""


def main(
    description: str, script: str, measure: Measure, figures: Figures, arguments: Sequence[str]
) -> int:
    """Run a study, or draw a record of it; the result is the process's exit code."""
    return exit_code(lambda: _run(description, script, measure, figures, arguments))


def _run(
    description: str, script: str, measure: Measure, figures: Figures, arguments: Sequence[str]
) -> None:
    parser = Parser(description)
    parser.add_argument("--quick", action="store_true", help="a few steps of everything, one seed")
    parser.add_argument("--seeds", help="with commas between (0,1,2; quick: 0)")
    parser.add_argument("--json", type=Path, help="where to write the record")
    parser.add_argument("--images", type=Path, help="folder to draw the figures into")
    parser.add_argument(
        "--draw", type=Path, help="a record to draw again into --images, instead of a study"
    )
    flags = parser.parse_args(arguments)
    for path in (flags.json, flags.images and flags.images / "any.png"):
        if path:
            check_parent(path)
    if flags.draw:
        if not flags.images:
            raise ConfigError("--draw: expected --images with it, such as --images=docs/images")
        kept = _read(flags.draw, figures)
    else:
        measured = measure(flags.quick, _seeds(flags.seeds, flags.quick))
        kept = header(script, arguments) | measured
        if flags.json:
            write_json(flags.json, kept)
    if flags.images:
        for path in draw_all(dict(figures), kept, flags.images):
            say(f"wrote {path}")


def say(text: str) -> None:
    """Print at once, also into a file."""
    print(text, flush=True)


def _seeds(text: str | None, quick: bool) -> list[int]:
    text = text or ("0" if quick else "0,1,2")
    try:
        return [int(each) for each in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"--seeds: expected integers with commas between, got {text}") from error


def _read(path: Path, figures: Figures) -> dict[str, Any]:
    """Read a record with what its figures need.

    Raises:
      DataError: the file is missing or a record of something else.
    """
    needed = {"policies", "arrivals"} if "synchrony_steps" in figures else {"grid", "results"}
    try:
        kept = read_json(path)
    except (OSError, ValueError) as error:
        raise DataError(f"--draw: {path} cannot be read ({error}); run the study") from error
    if missing := sorted(needed - set(kept)):
        raise DataError(f"--draw: expected a record of this study, got {path} without {missing}")
    return kept
