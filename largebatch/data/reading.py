"""Reading ahead by threads or worker processes, in order and with bounded memory."""

import contextlib
import os
import queue
import signal
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import TypeVar

from largebatch.errors import ConfigError, DataError

T = TypeVar("T")
_MIB = 1 << 20
_END = object()
# Greatest number of elements ahead: Grain begins all of them before it yields the first.
_MOST = 256
PIECE = 32 * _MIB
# Seconds that closing waits for a thread: a disk that hangs must not hang the run.
_FAREWELL_S = 5.0


@dataclass(frozen=True)
class Reading:
    """Threads, processes and memory of reading.

    Attributes:
        threads: Threads that read, in each worker process if any; 0 reads in the caller's.
        processes: Worker processes; 0 reads in this one, which is as fast up to the limit of its
            interpreter lock (some 20,000 images/s).
        memory_bytes: Greatest total bytes of elements that wait or are in flight; at least one per
            process.
        piece_bytes: Bytes of pixels that a thread reads at a time: some 200 photographs, or 0.2 s.
            Smaller pieces cost more overhead, larger ones delay the first batch.

    Raises:
        ConfigError: A number is negative.
    """

    threads: int = 1
    processes: int = 0
    memory_bytes: int = 256 * _MIB
    piece_bytes: int = PIECE

    def __post_init__(self) -> None:
        for field in ("threads", "processes", "memory_bytes"):
            if getattr(self, field) < 0:
                raise ConfigError(f"data.{field}: expected 0 or more, got {getattr(self, field)}")

    def pieces(self, rows: tuple[int, int], row_bytes: int) -> tuple[tuple[int, int], ...]:
        """Divide rows [first, last) into pieces, all but the last of the same size."""
        first, last = rows
        size = max(1, self.piece_bytes // row_bytes)
        return tuple((at, min(at + size, last)) for at in range(first, last, size))


def cores() -> int:
    """Return the number of processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def read_ahead(
    load: Callable[[int], T], count: int, element_bytes: int, reading: Reading
) -> Generator[T]:
    """Yield load(0) to load(count - 1) in order.

    Reading begins at the first `next`. To stop before the end, close the generator (`close()`, or
    drop the last reference): queued elements are cancelled and each thread ends after its present
    element.

    Args:
        load: Called once per index, in any thread or, pickled, in any process.
        count: Number of elements; 0 yields nothing.
        element_bytes: Bytes of one element, for the limit on memory.
        reading: Threads, processes and memory.

    Yields:
        The results of `load`. Its exceptions are raised unchanged by the `next` of the element.
    """
    import grain  # imports JAX, which programs that only decode do not need
    from absl import flags

    workers = max(1, reading.processes)
    ahead = max(1, min(_MOST, reading.memory_bytes // max(1, element_bytes) // workers))
    # Threads beyond the buffer would be idle, and Grain warns of them.
    options = grain.ReadOptions(
        num_threads=min(reading.threads, ahead),
        prefetch_buffer_size=ahead if reading.threads else 0,
    )
    elements = grain.MapDataset.range(count).map(load).to_iter_dataset(options)
    if reading.processes:
        if not flags.FLAGS.is_parsed():  # Grain's workers read a flag
            flags.FLAGS.mark_as_parsed()
        elements = elements.mp_prefetch(
            grain.MultiprocessingOptions(num_workers=reading.processes, per_worker_buffer_size=1)
        )
    taken = 0
    with _signals_blocked(reading):
        iterator = iter(elements)
        first = next(iterator, _END)  # worker processes are started here
    try:
        if first is _END:
            return
        yield first
        taken = 1
        for element in iterator:
            yield element
            taken += 1
    except RuntimeError as error:
        if not reading.processes or "terminated unexpectedly" not in str(error):
            raise
        raise DataError(
            f"reading process {taken % reading.processes} of data.processes="
            f"{reading.processes} died ({str(error).partition('. ')[0]}), which is often a lack of "
            "memory: lower data.processes or data.threads; the same command resumes the run"
        ) from error
    finally:
        iterator.close()


@contextlib.contextmanager
def _signals_blocked(reading: Reading) -> Iterator[None]:
    """Block the signals that stop a run in worker processes started during the body.

    A terminal and some launchers send them to all processes of a group. The process that trains
    decides when to stop, and needs its input until then.
    """
    if not reading.processes:
        yield
        return
    before = signal.pthread_sigmask(
        signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1}
    )
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ahead(elements: Iterator[T], count: int, patience: float | None = None) -> Generator[T | None]:
    """Yield the same elements, up to `count` of them taken ahead by a separate thread.

    Args:
        elements: Used in that thread only, and closed there if it is a generator.
        count: Greatest number of elements taken but not yielded, at least 1.
        patience: Seconds to wait for an element before yielding None; None waits for ever.

    Yields:
        The elements in order; an exception is raised at its place. With `patience`, also None each
        time that no element came within that time; no element is lost.
    """
    free = threading.Semaphore(count)
    taken: queue.SimpleQueue[tuple[T] | BaseException | None] = queue.SimpleQueue()
    stopped = threading.Event()

    def take() -> None:
        try:
            while free.acquire() and not stopped.is_set():
                taken.put((next(elements),))
        except StopIteration:
            taken.put(None)
        except BaseException as error:  # raised in the consumer
            taken.put(error)
        finally:
            if isinstance(elements, Generator):
                elements.close()

    thread = threading.Thread(target=take, name="largebatch-ahead", daemon=True)
    thread.start()
    try:
        while True:
            try:
                got = taken.get(timeout=patience)
            except queue.Empty:
                yield None
                continue
            if not isinstance(got, tuple):
                break
            free.release()
            yield got[0]
        if got is not None:
            raise got
    finally:
        stopped.set()
        free.release()
        thread.join(_FAREWELL_S)
