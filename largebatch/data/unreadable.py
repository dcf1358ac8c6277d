"""Pictures that cannot be decoded: how a source says so, and the account that is kept of them."""

import math
import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np

from largebatch.data.sources import Source
from largebatch.errors import DataError

T = TypeVar("T")
_NAMED = 5  # of those that a message counts
_FEW = 3  # corrupt images that a small split may have whatever the share, up to a tenth of it
_SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.9)  # to propose
_NONE = np.empty(0, np.int64)


class IncompleteReadError(DataError):
    """Some of the examples that were asked for cannot be decoded; all others have been read.

    Attributes:
        partial: What the read would have returned. Labels are right everywhere; at `rows` images
            hold anything and sizes are 1×1.
        rows: int64 (k,), the places of those that cannot be decoded, ascending.
    """

    def __init__(self, message: str, partial: Any, rows: np.ndarray) -> None:
        """Of what was asked for, what there is."""
        super().__init__(message)
        self.partial = partial
        self.rows = rows

    def __reduce__(self) -> tuple:
        return DataError, self.args  # all that another process needs to know


@runtime_checkable
class FallibleSource(Source, Protocol):
    """A source whose reads raise an `IncompleteReadError` where examples cannot be decoded."""

    def explain(self, example: int) -> tuple[str, str]:
        """Reads an example again that could not be decoded.

        Returns:
            The name of what holds it, and what is wrong with it.

        Raises:
            DataError: It cannot even be read.
        """
        ...


def as_far_as_possible(read: Callable[..., T], *arguments: Any) -> tuple[T, np.ndarray]:
    """Reads what can be read.

    Args:
        read: A read of a source.
        *arguments: Of it.

    Returns:
        What the read returns, and the `rows` of an `IncompleteReadError`, int64 (k,).
    """
    try:
        return read(*arguments), _NONE
    except IncompleteReadError as error:
        return error.partial, error.rows


class Found(NamedTuple):
    """An example that cannot be decoded."""

    example: int
    """Its id."""
    name: str
    """The file, or the record of a file, that holds it."""
    reason: str
    """What is wrong with it."""


class Unreadable:
    """The distinct examples of a split that this process could not decode; thread-safe.

    Attributes:
        split: Name of the split.
        examples: Examples that it has.
        share: Of them may be undecodable.
        limit: As a number, or 3 where that is more; in a small split a tenth of it instead of 3.
            With a share of 0 it is 0.
        found: Those that are, in the order in which they were met.
    """

    def __init__(
        self,
        split: str,
        examples: int,
        share: float = 0.0,
        option: str = "--config.data.max_unreadable",
    ) -> None:
        """Nothing has been met yet.

        Args:
            split: For messages.
            examples: Of the split.
            share: `data.max_unreadable`; with 0 the first one stops the run.
            option: How the share is given on the command line, for messages.
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

    @property
    def count(self) -> int:
        """How many have been met."""
        return len(self.found)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of those that have been met."""
        return tuple(found.name for found in self.found)

    @property
    def ids(self) -> tuple[int, ...]:
        """Ids of those that have been met."""
        return tuple(found.example for found in self.found)

    def connect(self, report: Callable[[str, str], None], listed: str = "") -> None:
        """Says where each is to be told, those that have been met already at once.

        Args:
            report: Called once for each with name and reason, from the thread that feeds.
            listed: What the message that stops the run gives as the place that lists them all.
        """
        with self._lock:
            self._report, self._listed = report, listed
            for found in self.found:
                report(found.name, found.reason)

    def add(self, examples: Iterable[int], explain: Callable[[int], tuple[str, str]]) -> None:
        """Accounts for examples that could not be decoded.

        Args:
            examples: Their ids; those that are known are passed over.
            explain: As of `FallibleSource`; called once for each that is not.

        Raises:
            DataError: There are more than `limit`.
        """
        with self._lock:
            known = set(self.ids)
            for example in examples:
                if example not in known:
                    known.add(example)
                    self.found = (*self.found, Found(example, *explain(example)))
                    if self._report is not None:
                        self._report(*self.found[-1][1:])
                    self.check()

    def check(self, elsewhere: Iterable[int] = ()) -> None:
        """Compares with the limit.

        Args:
            elsewhere: Ids that other processes have met.

        Raises:
            DataError: Together there are more than `limit`.
        """
        count = len({*self.ids, *elsewhere})
        if count <= self.limit:
            return
        named = "; ".join(f"{found.name} ({found.reason})" for found in self.found[:_NAMED])
        more = f"; and {count - _NAMED:,} more" if count > _NAMED else ""
        listed = f"; all in {self._listed}" if self._listed else ""
        # Twice as many as there are by now: more may follow.
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
