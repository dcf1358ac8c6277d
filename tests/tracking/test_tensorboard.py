"""Event files read back: framing, tags, steps, and what TensorBoard would show after a resume."""

import contextlib
import math
import struct
import subprocess
import sys

import pytest
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.record_writer import masked_crc32c

from largebatch.tracking import TensorBoardTracker


def read_events(path):
    """Parses the TFRecord framing: length, its checksum, payload, its checksum."""
    data, events = path.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        assert struct.unpack("<I", data[8:12]) == (masked_crc32c(data[:8]),)
        payload, data = data[12 : 12 + length], data[12 + length :]
        assert struct.unpack("<I", data[:4]) == (masked_crc32c(payload),)
        data = data[4:]
        events.append(Event.FromString(payload))
    return events


def files(workdir):
    return sorted((workdir / "tensorboard").iterdir())


def shown(workdir):
    """Applies TensorBoard's rule: files in the order of their names; the first START is a
    beginning, every later one purges the events of its step and after."""
    points, started = {}, False
    for path in files(workdir):
        for event in read_events(path):
            if event.session_log.status == SessionLog.START:
                if started:
                    for steps in points.values():
                        for step in [step for step in steps if step >= event.step]:
                            del steps[step]
                started = True
            for value in event.summary.value:
                points.setdefault(value.tag, {})[event.step] = value.simple_value
    return points


def test_tags_steps_and_values(tmp_path):
    tracker = TensorBoardTracker(tmp_path, resume_step=0)
    tracker.scalars(3, {"loss": 2.5, "samples": 96, "phase": "warm-up", "validation/top1": 0.25})
    tracker.scalars(4, {"loss": math.nan})
    tracker.scalars(2**40, {"größe": -1e300, "zero": 0})
    tracker.close()
    (path,) = files(tmp_path)
    events = read_events(path)
    assert events[0].file_version == "brain.Event:2"
    points = shown(tmp_path)
    assert math.isnan(points["train/loss"].pop(4))
    assert points.pop("train/größe") == {2**40: -math.inf}
    assert points.pop("train/zero") == {2**40: 0.0}
    assert points == {
        "train/loss": {3: 2.5},
        "train/samples": {3: 96.0},
        "validation/top1": {3: 0.25},
    }


def test_what_is_no_number_is_refused(tmp_path):
    tracker = TensorBoardTracker(tmp_path, resume_step=0)
    with contextlib.closing(tracker), pytest.raises(TypeError):
        tracker.scalars(3, {"loss": None})


def test_records_are_written_out_after_a_while(tmp_path, monkeypatch):
    tracker = TensorBoardTracker(tmp_path, resume_step=0)
    monkeypatch.setattr("largebatch.tracking.tensorboard.FLUSH_S", 0.0)
    tracker.scalars(1, {"loss": 2.5})
    assert shown(tmp_path) == {"train/loss": {1: 2.5}}
    tracker.close()


def run(workdir, steps, *, resume_step, scale=1.0):
    tracker = TensorBoardTracker(workdir, resume_step=resume_step)
    for step in steps:
        tracker.scalars(step, {"loss": scale * step})
    tracker.close()


def test_resume_purges_later_steps_and_keeps_the_rest(tmp_path):
    # All within one second, where file names made of the time alone would collide.
    run(tmp_path, range(1, 7), resume_step=0)
    run(tmp_path, range(5, 8), resume_step=4, scale=10.0)
    run(tmp_path, range(7, 9), resume_step=6, scale=100.0)
    assert len(files(tmp_path)) == 3
    assert shown(tmp_path) == {
        "train/loss": {1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0, 5: 50.0, 6: 60.0, 7: 700.0, 8: 800.0}
    }


def test_new_run_purges_everything(tmp_path):
    run(tmp_path, range(4), resume_step=0)
    run(tmp_path, [2], resume_step=0, scale=10.0)
    assert shown(tmp_path) == {"train/loss": {2: 20.0}}


def test_a_clock_that_is_behind_does_not_reorder_files(tmp_path):
    run(tmp_path, [1, 2, 3], resume_step=0)
    (first,) = files(tmp_path)
    ahead = first.with_name("events.out.tfevents.4000000000.elsewhere.1")
    first.rename(ahead)
    run(tmp_path, [3], resume_step=2, scale=10.0)
    assert files(tmp_path)[0] == ahead
    assert shown(tmp_path) == {"train/loss": {1: 1.0, 2: 2.0, 3: 30.0}}


def test_a_row_of_many_values(tmp_path):
    """More than a small message has, so that lengths take several bytes."""
    values = {f"set{i}/top1": i / 8 for i in range(600)}
    tracker = TensorBoardTracker(tmp_path, resume_step=0)
    tracker.scalars(300, values)
    tracker.close()
    assert shown(tmp_path) == {tag: {300: value} for tag, value in values.items()}


def test_tensorflow_torch_and_jax_are_not_imported(tmp_path):
    code = (
        "import pathlib, sys\n"
        "import largebatch.tracking as tracking\n"
        "tracking.TensorBoardTracker(pathlib.Path(sys.argv[1]), resume_step=0).close()\n"
        "assert not {'tensorflow', 'tensorboardX', 'torch', 'jax', 'flax'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code, str(tmp_path)], check=True)
