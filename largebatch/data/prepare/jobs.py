"""Independent tasks in worker processes, and errors of the operating system."""

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

from largebatch.errors import DataError

Task = TypeVar("Task")
Result = TypeVar("Result")


@contextlib.contextmanager
def run(
    function: Callable[[Task], Result], tasks: Sequence[Task], processes: int
) -> Iterator[Iterator[Result]]:
    """Call a function once for each task; the body iterates over the results as they come.

    At the end of the body, also by Ctrl-C, the tasks that have begun are waited for.

    Args:
        function: A function of a module, which can be sent to another process.
        tasks: Its arguments.
        processes: Number of worker processes; 1 calls the function in this process.

    Raises:
        DataError: A worker process died. An exception of the function is raised as it is.
    """
    if processes == 1:
        yield map(function, tasks)
        return
    # Not forked: threads of libraries do not survive a fork.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, context, _start_worker)
    try:
        futures = as_completed([pool.submit(function, task) for task in tasks])
        yield (future.result() for future in futures)
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


def shortened(what: str, lines: Sequence[str]) -> str:
    """Return the number of lines, the first 20 of them, and the number of the others."""
    more = f"; and {len(lines) - 20:,} more" if len(lines) > 20 else ""
    return f"{len(lines):,} {what}: {'; '.join(lines[:20])}{more}"
