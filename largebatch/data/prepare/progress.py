"""How far it is: a bar in a terminal, a line now and then anywhere else."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from largebatch.tracking.progress import GAP, duration

Report = Callable[[int, int], None]
"""Takes how many are done and how many there are."""


@contextmanager
def progress(
    what: str,
    unit: str,
    *,
    first: int = 0,
    every_s: float = 10.0,
    file: TextIO | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Report]:
    """Shows progress while the body runs.

    Args:
        what: What is being done.
        unit: What is counted.
        first: How many were done before; they do not count for the rate.
        every_s: Least seconds between two lines where the output is no terminal.
        file: Where to print; standard output when None.
        clock: A monotonic clock, in seconds.

    Yields:
        The function to report to.
    """
    out = file or sys.stdout
    console = Console(file=out, force_terminal=out.isatty(), markup=False, highlight=False)
    started = clock()

    def text(done: int, total: int) -> str:
        fields = [f"{done:,}/{total:,} {unit}"]
        elapsed = clock() - started
        if done > first and elapsed > 0:
            rate = (done - first) / elapsed
            fields += [f"{rate:,.0f} {unit}/s", f"eta {duration((total - done) / rate)}"]
        return GAP.join(fields)

    if console.is_terminal and console.is_interactive:
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"))
        with Progress(*columns, console=console) as bar:
            task = bar.add_task(what, total=None, text="")

            def show(done: int, total: int) -> None:
                bar.update(task, completed=done, total=total, text=text(done, total))

            yield show
        return
    printed = started

    def line(done: int, total: int) -> None:
        nonlocal printed
        if clock() - printed >= every_s or done == total:
            printed = clock()
            print(f"{what}{GAP}{text(done, total)}", file=out, flush=True)

    yield line
