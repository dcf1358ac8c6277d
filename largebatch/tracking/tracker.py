"""The interface by which a run records its history."""

from collections.abc import Mapping
from typing import Protocol


class Tracker(Protocol):
    """Records the history of a run on process 0, in the training thread."""

    def scalars(self, step: int, values: Mapping[str, float | int | str]) -> None:
        """Record named values of one step.

        Args:
            step: optimizer steps completed.
            values: name → value; no name may be `step`.
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

    def close(self) -> None:
        """Flush and release the files; nothing may be recorded afterwards."""
        ...
