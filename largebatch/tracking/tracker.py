"""The interface by which a run records its history."""

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Any, Protocol


class Tracker(Protocol):
    """Records the history of a run. A subclass leaves out the methods that it does not need."""

    def scalars(self, step: int, values: Mapping[str, float | int | str]) -> None:
        """Record named values of one step.

        Args:
            step: optimizer steps completed.
            values: name → value; no name may be `step`.
        """
        ...

    def layers(self, step: int, samples: int, values: Mapping[str, Mapping[str, float]]) -> None:
        """Record quantities of each parameter.

        Args:
            step: optimizer steps completed.
            samples: training samples consumed.
            values: parameter path → {`trust_ratio`, `weight_norm`, `gradient_norm`}.
        """
        ...

    def event(self, name: str, step: int, samples: int, **values: float | str) -> None:
        """Record an event that happens now.

        Args:
            name: `train_start`, before the first training example is read; `step`, after a step
                with its evaluation and checkpoint; `eval_start`; `eval_stop`, with `top1`, a
                fraction; `train_stop`; `checkpoint`, when one is begun; `preempted`; `skipped` and
                `rollback`, of a step that was not finite or diverged; `hosts`, with the times of
                all hosts; `replay`, with what differs, if anything does; `unhealthy`, with the
                reason why the run ends.
            step: optimizer steps completed.
            samples: training samples consumed.
            **values: details of the event.
        """
        ...

    def flush(self) -> None:
        """Write everything recorded so far to the disk."""
        ...

    def close(self) -> None:
        """Flush and release the files; nothing may be recorded afterwards."""
        ...


def layer_scalars(values: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return {parameter path: {quantity: value}} as {`<quantity>/<path>`: value}, in order."""
    return {
        f"{quantity}/{path}": float(value)
        for path, quantities in values.items()
        for quantity, value in quantities.items()
    }


class Forwarding(Tracker):
    """Passes every record on, as the name of a method of `Tracker` and its arguments."""

    def scalars(self, step: int, values: Mapping[str, float | int | str]) -> None:
        self.call("scalars", step, values)

    def layers(self, step: int, samples: int, values: Mapping[str, Mapping[str, float]]) -> None:
        self.call("layers", step, samples, values)

    def event(self, name: str, step: int, samples: int, **values: float | str) -> None:
        self.call("event", name, step, samples, **values)

    def flush(self) -> None:
        self.call("flush")

    def close(self) -> None:
        self.call("close")

    def call(self, method: str, *arguments: Any, **values: Any) -> None:
        """Pass a record on."""
        raise NotImplementedError


class Composite(Forwarding):
    """Passes every record to several trackers; `Composite(())` records nothing."""

    def __init__(self, trackers: Iterable[Tracker]) -> None:
        self._trackers = tuple(trackers)

    def call(self, method: str, *arguments: Any, **values: Any) -> None:
        """Call every tracker, also if one of them raises."""
        with ExitStack() as stack:
            for tracker in reversed(self._trackers):
                stack.callback(getattr(tracker, method), *arguments, **values)
