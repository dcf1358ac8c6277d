"""The count of the images of a split that cannot be decoded."""

import math
import threading
from collections.abc import Callable, Iterable
from typing import NamedTuple

from largebatch.errors import DataError

_NAMED = 5  # images named in a message
_FEW = 3  # corrupt images that a small split may have with any share, up to a tenth of it
_SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.9)  # proposed in the message


class Found(NamedTuple):
    """An example that cannot be decoded."""

    example: int
    """The id of the example."""
    name: str
    """The file, or the record of a file, that holds it."""
    reason: str
    """What is wrong with it."""


class Unreadable:
    """Counts the distinct examples of a split that this process could not decode; thread-safe.

    Attributes:
        split: Name of the split.
        examples: Number of its examples.
        share: Greatest share of them that may be undecodable.
        limit: The same as a number, at least 3, or a tenth of a split of fewer than 30 examples;
            0 for a share of 0.
        found: The undecodable examples, in the order in which they were found.
    """

    def __init__(
        self,
        split: str,
        examples: int,
        share: float = 0.0,
        option: str = "--config.data.max_unreadable",
    ) -> None:
        """Start with no example.

        Args:
            split: Name of the split.
            examples: Number of its examples.
            share: `data.max_unreadable`; with 0 the first one stops the run.
            option: The flag of the share, for messages.
        """
        self.split = split
        self.examples = examples
        self.share = share
        self.limit = max(_part(examples, share), min(_FEW, examples // 10)) if share else 0
        self._option = option
        self.found: tuple[Found, ...] = ()  # replaced, never changed: read without a lock
        self._report: Callable[[str, str], None] | None = None
        self._listed = ""
        self._lock = threading.Lock()

    def connect(self, report: Callable[[str, str], None], listed: str = "") -> None:
        """Set the function that reports each example; report those found before at once.

        Args:
            report: Called with name and reason, from the thread that feeds.
            listed: The file that lists all of them, for the message that stops the run.
        """
        with self._lock:
            self._report, self._listed = report, listed
            for found in self.found:
                report(found.name, found.reason)

    def add(self, examples: Iterable[int], explain: Callable[[int], tuple[str, str]]) -> None:
        """Count examples that could not be decoded.

        Args:
            examples: Their ids; known ones are ignored.
            explain: See `Dataset.explain`; called once for each new one.

        Raises:
            DataError: There are more than `limit`.
        """
        with self._lock:
            known = {found.example for found in self.found}
            for example in examples:
                if example not in known:
                    known.add(example)
                    self.found = (*self.found, Found(example, *explain(example)))
                    if self._report is not None:
                        self._report(*self.found[-1][1:])
                    self.check()

    def check(self, elsewhere: Iterable[int] = ()) -> None:
        """Compare with the limit.

        Args:
            elsewhere: Ids that other processes have found.

        Raises:
            DataError: Together they are more than `limit`.
        """
        count = len({*(found.example for found in self.found), *elsewhere})
        if count <= self.limit:
            return
        named = "; ".join(f"{found.name} ({found.reason})" for found in self.found[:_NAMED])
        more = f"; and {count - _NAMED:,} more" if count > _NAMED else ""
        listed = f"; all in {self._listed}" if self._listed else ""
        # Allow twice the present number: more may follow.
        enough = next((s for s in _SHARES if _part(self.examples, s) >= 2 * count), 0.0)
        use = f", or use {self._option}={enough:g}" if enough else ""
        raise DataError(
            f"{self.split}: {count:,} of {self.examples:,} examples "
            f"({100 * count / self.examples:.2g} %) cannot be decoded, "
            f"{self._option.removeprefix('--config.')}={self.share:g} allows {self.limit:,}: "
            f"{named}{more}{listed}; restore or remove these images{use}"
        )


def _part(examples: int, share: float) -> int:
    return math.floor(examples * share + 1e-9)  # 0.29 · 100 is a little less than 29
