"""Show a run, or compare runs: one HTML file that opens from disk.

    python scripts/report.py runs/digits
    python scripts/report.py runs/seed0 runs/seed1 runs/seed2 --out=compared
    python scripts/report.py sweeps/lr_warmup

A run may be complete, failed or still training; a sweep stands for its trials. Without --out the
page is RUN/report/report.html; for several runs it is in report/ of the folder that holds them all.
docs/report.md explains every figure.
"""

import argparse
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

from largebatch.cli import Parser
from largebatch.errors import UserError
from largebatch.fault_tolerance import exit_code
from largebatch.store_urls import url_of


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the flags.

    Raises:
      UserError: a mistake on the command line.
    """
    parser = Parser(__doc__)
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="directory of a run or a sweep"
    )
    parser.add_argument("--out", type=Path, help="folder to write to (RUN/report)")
    return parser.parse_args(arguments)


def selected(paths: Sequence[Path]) -> list[Path]:
    """Return the runs among paths, such as of `runs/*`, and warn of the others, except reports.

    A sweep stands for its trials. Paths that do not exist are kept, and so are all if none is a
    run: reading them is an error.
    """
    from largebatch.tools.report.runs import PAGE, is_run, trials_of

    paths = [run for path in paths for run in trials_of(path) or [path]]
    found = [path for path in paths if is_run(path) or not path.exists()]
    if not any(map(is_run, found)):
        return list(paths)
    others = [str(path) for path in paths if path not in found and not (path / PAGE).is_file()]
    if others:
        names = ", ".join(others[:3]) + ", …" * (len(others) > 3)
        print(f"warning: skipped {len(others)} without a run: {names}", file=sys.stderr)
    return found


def local(path: Path, out: Path | None, copies: contextlib.ExitStack) -> Path:
    """Return a run's directory; the logs of a run in an object store are downloaded first."""
    url = url_of(path)
    if not url:
        return path
    if out is None:
        raise UserError(f"--out: expected a folder for the report of {url}; use --out=report")
    from largebatch.checkpoint.place import downloaded

    return copies.enter_context(downloaded(url)).logs


def run(arguments: Sequence[str]) -> None:
    """Parse the command line, read the runs and write the report."""
    flags = parse(arguments)
    from largebatch.tools.report import compare, page, summary  # imports JAX
    from largebatch.tools.sweep.results import is_sweep

    with contextlib.ExitStack() as copies:
        paths = [local(path, flags.out, copies) for path in flags.runs]
        out = flags.out or (page.beside(paths) if any(map(is_sweep, paths)) else None)
        path, runs = page.report(selected(paths), out)
    for name, each in zip(compare.labels(runs), runs, strict=True):
        top1 = summary.percent(summary.validation(each, "top1"))
        print(f"{name}: {each.status}, step {each.step:,}, top-1 {top1}")
    print(f"report: {path}")


def main(arguments: Sequence[str]) -> int:
    """Run; the result is the process's exit code (largebatch.fault_tolerance.exit_codes)."""
    return exit_code(lambda: run(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
