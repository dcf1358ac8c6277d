"""Predict the most probable classes of images, prepared as in evaluation.

    python scripts/predict.py runs/imagenette cat.jpg holiday/ --top=3

Folders are searched for images, with their subfolders. --json prints, and --json=FILE writes, one
JSON object per line: {"file": …, "top": [{"class": …, "label": …, "probability": …}, …]}, or
"error" in place of "top". Files that cannot be read are reported, and the exit code is then 2.
"""

import argparse
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from evaluating.common import ended, json_lines, parser, unreadable

from largebatch import weights
from largebatch.data import folder
from largebatch.errors import ConfigError, DataError
from largebatch.files import check_parent, printable
from largebatch.tracking import Console
from largebatch.weights.evaluation import options, report
from largebatch.weights.evaluation.classes import unmatched
from largebatch.weights.evaluation.inference import TOP, Evaluator, predictions

_JSON = (".json", ".jsonl")


def flags_of(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    made = parser(__doc__, "predict.py WEIGHTS IMAGE_OR_FOLDER … [options]")
    made.add_argument("images", nargs="+", metavar="IMAGE", help="file or folder")
    made.add_argument("--top", type=int, default=TOP, metavar="N", help=f"classes to name ({TOP})")
    made.add_argument(
        "--json",
        metavar="FILE",
        help="JSON lines to FILE; without FILE, in place of the table",
    )
    # --json alone may stand before images: it is --json=- unless a JSON file follows.
    words = [
        "--json=-" if word == "--json" and Path(after).suffix not in _JSON else word
        for word, after in itertools.pairwise([*arguments, ""])
    ]
    return made.parse_args(words)


def run(arguments: Sequence[str]) -> None:
    """Predict and print."""
    flags = flags_of(arguments)
    if flags.json not in (None, "-"):
        check_parent(Path(flags.json))
    if flags.top < 1:
        raise ConfigError(f"--top={flags.top}: expected 1 or more")
    files = folder.find_files(flags.images)
    read = weights.read(flags.weights, ema=flags.ema, best=flags.best, trust=flags.trust)
    read, config = options.with_flags(read, vars(flags))
    classes = unmatched(read.classes, read.model.classes)
    console = Console(file=sys.stderr)
    if classes.note:
        console.note(classes.note)
    evaluator = Evaluator(read, config, classes, top=flags.top)

    def predicted() -> Iterator[dict[str, Any]]:
        absent = {file: reason for file in files if (reason := unreadable(file))}
        given = [file for file in files if file not in absent]
        images = options.open_files(read, config, given) if given else ()
        found = predictions(evaluator, images, classes.classes, flags.batch)
        for file in files:
            result = {"error": absent[file]} if file in absent else next(found)
            yield {"file": printable(file), **result}

    rows, failed = [], 0
    with json_lines(flags.json) as write:
        for each in predicted():
            write(json.dumps(each, ensure_ascii=False))
            if error := each.get("error"):
                failed += 1
                console.warn(f"{each['file']}: {error}")
            for rank, guess in enumerate(each.get("top", ())):
                file = "" if rank else each["file"]
                rows.append((file, guess["class"], f"{guess['probability']:.2%}"))
    if rows and flags.json != "-":
        report.screen().print(report.table("", ("image", "class", ">probability"), rows))
    if failed:
        raise DataError(
            f"{failed:,} of {len(files):,} files have no prediction, for the reasons above; fix or "
            "remove them"
        )


def main(arguments: Sequence[str]) -> int:
    """Run; the result is the process's exit code."""
    return ended(lambda: run(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
