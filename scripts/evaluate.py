"""Evaluate weights on every image of a split: accuracy, calibration, confusions, predictions.

    python scripts/evaluate.py runs/digits --out=found
The data and the preprocessing are those of the run by default. docs/evaluate.md
"""

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from evaluating.flags import ended, parser, within

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
    made.add_argument(
        "--source", type=full_source, metavar="SPEC", help="tfds:NAME, folder:PATH … (the run's)"
    )
    made.add_argument(
        "--split",
        choices=("validation", "train"),
        default="validation",
        metavar="NAME",
        help="validation or train (validation)",
    )
    made.add_argument("--data_dir", metavar="DIR", help="where TFDS keeps its datasets")
    made.add_argument("--classes", type=int, metavar="N", help="of an arrayrecord without names")
    made.add_argument(
        "--match",
        choices=("names", "numbers", "imagenet"),
        default="names",
        metavar="HOW",
        help="classes by names, numbers or imagenet (names)",
    )
    made.add_argument(
        "--among",
        choices=("all", "source"),
        default="all",
        metavar="WHICH",
        help="predict among all classes or the source's (all)",
    )
    made.add_argument(
        "--max_unreadable", type=within(0, 1), metavar="X", help="fraction of corrupt images"
    )
    made.add_argument("--out", type=Path, metavar="DIR", help="write JSON and CSV files there")
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
    console.note(f"evaluating {_named(flags.weights, found.origin)} on {dataset.describe()}")
    start = time.perf_counter()
    with _progress(len(dataset)) as advance:
        outputs = evaluator.evaluate(dataset, unreadable, flags.batch, advance)
    evaluation = Evaluation(
        weights=_named(flags.weights, found.origin),
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


def _named(path: Path, origin: str) -> str:
    """The file that was read, and the run it was exported from."""
    return origin if origin.startswith(str(path)) else f"{path}, from {origin}"


@contextlib.contextmanager
def _progress(images: int) -> Iterator[Callable[[int], None]]:
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


def main(arguments: Sequence[str]) -> int:
    """Run; the result is the process's exit code."""
    return ended(lambda: run(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
