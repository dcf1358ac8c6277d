"""The history of a run as TensorBoard events."""

import os
import socket
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from largebatch.tracking.tracker import Tracker, layer_scalars

FLUSH_S = 30.0
"""Longest time, in seconds, that a record stays in memory."""


class TensorBoardTracker(Tracker):
    """Writes scalars and layer quantities to an event file in `workdir/tensorboard/`.

    Names that contain `/` are kept, others get the prefix `train/`; texts are left out. A layer's
    quantity becomes `trust_ratio/<path>`, for example. The x axis is the step.

    tensorboardX's `SummaryWriter` is not used: its `flush` does not wait for its thread, and it
    names files by the second, so a run resumed within a second would overwrite its own history.
    """

    def __init__(self, workdir: Path, *, resume_step: int) -> None:
        """Open a new event file, which hides what a resumed run will write again.

        Args:
            workdir: run directory, created if absent.
            resume_step: step of the checkpoint resumed from; events of later steps are purged
                from display. 0 is a new run, which purges everything.
        """
        # It imports torch if that is installed, which takes seconds.
        from tensorboardX import RecordWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog
        from tensorboardX.proto.summary_pb2 import Summary

        self._event, self._summary = Event, Summary
        directory = workdir / "tensorboard"
        directory.mkdir(parents=True, exist_ok=True)
        self._writer = RecordWriter(str(_next_file(directory)))
        self._closed = False
        self._write(0, file_version="brain.Event:2")
        # At each START but the first of a directory, TensorBoard purges the events of its step and
        # after. So a new run must write one as well.
        start = SessionLog(status=SessionLog.START)
        self._write(resume_step + 1 if resume_step else 0, session_log=start)
        self.flush()

    def scalars(self, step: int, values: Mapping[str, float | int | str]) -> None:
        """Write one event; see `Tracker.scalars`."""
        self._write_values(
            step,
            (
                (name if "/" in name else f"train/{name}", value)
                for name, value in values.items()
                if not isinstance(value, str)
            ),
        )

    def layers(self, step: int, samples: int, values: Mapping[str, Mapping[str, float]]) -> None:
        """Write one event; see `Tracker.layers`."""
        self._write_values(step, layer_scalars(values).items())

    def flush(self) -> None:
        """Write all events to the disk."""
        self._writer.flush()
        self._flushed = time.monotonic()

    def close(self) -> None:
        """Flush and close the event file; a second call does nothing."""
        if not self._closed:
            self._closed = True
            self.flush()
            self._writer.close()

    def _write_values(self, step: int, values: Iterable[tuple[str, float]]) -> None:
        summary = self._summary()
        for tag, value in values:
            summary.value.add(tag=tag, simple_value=float(value))
        self._write(step, summary=summary)
        if time.monotonic() - self._flushed > FLUSH_S:
            self.flush()

    def _write(self, step: int, **what: object) -> None:
        event = self._event(wall_time=time.time(), step=step, **what)
        self._writer.write(event.SerializeToString())


def _next_file(directory: Path) -> Path:
    """The path of an event file that sorts after every other in the directory.

    TensorBoard reads the files in the order of their names, which begin with a time in seconds. A
    quick restart, or a host whose clock is slow, gets the next free second.
    """
    prefix = "events.out.tfevents."
    taken = [path.name.removeprefix(prefix).split(".")[0] for path in directory.glob(prefix + "*")]
    latest = max((int(second) for second in taken if second.isdigit()), default=0)
    second = max(int(time.time()), latest + 1)
    return directory / f"{prefix}{second:010d}.{socket.gethostname()}.{os.getpid()}"
