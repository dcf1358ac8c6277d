"""Progress of long work on datasets."""

import contextlib
import time
from collections.abc import Callable, Iterator

from largebatch.files import printable
from largebatch.tracking.console import duration

_LINE_EVERY_S = 10.0


@contextlib.contextmanager
def progress(what: str, unit: str, total: int, done: int = 0) -> Iterator[Callable[[int], None]]:
    """Print progress every 10 seconds and at the end.

    Args:
        what: The activity.
        unit: What is counted, in the plural.
        total: Number of units.
        done: Number of units done before; the rate excludes them.

    Yields:
        A function that takes the number of further units done.
    """
    begin = printed = time.monotonic()
    before = done

    def advance(count: int) -> None:
        nonlocal done, printed
        done += count
        now = time.monotonic()
        if done == total or now - printed >= _LINE_EVERY_S:
            printed = now
            left = (total - done) * (now - begin) / (done - before)
            eta = f"  eta {duration(left)}" if left else ""
            print(f"{printable(what)}  {done:,}/{total:,} {unit}{eta}", flush=True)

    yield advance
