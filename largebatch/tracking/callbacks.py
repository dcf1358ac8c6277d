"""Callbacks: functions of a Python program that a run calls with its rows, checkpoints and summary.

A callback receives what the trackers receive: plain Python values that are on the host already. It
cannot reach the state on the devices, so a run with callbacks is bitwise identical to one without.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from largebatch.errors import UserError, one_line, own_line
from largebatch.tracking.summary import Summary

_VALIDATION = "validation/"


class Callback:
    """Base class of callbacks; a subclass overrides the methods that it needs.

    Process 0 calls them in the training thread, while the devices compute the next step. A slow
    method delays the run. An exception ends it with one line; the newest checkpoint stays, and the
    same call of `largebatch.train` resumes from it.

    `on_log`, `on_evaluation` and `on_checkpoint` stop the run by returning True: it saves after the
    step that is being computed, and ends with the status ``stopped``.
    """

    def on_log(self, step: int, row: Mapping[str, float | int | str]) -> bool | None:
        """Receive a row of ``metrics.jsonl``; `run.log_every` sets the interval.

        Args:
            step: steps completed.
            row: ``loss``, ``learning_rate``, ``samples`` and the other columns.
        """

    def on_evaluation(self, step: int, result: Mapping[str, float]) -> bool | None:
        """Receive the result of an evaluation, after the row of its step.

        Args:
            step: steps completed.
            result: ``loss`` in nats per image, ``top1`` and ``top5`` as fractions.
        """

    def on_checkpoint(self, step: int, path: Path) -> bool | None:
        """Receive a complete checkpoint, at the first step after it has been written.

        Args:
            step: steps completed at the checkpoint.
            path: its file; later checkpoints replace it (`run.keep_checkpoints`).
        """

    def on_end(self, summary: Summary) -> None:
        """Receive the summary of a run that is complete, stopped or preempted."""


class CallbackTracker:
    """Translates the records of a run to calls of callbacks."""

    def __init__(
        self,
        callbacks: Sequence[Callback],
        path: Callable[[int], str],
        is_saved: Callable[[int], bool],
        stop: Callable[[str], None],
    ) -> None:
        """Prepare.

        Args:
            callbacks: the user's objects.
            path: step → path of its checkpoint.
            is_saved: step → whether its checkpoint is complete.
            stop: called with the reason if a callback stops the run.
        """
        self._callbacks, self._path, self._is_saved = callbacks, path, is_saved
        self._stop = stop
        self.has_stopped = False
        """Whether a callback has stopped the run."""
        self._begun: int | None = None
        """Step of a checkpoint that is being written."""

    def scalars(self, step: int, values: Mapping[str, float | int | str]) -> None:
        self._call("on_log", step, dict(values))
        length = len(_VALIDATION)
        result = {key[length:]: v for key, v in values.items() if key.startswith(_VALIDATION)}
        if result:
            self._call("on_evaluation", step, result)

    def event(self, name: str, step: int, samples: int, **values: float | str) -> None:
        self._report_checkpoint()
        if name == "checkpoint":
            self._begun = step

    def close(self) -> None:
        """Do nothing: callbacks have no files."""

    def end(self, summary: Summary) -> None:
        """Report the last checkpoint, which is on disk, and the summary."""
        self._report_checkpoint()
        self._call("on_end", summary)

    def _report_checkpoint(self) -> None:
        """Call ``on_checkpoint`` once the checkpoint is complete."""
        step = self._begun
        if step is not None and self._is_saved(step):
            self._begun = None
            self._call("on_checkpoint", step, Path(self._path(step)))

    def _call(self, method: str, *arguments: object) -> None:
        for callback in self._callbacks:
            try:
                stops = getattr(callback, method)(*arguments)
            except Exception as error:
                raise UserError(
                    f"callbacks: {type(callback).__name__}.{method} raised {type(error).__name__}: "
                    f"{one_line(error)}{own_line(error)}; fix it, then the same call resumes"
                ) from error
            if stops is True and not self.has_stopped:
                self.has_stopped = True
                self._stop(f"{type(callback).__name__}.{method} has stopped the run")
