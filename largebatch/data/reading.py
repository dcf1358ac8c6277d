"""Reading ahead: elements computed in order by threads or worker processes, bounded by memory."""

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
# Elements ahead, however small: Grain begins all of them before it hands out the first.
_MOST = 256
PIECE = 32 * _MIB
# How long closing waits for a thread within an element: a disk that hangs must not hang the run.
_FAREWELL_S = 5.0


@dataclass(frozen=True)
class Reading:
    """Who reads, and how far ahead.

    Attributes:
        threads: Threads that read, in each worker process if there are any; 0: the caller's.
        processes: Worker processes; 0 reads in this one, which measures as fast until its
            interpreter lock is what is short (some 20,000 images/s).
        memory_bytes: Bytes of elements that may wait or be under way, in all; one for each process
            is always let through.
        piece_bytes: Bytes of pixels that a thread reads at a time: some 200 photographs, a fifth of
            a second. Less and the hand-over shows, more and a large batch is waited for longer.

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
                raise ConfigError(f"data.{field} is {getattr(self, field)}; give 0 or more")

    def pieces(self, rows: tuple[int, int], row_bytes: int) -> tuple[tuple[int, int], ...]:
        """Cuts rows [first, last) into pieces, all but the last of the same size."""
        first, last = rows
        size = max(1, self.piece_bytes // row_bytes)
        return tuple((at, min(at + size, last)) for at in range(first, last, size))


def cores() -> int:
    """Processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def read_ahead(
    load: Callable[[int], T], count: int, element_bytes: int, reading: Reading
) -> Generator[T]:
    """Yields load(0) to load(count - 1) in order.

    Reading begins at the first `next`. To stop before the end, close the generator (`close()`, or
    drop the last reference): what is queued is cancelled and each thread ends with the element it
    has begun.

    Args:
        load: Called once per index, in any thread or, pickled, in any process.
        count: How many; 0 yields nothing.
        element_bytes: Bytes of one element, for the bound on memory.
        reading: Threads, processes and memory.

    Yields:
        What `load` returns. An error of `load` is raised by the `next` whose element it spoils, as
        the exception it is.
    """
    import grain  # which imports JAX: programs that only decode need neither
    from absl import flags

    workers = max(1, reading.processes)
    ahead = max(1, min(_MOST, reading.memory_bytes // max(1, element_bytes) // workers))
    # Threads beyond the buffer would only idle, and Grain warns of them.
    options = grain.ReadOptions(
        num_threads=min(reading.threads, ahead),
        prefetch_buffer_size=ahead if reading.threads else 0,
    )
    elements = grain.MapDataset.range(count).map(load).to_iter_dataset(options)
    if reading.processes:
        if not flags.FLAGS.is_parsed():  # Grain's workers look at one; there is no command line
            flags.FLAGS.mark_as_parsed()
        elements = elements.mp_prefetch(
            grain.MultiprocessingOptions(num_workers=reading.processes, per_worker_buffer_size=1)
        )
    taken = 0
    with _signals_held_back(reading):
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
            f"{reading.processes} ended without a word ({str(error).partition('. ')[0]}); if "
            "memory is short lower data.processes or data.memory_mib; the same command resumes"
        ) from error
    finally:
        iterator.close()


@contextlib.contextmanager
def _signals_held_back(reading: Reading) -> Iterator[None]:
    """Worker processes that are started meanwhile never see the signals that stop a run.

    A terminal and some launchers send them to all processes of a group; what the run then does is
    decided by the process that trains, which needs its input until it has stopped.
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
    """The same elements, up to `count` of them taken by a thread of its own before they are wanted.

    Args:
        elements: Taken from in that thread alone, and closed there if it is a generator.
        count: Greatest number of elements taken but not yielded, at least 1.
        patience: Seconds to wait for an element before saying that there is none yet; None waits.

    Yields:
        The elements in their order; an error of theirs where it arose. With `patience` also None,
        each time that so long passed without an element; none is lost by that.
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
        except BaseException as error:  # carried to the consumer, whatever it is
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
