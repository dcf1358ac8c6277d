"""Name the most probable classes of pictures, prepared as evaluation prepares them.

    python scripts/predict.py runs/imagenette cat.jpg holiday/ --top=3

Folders are searched for pictures, below them too. --json prints, and --json=FILE writes, an object
a line: {"file": …, "top": [{"class": …, "label": …, "probability": …}, …]}, or "error" for "top".
Files that cannot be read are named; the others are predicted, and the exit code is 2.
"""

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from evaluating.flags import ended, parser, wanted

from largebatch import weights
from largebatch.errors import ConfigError, DataError
from largebatch.files import check_parent, replacing
from largebatch.tracking import Console
from largebatch.weights.evaluation import run as evaluation
from largebatch.weights.evaluation import tables
from largebatch.weights.evaluation.class_names import class_names
from largebatch.weights.evaluation.classifier import Classifier
from largebatch.weights.evaluation.outcomes import TOP
from largebatch.weights.evaluation.pictures import found as found_pictures
from largebatch.weights.evaluation.prediction import Prediction, predictions
from largebatch.weights.evaluation.settings import run_options, settings_of

_JSON = (".json", ".jsonl")


def flags_of(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    made = parser(__doc__, "predict.py WEIGHTS PICTURE_OR_FOLDER … [options]")
    made.add_argument("pictures", type=Path, nargs="+", metavar="PICTURE", help="file or folder")
    made.add_argument("--top", type=int, default=TOP, metavar="N", help=f"classes to name ({TOP})")
    made.add_argument(
        "--json", metavar="FILE", help="JSON lines: to FILE, or alone in place of the table"
    )
    return made.parse_args(_with_target(arguments))


def _with_target(arguments: Sequence[str]) -> list[str]:
    """The words with ``--json`` alone, which may stand before pictures, as ``--json=-``."""
    following = [*arguments[1:], ""]
    return [
        "--json=-" if word == "--json" and Path(after).suffix not in _JSON else word
        for word, after in zip(arguments, following, strict=True)
    ]


def run(arguments: Sequence[str]) -> None:
    """Predict and print."""
    flags = flags_of(arguments)
    if flags.json not in (None, "-"):
        check_parent(Path(flags.json))
    if flags.top < 1:
        raise ConfigError(f"--top={flags.top} must be above 0")
    files = found_pictures(flags.pictures)
    read = weights.read(flags.weights)
    settings = settings_of(read, run_options(read), wanted(flags))
    names, note = class_names(read.classes, read.model.classes)
    told = Console(file=sys.stderr)
    if note:
        told.note(note)
    classifier = Classifier(
        read,
        settings,
        evaluation.local_mesh(),
        np.arange(len(names), dtype=np.int32),
        most=flags.top,
    )
    made = predictions(classifier, files, settings, names, batch=flags.batch)
    with _lines_to(flags.json) as write:
        failed = list(show(made, write, told, table=flags.json != "-"))
    if failed:
        raise DataError(
            f"{len(failed):,} of {len(files):,} files have no prediction, for the reasons above; "
            "mend or remove them"
        )


@contextlib.contextmanager
def _lines_to(target: str | None) -> Iterator[Callable[[str], None]]:
    """What writes a line of JSON: to a file, to standard output for ``-``, or nowhere."""
    if target is None:
        yield lambda line: None
    elif target == "-":
        yield lambda line: print(line, flush=True)
    else:
        with replacing(Path(target)) as stream:
            yield lambda line: stream.write(f"{line}\n".encode()) and None


def show(
    made: Iterable[Prediction], write: Callable[[str], None], told: Console, *, table: bool
) -> Iterable[Prediction]:
    """Print the predictions; yield those that failed, of which each is reported.

    Args:
      made: the predictions.
      write: takes each as a line of JSON.
      told: where failures are reported.
      table: whether to print a table at the end.
    """
    rows = []
    for each in made:
        write(json.dumps(each.plain(), ensure_ascii=False))
        if each.error:
            told.warn(f"{each.file}: {each.error}")
            yield each
        firsts = (each.file, *[""] * len(each.guesses))
        for first, guess in zip(firsts, each.guesses, strict=False):
            rows.append((first, guess.name, f"{guess.probability:.2%}"))
    if rows and table:
        tables.screen().print(tables.table("", ("picture", "class", ">probability"), rows))


def main(arguments: Sequence[str]) -> int:
    """Run; the result is the process's exit code."""
    return ended(lambda: run(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
