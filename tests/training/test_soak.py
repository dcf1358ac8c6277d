"""Soak: a training is killed (SIGKILL) at random moments and resumed.

Parameters, statistics, velocities and every row of the log are bitwise those of an undisturbed run,
and each attempt continues from the newest checkpoint that the one before has left.

    pytest -m accuracy -n0 -s tests/training/test_soak.py

kills 50 times. `test_processes` does it once in a bucket.
"""

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time

import pytest

from largebatch.checkpoint.checkpoints import manifest_of, steps_in
from largebatch.checkpoint.place import LocalPlace
from largebatch.tracking import read_rows
from tests.training import worlds
from tests.training.worlds import ROOT

EVERY = 40
"""Steps between two checkpoints."""
RECIPE = (
    "--config=configs/digits.py",
    "--config.model.name=resnet10",
    "--config.model.width=4",
    "--config.batch.microbatch=4",
    "--config.schedule.warmup=30 steps",
    "--config.schedule.peak=1.0",
    "--config.run.evaluate_every=60 steps",
    "--config.run.layers_every=30 steps",
    "--config.run.log_every=1 steps",
    f"--config.run.checkpoint_every={EVERY} steps",
)
KILLS_A_RUN = 5
SAVES = 0.3
"""Share of the kills that are aimed at a save; the others come at any time, also in the start."""


def attempt(place, steps, after_s=None, at_save=False):
    """Train until the end, or until a kill; return the log, the exit code and the seconds."""
    log = place.logs.with_suffix(".log")
    began, due = time.monotonic(), None
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [
                sys.executable,
                "train.py",
                *RECIPE,
                f"--config.schedule.length={steps} steps",
                f"--workdir={place.url}",
            ],
            cwd=ROOT,
            env=os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"},
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        while process.poll() is None:
            assert time.monotonic() < began + 600, log.read_text()[-3000:]
            if not at_save or list(place.logs.glob("checkpoints/.*.tmp")):
                due = due or time.monotonic()
            waited = time.monotonic() - (began if not at_save else due or time.monotonic())
            if after_s is not None and waited >= after_s:
                break
            time.sleep(0.002)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return log.read_text(errors="replace"), process.wait(), time.monotonic() - began


def evidence(place):
    """All in which two runs must agree."""
    newest = steps_in(place)[0]
    found = {"newest": newest, "files": sorted(place.files("checkpoints"))}
    found |= manifest_of(place, newest).arrays
    return found | {
        "rows": worlds.rows(place.logs),
        "layers": read_rows(place.logs / "layers.jsonl"),
    }


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("kills", "steps"),
    [
        pytest.param(2, 80, marks=pytest.mark.slow),
        pytest.param(50, 400, marks=pytest.mark.accuracy),
    ],
)
def test_kills_lose_nothing(kills, steps, tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    draw, whole = random.Random(kills), LocalPlace(tmp_path / "whole")
    log, code, _ = attempt(whole, steps)
    assert code == 0, log[-3000:]
    whole_s = attempt(LocalPlace(tmp_path / "again"), steps)[2]  # its programs are compiled now
    expected, left, runs = evidence(whole), kills, 0
    assert expected["newest"] == steps
    while left > 0:
        runs += 1
        place, code = LocalPlace(tmp_path / f"run_{runs}"), None
        for number in range(KILLS_A_RUN + 1):
            before = steps_in(place)
            at_save = draw.random() < SAVES
            after_s = draw.uniform(0, 0.05 if at_save else whole_s)
            last = number == KILLS_A_RUN or left == 0
            log, code, _ = attempt(place, steps, None if last else after_s, at_save)
            resumed = re.search(r"^resuming from \S*?(\d+)\.safetensors", log, re.MULTILINE)
            if resumed or "compiled " in log:
                assert (int(resumed[1]) if resumed else 0) == max(before, default=0), log[-3000:]
            if code == 0:
                break
            assert code == -signal.SIGKILL, log[-3000:]
            left -= 1
        assert code == 0, log[-3000:]
        assert evidence(place) == expected
    print(f"\n{kills} kills in {runs} runs of {steps} steps: all results bitwise equal")
