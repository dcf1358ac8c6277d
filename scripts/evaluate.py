"""Evaluate weights on every image of a split: accuracy, calibration, confusions, predictions.

    python scripts/evaluate.py runs/digits --out=found
The data and the preprocessing are those of the run by default. docs/evaluate.md
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from evaluating.common import ended, parser, progress, within

from largebatch import data, weights
from largebatch.config.facts import full_source
from largebatch.data.source import own_reference
from largebatch.files import check_parent
from largebatch.tracking import Console
from largebatch.training.description import environment
from largebatch.weights.evaluation import options, report
from largebatch.weights.evaluation.classes import match
from largebatch.weights.evaluation.inference import Evaluator
from largebatch.weights.evaluation.metrics import Evaluation


def flags_of(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    made = parser(__doc__, "evaluate.py WEIGHTS [options]")
    add = made.add_argument
    add("--source", type=full_source, metavar="SPEC", help="as data.source (the run's)")
    for name, choices, metavar, help in (
        ("split", ("validation", "train"), "NAME", "validation or train (validation)"),
        ("match", ("names", "numbers", "imagenet"), "HOW", "classes by names, numbers or imagenet"),
        ("among", ("all", "source"), "WHICH", "predict among all classes or the source's (all)"),
    ):
        add(f"--{name}", choices=choices, default=choices[0], metavar=metavar, help=help)
    add("--data_dir", metavar="DIR", help="where TFDS keeps its datasets")
    add("--classes", type=int, metavar="N", help="of an arrayrecord without names")
    add("--max_unreadable", type=within(0, 1), metavar="X", help="fraction of corrupt images")
    add("--out", type=Path, metavar="DIR", help="write JSON and CSV files there")
    return made.parse_args(arguments)


def run(arguments: Sequence[str]) -> None:
    """Evaluate, print, and write the files of --out."""
    flags = flags_of(arguments)
    console = Console()
    if flags.out:
        weights.check_no_run(flags.out, "--out")
        check_parent(flags.out / "summary.json")
    found = weights.read(flags.weights, ema=flags.ema, best=flags.best, trust=flags.trust)
    found, config = options.with_flags(found, vars(flags))
    named = [*flags.trust, own_reference(flags.source or "")]
    dataset = options.open_images(found, config, flags.split, named)
    matching = match(found.classes, found.model.classes, dataset.classes, dataset.name, flags.match)
    if flags.among == "source":
        matching = matching.restricted()
    evaluator = Evaluator(found, config, matching)
    share = config.data.max_unreadable
    unreadable = data.Unreadable(flags.split, len(dataset), share, "--max_unreadable")
    unreadable.connect(lambda name, why: console.warn(f"{name} cannot be decoded: {why}"))
    named_weights = found.origin  # of a file: the run it was exported from
    if not named_weights.startswith(str(flags.weights)):
        named_weights = f"{flags.weights}, from {found.origin}"
    console.note(f"evaluating {named_weights} on {dataset.describe()}")
    start = time.perf_counter()
    with progress(len(dataset)) as advance:
        outputs = evaluator.evaluate(dataset, unreadable, flags.batch, advance)
    evaluation = Evaluation(
        weights=named_weights,
        data=dataset.describe(),
        split=flags.split,
        matching=matching,
        outputs=outputs,
        unreadable=unreadable,
        preprocessing=options.preprocessing(found, config),
        label_smoothing=options.label_smoothing(config),
        seconds=time.perf_counter() - start,
    )
    screen = report.screen()
    for each in report.tables(evaluation):
        screen.print(each)
        screen.print()
    rows = report.headline(evaluation)
    rows.append(("time", f"{evaluation.seconds:.1f} s, compilation included"))
    if flags.out:
        paths = report.write(evaluation, flags.out, dataset.source.where, environment())
        rows.append(("written", f"{flags.out}: {', '.join(path.name for path in paths)}"))
    console.closing(rows, f"evaluated on {evaluation.images:,} images")


def main(arguments: Sequence[str]) -> int:
    """Run; the result is the process's exit code."""
    return ended(lambda: run(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
