"""The history of a run as TensorBoard events."""

import functools
import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from largebatch.files import masked_crc32c

FLUSH_S = 30.0
"""Longest time, in seconds, that a record stays in memory."""


class TensorBoardTracker:
    """Writes scalars to an event file in `workdir/tensorboard/`.

    Names that contain `/` are kept, others get the prefix `train/`; texts are left out. The x axis
    is the step.

    The events are encoded here, in 50 lines: the package tensorboardX imports PyTorch if that is
    installed, which takes seconds.
    """

    def __init__(self, workdir: Path, *, resume_step: int) -> None:
        """Open a new event file, which hides what a resumed run will write again.

        Args:
            workdir: run directory, created if absent.
            resume_step: step of the checkpoint resumed from; events of later steps are purged
                from display. 0 is a new run, which purges everything.
        """
        directory = workdir / "tensorboard"
        directory.mkdir(parents=True, exist_ok=True)
        self._stream = _next_file(directory).open("wb")
        self._write(0, _field(3, b"brain.Event:2"))
        # At each START but the first of a directory, TensorBoard purges the events of its step and
        # after. So a new run must write one as well.
        self._write(resume_step + 1 if resume_step else 0, _field(7, b"\x08\x01"))
        self.flush()

    def scalars(self, step: int, values: Mapping[str, float | int | str]) -> None:
        """Write one event; see `Tracker.scalars`."""
        with np.errstate(over="ignore"):  # beyond float32 is infinite
            numbers = {
                name if "/" in name else f"train/{name}": np.float32(float(value)).tobytes()
                for name, value in values.items()
                if not isinstance(value, str)
            }
        summary = b"".join(_before_value(tag) + number for tag, number in numbers.items())
        self._write(step, _field(5, summary))
        if time.monotonic() - self._flushed > FLUSH_S:
            self.flush()

    def event(self, name: str, step: int, samples: int, **values: float | str) -> None:
        """Do nothing: TensorBoard shows curves."""

    def flush(self) -> None:
        """Write all events to the disk."""
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._flushed = time.monotonic()

    def close(self) -> None:
        """Flush and close the event file; a second call does nothing."""
        if not self._stream.closed:
            self.flush()
            self._stream.close()

    def _write(self, step: int, what: bytes) -> None:
        """Write an event as a record of a TFRecord file.

        The fields of tensorflow/core/util/event.proto: 1 wall_time, 2 step, 3 file_version,
        5 summary, 7 session_log.

        Args:
            step: of the event.
            what: the field that it holds beside time and step.
        """
        event = b"\x09" + struct.pack("<d", time.time()) + b"\x10" + _varint(step) + what
        length = struct.pack("<Q", len(event))
        for data in (length, event):
            self._stream.write(data + struct.pack("<I", masked_crc32c(data)))


def _varint(number: int) -> bytes:
    """Return a number, at least 0, in the variable length of protocol buffers."""
    digits = []
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*digits, number])


def _field(number: int, data: bytes) -> bytes:
    """Return a field of bytes of a protocol buffer."""
    return _varint(number << 3 | 2) + _varint(len(data)) + data


@functools.lru_cache(4096)
def _before_value(tag: str) -> bytes:
    """Return the field 1 of a summary for a scalar, up to its value.

    The fields of tensorflow/core/framework/summary.proto: 1 tag, 2 simple_value.
    """
    name = _field(1, tag.encode())
    return b"\x0a" + _varint(len(name) + 5) + name + b"\x15"


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
