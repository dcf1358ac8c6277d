"""Work done ahead by threads, in order and with bounded memory.

The threads are daemons: a disk or a store that hangs does not keep the process from ending. They
are stopped before the interpreter ends, since one that returns from C++ code later would abort it.
"""

import atexit
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from typing import TypeVar

S = TypeVar("S")
T = TypeVar("T")
# Seconds that closing waits for the threads: a disk that hangs must not hang the run.
_FAREWELL_S = 5.0
_stops: set[Callable[[], None]] = set()
"""Functions that stop the threads of all open generators."""


@atexit.register
def _stop_all() -> None:
    for stop in list(_stops):
        stop()


def in_threads(
    function: Callable[[S], T], items: Iterable[S], threads: int, ahead: int = 0
) -> Generator[T]:
    """Yield the result of a function for each item, in order.

    Work begins at the first `next`. To stop before the end, close the generator (`close()`, or drop
    the last reference): waiting items are dropped, and each thread ends after its present item.

    Args:
        function: Called once for each item, in any thread.
        items: Taken by the caller's thread, up to `ahead` of them early.
        threads: Number of threads; 0 calls the function in the caller's.
        ahead: Greatest number of results that wait or are in work; 0 is twice the threads.

    Yields:
        The results. An exception of the function is raised unchanged by the `next` of its item.
    """
    if not threads:
        yield from map(function, items)
        return
    tasks: queue.SimpleQueue[tuple[Future[T], S] | None] = queue.SimpleQueue()
    stopped = threading.Event()

    def work() -> None:
        while (task := tasks.get()) is not None and not stopped.is_set():
            future, item = task
            try:
                future.set_result(function(item))
            except BaseException as error:  # raised by `Future.result`
                future.set_exception(error)
            del future, item, task

    remaining = iter(items)
    pending: deque[Future[T]] = deque()
    started: list[threading.Thread] = []

    def stop() -> None:
        stopped.set()
        for _ in started:
            tasks.put(None)
        end = time.monotonic() + _FAREWELL_S
        for thread in started:
            thread.join(max(0.0, end - time.monotonic()))

    def submit() -> bool:
        for item in remaining:
            future: Future[T] = Future()
            pending.append(future)
            tasks.put((future, item))
            if len(started) < threads:
                name = f"largebatch-read-{len(started)}"
                started.append(threading.Thread(target=work, name=name, daemon=True))
                started[-1].start()
            return True
        return False

    _stops.add(stop)
    try:
        while len(pending) < (ahead or 2 * threads) and submit():
            pass
        while pending:
            result = pending.popleft().result()
            submit()
            yield result
            del result  # so that nothing here keeps it while the next one is awaited
    finally:
        if not stopped.is_set():  # else the interpreter ends, and its modules may be gone
            _stops.discard(stop)
            stop()


def ahead(
    elements: Iterator[S],
    function: Callable[[S], T],
    count: int,
    *,
    poll: Callable[[float, bool], None] = lambda waited, arrived: None,
    patience: float | None = None,
) -> Generator[T]:
    """Yield the result of a function for each element, computed ahead by one separate thread.

    Args:
        elements: Used in that thread only, and closed there if it is a generator.
        function: Called in that thread.
        count: Greatest number of results that wait, at least 1.
        poll: Called as poll(seconds waited, whether a result has arrived) in the consumer's thread
            for each result; may raise, which ends the generator.
        patience: Seconds of waiting after which `poll` is called too, again and again; None is
            never.

    Yields:
        The results in order; an exception is raised at its place.
    """
    free = threading.Semaphore(count)
    taken: queue.SimpleQueue[tuple[T] | BaseException | None] = queue.SimpleQueue()
    stopped = threading.Event()

    def take() -> None:
        try:
            while free.acquire() and not stopped.is_set():
                taken.put((function(next(elements)),))
        except StopIteration:
            taken.put(None)
        except BaseException as error:  # raised in the consumer
            taken.put(error)
        finally:
            if isinstance(elements, Generator):
                elements.close()

    thread = threading.Thread(target=take, name="largebatch-ahead", daemon=True)
    thread.start()

    def stop() -> None:
        stopped.set()
        free.release()
        thread.join(_FAREWELL_S)

    _stops.add(stop)
    try:
        began = time.perf_counter()
        while True:
            try:
                got = taken.get(timeout=patience)
            except queue.Empty:
                poll(time.perf_counter() - began, False)
                continue
            if not isinstance(got, tuple):
                break
            poll(time.perf_counter() - began, True)
            free.release()
            yield got[0]
            began = time.perf_counter()
        if got is not None:
            raise got
    finally:
        if not stopped.is_set():  # else the interpreter ends, and its modules may be gone
            _stops.discard(stop)
            stop()
