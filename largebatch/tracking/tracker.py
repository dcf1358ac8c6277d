"""The interface by which a run records its history."""

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Protocol


class Tracker(Protocol):
    """A place that keeps the history of a run."""

    def scalars(self, step: int, values: Mapping[str, float | int | str]) -> None:
        """Records named values of one step.

        Args:
            step: optimizer steps completed.
            values: name → value; no name may be `step`.
        """
        ...

    def layers(self, step: int, samples: int, values: Mapping[str, Mapping[str, float]]) -> None:
        """Records quantities of single parameters.

        Args:
            step: optimizer steps completed.
            samples: training samples consumed.
            values: parameter path → {`trust_ratio`, `weight_norm`, `gradient_norm`}.
        """
        ...

    def event(self, name: str, step: int, samples: int, **values: float | str) -> None:
        """Takes notice of something that happens now.

        Args:
            name: `train_start`, before the first training example is read; `step`, when one is
                done with all that belongs to it; `eval_start`; `eval_stop`, with `top1`, a
                fraction; `train_stop`; `checkpoint`, when one is begun; `preempted`; `skipped` and
                `rollback`, of a step that was not finite or diverged; `hosts`, with the times of
                all; `replay`, with what differs, if anything does; `unhealthy`, with why the run
                ends.
            step: optimizer steps completed.
            samples: training samples consumed.
            **values: what belongs to it.
        """
        ...

    def flush(self) -> None:
        """Brings everything recorded so far to the disk."""
        ...

    def close(self) -> None:
        """Flushes and releases the files; nothing may be recorded afterwards."""
        ...


def layer_scalars(values: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """{parameter path: {quantity: value}} as {`<quantity>/<path>`: value}, in the same order."""
    return {
        f"{quantity}/{path}": float(value)
        for path, quantities in values.items()
        for quantity, value in quantities.items()
    }


class Composite:
    """Passes every record to several trackers; `Composite(())` records nothing."""

    def __init__(self, trackers: Iterable[Tracker]) -> None:
        self._trackers = tuple(trackers)

    def scalars(self, step: int, values: Mapping[str, float | int | str]) -> None:
        """See `Tracker.scalars`."""
        for tracker in self._trackers:
            tracker.scalars(step, values)

    def layers(self, step: int, samples: int, values: Mapping[str, Mapping[str, float]]) -> None:
        """See `Tracker.layers`."""
        for tracker in self._trackers:
            tracker.layers(step, samples, values)

    def event(self, name: str, step: int, samples: int, **values: float | str) -> None:
        """See `Tracker.event`."""
        for tracker in self._trackers:
            tracker.event(name, step, samples, **values)

    def flush(self) -> None:
        """See `Tracker.flush`."""
        for tracker in self._trackers:
            tracker.flush()

    def close(self) -> None:
        """See `Tracker.close`; closes every tracker even when one of them raises."""
        with ExitStack() as stack:
            for tracker in reversed(self._trackers):
                stack.callback(tracker.close)
