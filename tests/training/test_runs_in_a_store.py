"""A training of two processes in a bucket, killed and resumed where its local copy is lost."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from largebatch.checkpoint.checkpoints import manifest_of
from largebatch.checkpoint.place import BucketPlace
from largebatch.object_store import Bucket
from tests.training import worlds

STEPS = 60
OPTIONS = (
    "--config=configs/digits.py",
    *(f"--config.model.{name}={value}" for name, value in worlds.SMALL.items()),
    f"--config.schedule.length={STEPS} steps",
    "--config.schedule.peak=1.0",
    "--config.schedule.warmup=1 epochs",
    "--config.run.log_every=1 steps",
    "--config.run.checkpoint_every=20 steps",
    "--config.batch.microbatch=1",
)
pytestmark = [
    pytest.mark.multiprocess,
    pytest.mark.slow,
    pytest.mark.parametrize("served", ["s3"], indirect=True),
]


@pytest.fixture
def started(tmp_path):
    """Start a training of two processes; its local copies lie in a directory of `host`."""
    running = []

    def start(workdir, host, *options, script=("train.py",)):
        command = [sys.executable, "scripts/launch_local.py", "--processes=2", "--", *script]
        place = {"PYTHONPATH": str(worlds.ROOT), "XDG_CACHE_HOME": str(tmp_path / host)}
        running.append(
            subprocess.Popen(
                [*command, f"--workdir={workdir}", *OPTIONS, *options],
                cwd=worlds.ROOT,
                env=os.environ | place,
                start_new_session=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return running[-1]

    yield start
    for process in running:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def test_two_processes_are_killed_and_resume_on_another_host(served, started, tmp_path):
    _, url = served
    bucket = Bucket(url)
    hanging = ("scripts/benchmarks/faulty.py", "hang", "0", "50", "--")
    first = started(url, "one", script=hanging)
    limit = time.monotonic() + 600
    while not any(name.endswith(".safetensors") for name in bucket.objects("checkpoints")):
        assert time.monotonic() < limit
        assert first.poll() is None, first.communicate()[1][-3000:]
        time.sleep(0.05)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    assert "summary.json" not in bucket.objects()

    again = started(url, "two", "--resume=must")
    _, errors = again.communicate(timeout=600)
    assert again.returncode == 0, errors[-3000:]
    whole = started(tmp_path / "whole", "three")
    assert (whole.communicate(timeout=600), whole.returncode)[1] == 0

    rows = [json.loads(line) for line in bucket.read("metrics.jsonl")[0].splitlines()]
    assert [row["step"] for row in rows if "step" in row] == list(range(1, STEPS + 1))
    assert json.loads(bucket.read("summary.json")[0])["steps"] == STEPS
    digests = manifest_of(BucketPlace(bucket, tmp_path), STEPS).arrays
    assert digests == worlds.digests(tmp_path / "whole", STEPS)

    evaluated = started(url, "four", "--eval_only")
    _, errors = evaluated.communicate(timeout=600)
    assert evaluated.returncode == 0, errors[-3000:]
    found = json.loads(bucket.read("evaluation.json")[0])
    assert (found["steps"], found["top1"]) == (
        STEPS,
        json.loads(bucket.read("summary.json")[0])["top1"],
    )
