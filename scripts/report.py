"""Show a run, or compare runs: one HTML file that opens from disk, and a PNG of each figure.

    python scripts/report.py runs/digits
    python scripts/report.py runs/seed0 runs/seed1 runs/seed2 --out=compared
    python scripts/report.py --trace=runs/digits

A run may be finished, running or broken off. Without --out the page goes to
RUN/report/report.html, that of several runs to report/ in the folder that holds them all. A profile
(--config.run.profile=START:STOP of train.py) is shown with its run; --trace alone prints what the
device's time went into. docs/report.md explains every figure.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from largebatch.cli import Parser
from largebatch.errors import UserError
from largebatch.fault_tolerance import exit_code
from largebatch.tools.report import summary as facts
from largebatch.tools.report import trace, write
from largebatch.tools.report.runs import is_run


def parser() -> Parser:
    """The command line."""
    made = Parser(__doc__)
    made.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="directory of a run")
    made.add_argument("--out", type=Path, help="folder to write to (RUN/report)")
    made.add_argument(
        "--trace", type=Path, help="run with a profile/, folder of a profile, or *.trace.json.gz"
    )
    return made


def table(profile: trace.Profile) -> list[str]:
    """A profile as lines."""
    lines = [f"{1e3 * profile.window_s:,.1f} ms of the device", ""]
    lines += [f"{name:<24}{share:>8.1%}" for name, share in profile.split.items()]
    hidden = profile.hidden_s / profile.window_s
    return [*lines, "", f"{'collective, hidden':<24}{hidden:>8.1%}  within the above"]


def selected(paths: Sequence[Path]) -> list[Path]:
    """Return the runs among paths, such as of `runs/*`, and warn of what else is there.

    What does not exist is kept, and so is everything where no path is a run: that is an error.
    """
    found = [path for path in paths if is_run(path) or not path.exists()]
    if not any(map(is_run, found)):
        return list(paths)
    others = [str(path) for path in paths if path not in found]
    if others:
        names = ", ".join(others[:3]) + ", …" * (len(others) > 3)
        print(f"warning: skipped {len(others)} without a run: {names}", file=sys.stderr)
    return found


def run(arguments: Sequence[str]) -> None:
    """Read and write.

    Raises:
      UserError: a mistake that the user can fix.
    """
    flags = parser().parse_args(arguments)
    if not flags.runs and flags.trace is None:
        raise UserError("no run is named; give the --workdir of a training")
    profile = None if flags.trace is None else trace.read(flags.trace)
    if profile is not None:
        print("\n".join(table(profile)))
    if flags.runs:
        page, runs = write.report(selected(flags.runs), flags.out, profile)
        for each in runs:
            top1 = facts.percent(facts.validation(each, "top1"))
            print(f"{each.name}: {each.status}, step {each.step:,}, top-1 {top1}")
        print(f"report: {page}")


def main(arguments: Sequence[str]) -> int:
    """Run; the result is the process's exit code (largebatch.fault_tolerance.exit_codes)."""
    return exit_code(lambda: run(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
