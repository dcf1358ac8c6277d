"""Evaluate weights on every image of a split: accuracy, calibration, confusions, each prediction.

    python scripts/evaluate.py runs/digits
    python scripts/evaluate.py resnet50.safetensors --source=folder:imagenette --out=found

Without --source on the data of the run; what flags leave out is as in training. docs/evaluate.md
"""

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from evaluating.flags import ended, parser, wanted

from largebatch import data, weights
from largebatch.config.known_sets import full_source
from largebatch.files import check_parent
from largebatch.tracking import Console
from largebatch.training.description import environment
from largebatch.weights.evaluation import run as evaluation
from largebatch.weights.evaluation import tables
from largebatch.weights.evaluation.class_names import match
from largebatch.weights.evaluation.classifier import Classifier
from largebatch.weights.evaluation.results import Report
from largebatch.weights.evaluation.settings import check_source, run_options, settings_of


def flags_of(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    made = parser(__doc__, "evaluate.py WEIGHTS [options]")
    made.add_argument(
        "--source", type=full_source, metavar="SPEC", help="tfds:NAME, folder:PATH, PATH …"
    )
    made.add_argument(
        "--split",
        choices=("validation", "train"),
        default="validation",
        metavar="NAME",
        help="validation or train (validation)",
    )
    made.add_argument("--data_dir", metavar="DIR", help="where TFDS keeps its sets")
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
        help="predict among all classes, the source's (all)",
    )
    made.add_argument("--max_unreadable", type=float, metavar="X", help="share of images allowed")
    made.add_argument("--out", type=Path, metavar="DIR", help="write JSON, CSV and PNG there")
    return made.parse_args(arguments)


def run(arguments: Sequence[str]) -> None:
    """Evaluate, print, and write what is asked for."""
    flags = flags_of(arguments)
    console = Console()
    if flags.out:
        weights.check_no_run(flags.out, "an evaluation", "--out")
        check_parent(flags.out / "summary.json")
    found = weights.read(flags.weights)
    settings = settings_of(found, run_options(found), wanted(flags))
    check_source(settings, found)
    source = evaluation.open_split(settings, flags.split, found.model.channels)
    matching = match(found.classes, found.model.classes, source.classes, source.name, flags.match)
    mesh = evaluation.local_mesh()
    only = flags.among == "source" and matching.among_more
    classifier = Classifier(found, settings, mesh, matching.outputs, only=only)
    matching = matching.among_own() if only else matching
    unreadable = data.Unreadable(
        flags.split, len(source), settings.max_unreadable, "--max_unreadable"
    )
    unreadable.connect(lambda name, why: console.warn(f"{name} cannot be decoded: {why}"))
    console.note(f"evaluating {_named(flags.weights, found.origin)} on {source.describe()}")
    since = time.perf_counter()
    with _progress(len(source)) as advance:
        outcomes = evaluation.evaluate(
            classifier,
            source,
            settings,
            unreadable,
            matching.outputs,
            batch=evaluation.batch_size(len(source), mesh.size, flags.batch),
            reading=evaluation.reading_of(),
            advance=advance,
        )
    report = Report(
        weights=_named(flags.weights, found.origin),
        data=source.describe(),
        split=flags.split,
        settings=settings,
        matching=matching,
        outcomes=outcomes,
        unreadable=unreadable,
        seconds=time.perf_counter() - since,
    )
    screen = tables.screen()
    for each in (tables.worst_classes(report), tables.confused_pairs(report)):
        if each is not None:
            screen.print(each)
            screen.print()
    rows = tables.headline(report)
    rows.append(("time", f"{report.seconds:.1f} s, compilation included"))
    if flags.out:
        from largebatch.weights.evaluation.written import write

        names = evaluation.names_of(settings, flags.split)
        paths = write(report, flags.out, names, environment())
        rows.append(("written", f"{flags.out}: {', '.join(path.name for path in paths)}"))
    console.closing(rows, f"evaluated on {len(outcomes):,} images")


def _named(path: Path, origin: str) -> str:
    """The file that was read, and the run that it was exported from."""
    return origin if origin.startswith(str(path)) else f"{path}, from {origin}"


@contextlib.contextmanager
def _progress(images: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal's standard error, and nothing elsewhere."""
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
