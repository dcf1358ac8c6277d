"""Independent tasks on several processes, which end with the one that started them."""

import itertools
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, TypeVar

from largebatch.data.prepare.locks import held
from largebatch.errors import DataError, UserError

Task = TypeVar("Task")
Result = TypeVar("Result")

_parent: int | None = None  # its process id, in a worker


def run(
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
    processes: int,
    lock: Path | None = None,
) -> Iterator[Result]:
    """Calls a function once for each task.

    Args:
        function: Of a module, so that it can be sent to another process.
        tasks: Its arguments.
        processes: How many to use; with 1 all is done in this one.
        lock: File that each worker keeps locked (shared) while it lives.

    Yields:
        The results, as they come.

    Raises:
        UserError, OSError: The function raised it.
        DataError: A worker died.
        RuntimeError: The function raised anything else; the message has the traceback.
    """
    if processes == 1:
        yield from map(function, tasks)
        return
    context = multiprocessing.get_context("spawn")  # threads of libraries do not survive a fork
    waiting = iter(tasks)
    workers: dict[Connection, Any] = {}
    try:
        for task in itertools.islice(waiting, processes):
            ours, theirs = context.Pipe()
            worker = context.Process(target=_work, args=(theirs, function, os.getpid(), lock))
            worker.start()
            theirs.close()
            workers[ours] = worker
            _send(ours, worker, task)
        busy = set(workers)
        while busy:
            for connection in wait(list(busy)):
                result = _received(connection, workers[connection])
                busy.discard(connection)
                for task in waiting:
                    _send(connection, workers[connection], task)
                    busy.add(connection)
                    break
                yield result
    except BaseException:
        for worker in workers.values():
            worker.terminate()
        raise
    finally:
        for connection, worker in workers.items():
            connection.close()  # which ends an idle worker
            worker.join()


def stop_if_orphaned() -> None:
    """Ends this process if it is a worker whose parent is gone; called for each image.

    A worker that went on would write into files that a new preparation writes too.
    """
    if _parent is not None and os.getppid() != _parent:
        raise SystemExit(1)


def _send(connection: Connection, worker: Any, task: Any) -> None:
    try:
        connection.send(task)
    except ConnectionError as error:
        # Its traceback holds what was being sent, and CPython 3.12 crashes when its garbage
        # collector finds that (a memoryview of a BytesIO).
        raise _died(worker) from error.with_traceback(None)


def _received(connection: Connection, worker: Any) -> Any:
    try:
        kind, value = connection.recv()
    except (EOFError, ConnectionError) as error:
        raise _died(worker) from error
    if kind == "result":
        return value
    raise value if kind == "mistake" else RuntimeError(f"in a worker process:\n{value}")


def _died(worker: Any) -> DataError:
    worker.join()
    return DataError(
        f"a worker process died (exit code {worker.exitcode}; -9 is often a lack of memory); "
        "the same command goes on, with fewer --processes if need be"
    )


def _work(
    connection: Connection, function: Callable[[Any], Any], parent: int, lock: Path | None
) -> None:
    global _parent
    _parent = parent
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the parent sees to the end
    with held(lock, "shared") if lock else nullcontext():
        stop_if_orphaned()
        with suppress(EOFError, ConnectionError):  # the parent wants no more, or is gone
            while True:
                connection.send(_answer(function, connection.recv()))


def _answer(function: Callable[[Any], Any], task: Any) -> tuple[str, Any]:
    try:
        return "result", function(task)
    except (UserError, OSError) as error:
        return "mistake", error
    except Exception:
        return "error", traceback.format_exc()
