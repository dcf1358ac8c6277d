"""Name the most probable classes of pictures, prepared as evaluation prepares them.

    python scripts/predict.py runs/imagenette cat.jpg holiday/ --top=3

Folders are searched for pictures, below them too. With --json standard output has a JSON object a
line: {"file": …, "top": [{"class": …, "label": …, "probability": …}, …]}, or "error" for "top".
Files that cannot be read are named; the others are predicted, and the exit code is 2.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from evaluating.flags import ended, parser, wanted

from largebatch import weights
from largebatch.analysis import evaluation, tables
from largebatch.analysis.classifier import Classifier
from largebatch.analysis.names import class_names
from largebatch.analysis.outcomes import TOP
from largebatch.analysis.pictures import found as found_pictures
from largebatch.analysis.prediction import Prediction, predictions
from largebatch.analysis.settings import run_options, settings_of
from largebatch.errors import ConfigError, DataError
from largebatch.tracking import Console


def flags_of(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    made = parser(__doc__, "predict.py WEIGHTS PICTURE_OR_FOLDER … [options]")
    made.add_argument("pictures", type=Path, nargs="+", metavar="PICTURE", help="file or folder")
    made.add_argument("--top", type=int, default=TOP, metavar="N", help=f"classes to name ({TOP})")
    made.add_argument("--json", action="store_true", help="JSON lines in place of a table")
    return made.parse_args(arguments)


def run(flags: argparse.Namespace) -> None:
    """Predict and print."""
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
    failed = list(show(made, flags.json, told))
    if failed:
        raise DataError(
            f"{len(failed):,} of {len(files):,} files have no prediction, for the reasons above; "
            "mend or remove them"
        )


def show(made: Iterable[Prediction], as_json: bool, told: Console) -> Iterable[Prediction]:
    """Prints the predictions; yields those that failed, which are told on their own."""
    rows = []
    for each in made:
        if as_json:
            print(json.dumps(each.plain(), ensure_ascii=False), flush=True)
        if each.error:
            told.warn(f"{each.file}: {each.error}")
            yield each
        firsts = (each.file, *[""] * len(each.guesses))
        for first, guess in zip(firsts, each.guesses, strict=False):
            rows.append((first, guess.name, f"{guess.probability:.2%}"))
    if rows and not as_json:
        tables.screen().print(tables.table("", ("picture", "class", ">probability"), rows))


def main(arguments: Sequence[str]) -> int:
    """Run; the result is the process's exit code."""
    flags = flags_of(arguments)
    return ended(lambda: run(flags))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
