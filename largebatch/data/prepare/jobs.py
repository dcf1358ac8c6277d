"""Independent tasks in worker processes with their progress, and errors of the operating system."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from largebatch.errors import ConfigError, DataError
from largebatch.tracking.console import duration

Task = TypeVar("Task")
Result = TypeVar("Result")

_LINE_EVERY_S = 10.0


def run(
    function: Callable[[Task], Result], tasks: Sequence[Task], processes: int
) -> Iterator[Result]:
    """Call a function once for each task and yield the results as they come.

    Args:
        function: A function of a module, which can be sent to another process.
        tasks: Its arguments.
        processes: Number of worker processes; 1 calls the function in this process.

    Raises:
        DataError: A worker process died. An exception of the function is raised as it is.
    """
    if processes == 1:
        yield from map(function, tasks)
        return
    # Not forked: threads of libraries do not survive a fork.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, context, _start_worker)
    try:
        for future in as_completed([pool.submit(function, task) for task in tasks]):
            yield future.result()
    except BrokenProcessPool as error:
        raise DataError(
            "a worker process died, which is often a lack of memory; give the same command again, "
            "with fewer --processes if necessary"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker() -> None:
    """Set up a worker process: it ignores Ctrl-C, which its parent handles, and ends with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def end_with_parent() -> None:
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


@contextlib.contextmanager
def progress(what: str, unit: str, total: int, done: int = 0) -> Iterator[Callable[[int], None]]:
    """Show progress: a bar in a terminal, otherwise a line every 10 seconds and at the end.

    Args:
        what: The activity.
        unit: What is counted, in the plural.
        total: Number of units.
        done: Number of units done before; the rate excludes them.

    Yields:
        A function that takes the number of further units done.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeRemainingColumn(),
    )
    console = Console(markup=False, highlight=False)
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        number = bar.add_task(what, total=total, completed=done)
        (task,) = bar.tasks
        printed = bar.get_time()

        def advance(count: int) -> None:
            nonlocal printed
            bar.update(number, advance=count)
            if console.is_terminal:
                return
            if task.finished or bar.get_time() - printed >= _LINE_EVERY_S:
                printed = bar.get_time()
                line = f"{what}  {task.completed:,}/{total:,} {unit}"
                if task.speed and task.time_remaining is not None:
                    line += f"  {task.speed:,.0f} {unit}/s  eta {duration(task.time_remaining)}"
                print(line, flush=True)

        yield advance


@contextlib.contextmanager
def system_errors(path: Path) -> Iterator[None]:
    """Turn an OSError of the body into a DataError of one line.

    Args:
        path: What the body reads or writes; named where the error names no file.
    """
    try:
        yield
    except OSError as error:
        reason = " ".join((error.strerror or str(error)).split())
        raise DataError(
            f"{error.filename or path}: {reason}; correct this, then give the same command again"
        ) from error


def check_counts(processes: int, shards: int) -> None:
    """Raise a ConfigError unless the numbers of processes and shards are possible."""
    if processes < 1 or shards < 0:
        raise ConfigError(
            f"--processes and --shards: expected at least 1 and 0, got {processes} and {shards}"
        )


def counted(what: str, lines: Sequence[str]) -> str:
    """Return the number of lines, the first 20 of them, and the number of the others."""
    more = f"; and {len(lines) - 20:,} more" if len(lines) > 20 else ""
    return f"{len(lines):,} {what}: {'; '.join(lines[:20])}{more}"
