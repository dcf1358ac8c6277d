"""Real processes of a trivial command, here and through submitit."""

import os
import signal
import subprocess
import sys
import time

import pytest

from largebatch.errors import UserError
from largebatch.fault_tolerance import PREEMPTED
from largebatch.tools.sweep import child
from largebatch.tools.sweep.executors import (
    Job,
    LocalExecutor,
    Share,
    SubmititExecutor,
    gpus_here,
    shares,
)

PYTHON = sys.executable
# Says that it runs, then waits for SIGTERM, as a training would that saves.
OBEYS = """
import os, signal, sys, time
def end(*_):
    print("saved", flush=True)
    sys.exit(75)
signal.signal(signal.SIGTERM, end)
print("cores", sorted(os.sched_getaffinity(0)), os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
time.sleep(60)
"""


def wait(handle, seconds=30.0):
    until = time.monotonic() + seconds
    while (code := handle.poll()) is None:
        assert time.monotonic() < until
        time.sleep(0.02)
    return code


def wait_for(path, text, seconds=30.0):
    until = time.monotonic() + seconds
    while not (path.exists() and text in path.read_text()):
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_machine_is_divided():
    assert shares(1, [0, 1, 2, 3], ["0"]) == [Share()]
    assert [s.cores for s in shares(2, [0, 1, 2, 5, 7], [])] == [(0, 1), (2, 5, 7)]
    assert [s.cores for s in shares(3, [4, 6], [])] == [(4,), (6,), (4,)]
    assert [s.gpus for s in shares(2, [0, 1], ["a", "b", "c", "d"])] == [("a", "b"), ("c", "d")]
    with pytest.raises(UserError, match="at most --jobs=2"):
        shares(3, [0, 1, 2], ["0", "1"])


def test_gpus_are_named_without_being_opened():
    assert gpus_here({"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "0"}) == []
    assert gpus_here({"CUDA_VISIBLE_DEVICES": "3, GPU-5f"}) == ["3", "GPU-5f"]
    assert gpus_here({"CUDA_VISIBLE_DEVICES": ""}) == []
    assert gpus_here({"CUDA_VISIBLE_DEVICES": "-1"}) == []
    assert gpus_here({"CUDA_VISIBLE_DEVICES": "1,-1,2"}) == ["1"]


@pytest.mark.skipif(sys.platform != "linux", reason="cores are given away on Linux")
def test_local_processes_have_cores_of_their_own_and_stop_when_asked(tmp_path):
    cores = sorted(os.sched_getaffinity(0))
    executor = LocalExecutor([Share((cores[0],), ("7",)), Share((cores[-1],))])
    jobs = [Job(n, (PYTHON, "-c", OBEYS), tmp_path / f"{n:04d}") for n in range(2)]
    handles = executor.start(jobs)
    wait_for(jobs[0].output, f"cores [{cores[0]}] 7")
    wait_for(jobs[1].output, f"cores [{cores[-1]}] ")
    handles[0].stop()
    assert wait(handles[0]) == PREEMPTED
    assert "saved" in jobs[0].output.read_text()
    # Its share is free again, and what another attempt prints is appended.
    (again,) = executor.start([Job(0, (PYTHON, "-c", "print('more')"), tmp_path / "0000")])
    assert wait(again) == 0
    assert jobs[0].output.read_text().endswith("saved\nmore\n")
    handles[1].kill()
    assert wait(handles[1]) == -signal.SIGKILL


@pytest.mark.skipif(sys.platform != "linux", reason="processes follow their parent on Linux")
def test_a_trial_saves_and_ends_when_its_sweep_is_killed(tmp_path):
    """Also one whose sweep was gone before it looked."""
    output = tmp_path / "output.txt"
    starter = (
        "import os, subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-P', {child.__file__!r}, str(os.getpid()), '',"
        f" sys.executable, '-c', {OBEYS!r}], stdout=open({str(output)!r}, 'w'))\n"
        "time.sleep(60)\n"
    )
    sweep = subprocess.Popen([PYTHON, "-c", starter])
    wait_for(output, "cores")
    sweep.kill()
    sweep.wait()
    wait_for(output, "saved")
    late = subprocess.run([PYTHON, "-P", child.__file__, "1", "", PYTHON, "-c", "print(1)"])
    assert late.returncode == PREEMPTED


def test_submitit_runs_stops_and_finds_jobs_again(tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    executor = SubmititExecutor(
        tmp_path / "slurm", "local", 2, {"timeout_min": 5}, all_at_once=True
    )
    assert executor.at_once == 2
    jobs = [
        Job(0, (PYTHON, "-c", "import sys; print('error: words'); sys.exit(2)"), tmp_path / "0"),
        Job(1, (PYTHON, "-c", OBEYS), tmp_path / "1"),
    ]
    handles = executor.start(jobs)
    wait_for(jobs[1].output, "cores")
    assert handles[1].poll() is None
    handles[1].stop()
    assert [wait(handle) for handle in handles] == [2, PREEMPTED]
    assert "error: words" in jobs[0].output.read_text()
    assert "saved" in jobs[1].output.read_text()
    assert executor.attach(handles[0].token).poll() == 2  # of another sweep's time
    assert executor.attach("") is None
    assert executor.attach("99999999") is None
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="no sbatch"):
        SubmititExecutor(tmp_path, "slurm", 2, {}, all_at_once=True)


def test_a_slurm_array_asks_for_what_was_given(tmp_path, monkeypatch):
    """Against a made-up sbatch: one array of all trials, with partition, time, GPUs and others."""
    pytest.importorskip("submitit")
    for name, body in {
        "sbatch": "cp $1 $(dirname $0)/asked; echo Submitted batch job 42",
        "sacct": "echo 'JobID|State'; echo '42_0|PENDING'; echo '42_1|RUNNING'",
        "scancel": 'echo "$@" >> $(dirname $0)/cancelled',
        "srun": "",
    }.items():
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    resources = {
        "timeout_min": 90,
        "gpus_per_node": 2,
        "cpus_per_task": 6,
        "slurm_partition": "p1",
        "slurm_additional_parameters": {"account": "us"},
    }
    executor = SubmititExecutor(tmp_path / "slurm", "slurm", 3, resources, all_at_once=True)
    jobs = [Job(n, (PYTHON, "-c", "pass"), tmp_path / str(n)) for n in range(5)]
    handles = executor.start(jobs)
    asked = (tmp_path / "asked").read_text()
    for line in ("array=0-4%3", "partition=p1", "time=90", "cpus-per-task=6", "account=us"):
        assert f"#SBATCH --{line}\n" in asked
    assert "gpus-per-node=2" in asked
    assert [handle.token for handle in handles] == [f"42_{n}" for n in range(5)]
    assert handles[0].poll() is None
    handles[0].stop()  # it waits
    handles[1].stop()
    cancelled = (tmp_path / "cancelled").read_text().splitlines()
    assert cancelled == ["42_0", "--signal=TERM 42_1"]
    assert executor.attach("42_1").poll() is None
    assert executor.attach("43_0") is None  # SLURM forgets a job after days
