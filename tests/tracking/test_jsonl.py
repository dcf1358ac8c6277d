"""JSON lines: strict JSON, kept through a kill; a resumed history equals an unbroken one."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from largebatch.errors import UserError
from largebatch.tracking import JsonlTracker, read_rows


def record(tracker, steps):
    """What a run logs: a training row each step, a validation row at even steps."""
    for step in steps:
        tracker.scalars(step, {"loss": 1.0 / step, "epoch": step / 4})
        if step % 2 == 0:
            tracker.scalars(step, {"validation/top1": step / 100})
            tracker.layers(step, 32 * step, {"conv": {"trust_ratio": 0.5 / step}})


def history(directory):
    return {name: (directory / name).read_bytes() for name in ("metrics.jsonl", "layers.jsonl")}


def test_refuses_what_would_corrupt_a_row(tmp_path):
    tracker = JsonlTracker(tmp_path, resume_step=0)
    with pytest.raises(ValueError, match="step"):
        tracker.scalars(1, {"step": 5})
    with pytest.raises(TypeError, match="not a plain value"):
        tracker.scalars(1, {"loss": np.ones(2)})
    tracker.close()
    assert (tmp_path / "metrics.jsonl").read_bytes() == b""


def test_resumed_history_equals_uninterrupted(tmp_path):
    whole = JsonlTracker(tmp_path / "whole", resume_step=0)
    record(whole, range(1, 9))
    whole.close()

    broken = JsonlTracker(tmp_path / "broken", resume_step=0)
    record(broken, range(1, 7))  # the checkpoint is of step 4
    broken.close()
    for name in ("metrics.jsonl", "layers.jsonl"):
        with (tmp_path / "broken" / name).open("ab") as stream:
            stream.write(b'{"step": 4, "loss"')
    resumed = JsonlTracker(tmp_path / "broken", resume_step=4)
    record(resumed, range(5, 9))
    resumed.close()

    assert history(tmp_path / "broken") == history(tmp_path / "whole")
    found = sorted(os.listdir(tmp_path / "broken"))
    assert found == ["events.jsonl", "layers.jsonl", "metrics.jsonl"]


def test_a_row_that_will_be_written_again_is_dropped(tmp_path):
    tracker = JsonlTracker(tmp_path, resume_step=0)
    record(tracker, range(1, 5))
    tracker.close()
    layers = (tmp_path / "layers.jsonl").read_bytes()
    JsonlTracker(tmp_path, resume_step=4, again=True).close()
    assert {row["step"] for row in read_rows(tmp_path / "metrics.jsonl")} == {1, 2, 3}
    assert (tmp_path / "layers.jsonl").read_bytes() == layers


def test_events_of_all_attempts_are_kept_without_steps(tmp_path):
    for resume in (0, 1):
        tracker = JsonlTracker(tmp_path, resume_step=resume)
        tracker.event("step", 3, 96)
        tracker.event("rollback", 3, 96, why="test")
        tracker.close()
    rows = read_rows(tmp_path / "events.jsonl")
    assert [(row["event"], row["step"], row["samples"], row["why"]) for row in rows] == [
        ("rollback", 3, 96, "test")
    ] * 2
    assert 0 <= rows[1]["time"] - rows[0]["time"] < 60


def test_a_killed_process_keeps_every_row(tmp_path):
    code = (
        "import os, pathlib, signal, sys\n"
        "from largebatch.tracking import JsonlTracker\n"
        "tracker = JsonlTracker(pathlib.Path(sys.argv[1]), resume_step=0)\n"
        "for step in range(1, 51):\n"
        "    tracker.scalars(step, {'loss': 0.5})\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert [row["step"] for row in read_rows(tmp_path / "metrics.jsonl")] == list(range(1, 51))


def test_a_row_that_is_damaged_within_a_file_is_named(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(UserError, match=r"metrics\.jsonl: line 2 of 3"):
        read_rows(path)
    with pytest.raises(UserError, match=r"absent\.jsonl"):
        read_rows(tmp_path / "absent.jsonl")
