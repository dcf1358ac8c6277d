"""Faults of one of several real processes: how the others end."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.training import worlds
from tests.training.worlds import ROOT, summary

OPTIONS = (
    "--config=configs/digits.py",
    *(f"--config.model.{name}={value}" for name, value in worlds.SMALL.items()),
    "--config.schedule.length=100000 steps",
    "--config.schedule.peak=1.0",
    "--config.schedule.warmup=1 epochs",
    "--config.run.log_every=1 steps",
    "--config.run.checkpoint_every=5 steps",
    "--config.batch.microbatch=1",
    "--config.health.peer_timeout_s=15",
)
pytestmark = pytest.mark.multiprocess


def history(workdir):
    """The complete lines of metrics.jsonl, which another process writes."""
    path = workdir / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


class Processes:
    """A training as real processes of one device each."""

    def __init__(self, workdir, count, *options, fault=()):
        self.workdir = workdir
        script = ["scripts/benchmarks/faulty.py", *fault, "--"] if fault else ["train.py"]
        command = [sys.executable, "scripts/launch_local.py", f"--processes={count}", "--"]
        self.launcher = subprocess.Popen(
            [*command, *script, f"--workdir={workdir}", *OPTIONS, *options],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def of(self, process):
        """The id of a process by its number: the launcher's children, in their order."""
        found = subprocess.run(
            ["pgrep", "-P", str(self.launcher.pid)], capture_output=True, text=True, check=True
        )
        return sorted(int(pid) for pid in found.stdout.split())[process]

    def until_step(self, step, within=600):
        limit = time.monotonic() + within
        while time.monotonic() < limit and self.launcher.poll() is None:
            if any(row["step"] >= step for row in history(self.workdir)):
                return
            time.sleep(0.05)
        raise AssertionError(self.end(1)[1][-3000:])

    def end(self, within=600):
        try:
            _, errors = self.launcher.communicate(timeout=within)
        except subprocess.TimeoutExpired:
            self.launcher.kill()
            raise
        return self.launcher.returncode, errors


@pytest.mark.slow
def test_a_signal_to_one_of_two_stops_both_at_one_step_and_one_resumes(tmp_path):
    run = Processes(tmp_path, 2)
    run.until_step(7)
    os.kill(run.of(1), signal.SIGTERM)
    code, errors = run.end()
    assert code == 75, errors[-3000:]
    stopped = summary(tmp_path)
    assert stopped["status"] == "preempted"
    step = stopped["steps"]
    assert (tmp_path / "checkpoints" / f"{step}.safetensors").exists()
    assert [row["step"] for row in history(tmp_path)] == list(range(1, step + 1))

    options = [f"--config.run.stop_after={step + 3} steps", "--resume=must"]
    alone = [f"--workdir={tmp_path}", *OPTIONS]
    done = subprocess.run(
        [sys.executable, "train.py", *alone, *options],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert [row["step"] for row in history(tmp_path)] == list(range(1, step + 4))


@pytest.mark.slow
def test_a_killed_process_is_named_and_the_other_ends(tmp_path):
    run = Processes(tmp_path, 2)
    run.until_step(6)
    victim = run.of(1)
    os.kill(victim, signal.SIGKILL)
    _, errors = run.end()
    assert f"pid {victim}" in errors
    assert summary(tmp_path)["status"] == "failed"
    assert (tmp_path / "checkpoints" / "5.safetensors").exists()
    assert not (tmp_path / "lock.json").exists()


@pytest.mark.slow
def test_when_process_0_is_killed_the_other_ends_with_69(tmp_path):
    """JAX would abort it within a second: the coordinator is gone."""
    run = Processes(tmp_path, 2)
    run.until_step(6)
    os.kill(run.of(0), signal.SIGKILL)
    code, errors = run.end()
    assert code == 69, errors[-3000:]
    assert "process 0 (coordinator)" in errors.splitlines()[-1]


@pytest.mark.slow
def test_an_error_of_one_process_ends_the_other_which_names_it(tmp_path):
    code, errors = Processes(tmp_path, 2, fault=("fail", "1", "4")).end()
    assert code == 1
    assert "RuntimeError: the fan has stopped" in errors  # process 1, with its traceback
    assert summary(tmp_path)["status"] == "failed"


@pytest.mark.slow
def test_when_one_process_hangs_all_end_with_their_stacks(tmp_path):
    limit = "--config.health.limit_s=30"
    code, errors = Processes(tmp_path, 2, limit, fault=("hang", "1", "4")).end()
    assert code == 70
    assert "health.limit_s=30" in errors
    assert summary(tmp_path)["status"] == "failed"
    stacks = "".join(path.read_text() for path in tmp_path.glob("stacks_*.txt"))
    assert "sleeps_for_ever" in stacks, (errors[-6000:], stacks)


@pytest.mark.slow
def test_with_a_deadline_a_slow_process_holds_up_nobody(tmp_path):
    # Process 3 waits 0.4 s in each of its four microbatches a step.
    done, errors = Processes(
        tmp_path,
        4,
        *("--config.model.name=resnet10", "--config.model.width=4", "--config.model.stem=small"),
        "--config.batch.workers=16",
        "--config.batch.images_per_worker=8",
        "--config.batch.deadline_s=0.2",
        "--config.schedule.length=40 steps",
        "--config.health.hosts_every=10 steps",
        fault=("slow", "3", "0.4"),
    ).end()
    assert done == 0, errors[-3000:]
    rows = history(tmp_path)[5:]
    # Two of the four microbatches of a process may be left out, of sixteen.
    assert 0.05 < sum(row["left_out"] for row in rows) / len(rows) <= 0.5
    losses = [row["loss"] for row in history(tmp_path)]
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    found = [row for row in events if row["event"] == "hosts"]
    assert len(found) == 4
    assert all(row["slowest"] == 3 for row in found)
    assert [row["slow"] for row in found] == [False, False, True, True]
