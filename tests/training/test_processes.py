"""Trainings of real processes: against one process, with faults, killed, resumed, in a bucket."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from largebatch.checkpoint.checkpoints import manifest_of
from largebatch.checkpoint.place import BucketPlace
from largebatch.cli import split_overrides
from largebatch.config import load
from largebatch.environment import detect_cluster
from largebatch.errors import UserError
from largebatch.object_store import Bucket
from largebatch.parallel.processes import initialise
from largebatch.training import session
from tests.training import worlds
from tests.training.worlds import ROOT, slow, summary

OPTIONS = (
    "--config=configs/digits.py",
    *(f"--config.model.{name}={value}" for name, value in worlds.SMALL.items()),
    "--config.schedule.length=6 steps",
    "--config.schedule.warmup=1 steps",
    "--config.schedule.peak=1.0",
    "--config.run.log_every=1 steps",
    "--config.run.evaluate_every=3 steps",
    "--config.run.checkpoint_every=3 steps",
)
LONG = (
    "--config.schedule.length=100000 steps",
    "--config.schedule.warmup=1 epochs",
    "--config.run.evaluate_every=1 epochs",
    "--config.run.checkpoint_every=5 steps",
    "--config.batch.microbatch=1",
    "--config.health.peer_timeout_s=15",
)
two_processes = pytest.mark.multiprocess


def history(workdir):
    """The complete lines of metrics.jsonl, which another process writes."""
    path = workdir / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


class Processes:
    """A training as real processes of one device each, or as one process with two devices."""

    def __init__(self, workdir, count, *options, fault=(), cache=None):
        self.workdir = workdir
        script = ["tests/faulty.py", *fault, "--"] if fault else ["train.py"]
        command = ["scripts/launch_local.py", f"--processes={count}", "--"] if count > 1 else []
        alone = {"JAX_NUM_CPU_DEVICES": "2", "JAX_PLATFORMS": "cpu"} if count == 1 else {}
        place = {"XDG_CACHE_HOME": str(cache)} if cache else {}
        self.launcher = subprocess.Popen(
            [sys.executable, *command, *script, f"--workdir={workdir}", *OPTIONS, *options],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)} | alone | place,
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def of(self, process):
        """The id of a process by its number: the launcher's children, in their order."""
        found = subprocess.run(
            ["pgrep", "-P", str(self.launcher.pid)], capture_output=True, text=True, check=True
        )
        return sorted(int(pid) for pid in found.stdout.split())[process]

    def until(self, condition):
        limit = time.monotonic() + 600
        while time.monotonic() < limit and self.launcher.poll() is None:
            if condition():
                return
            time.sleep(0.05)
        raise AssertionError(self.end(1)[1][-3000:])

    def until_step(self, step):
        self.until(lambda: any(row["step"] >= step for row in history(self.workdir)))

    def kill(self):
        os.killpg(self.launcher.pid, signal.SIGKILL)
        self.launcher.communicate()

    def end(self, within=600):
        try:
            self.output, errors = self.launcher.communicate(timeout=within)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        return self.launcher.returncode, errors


def run(workdir, count, *options, **more):
    """Train to the end; return what was printed."""
    processes = Processes(workdir, count, *options, **more)
    code, errors = processes.end()
    assert code == 0, errors[-3000:]
    return processes.output


# ---- Equal to one process


@two_processes
@pytest.mark.parametrize("span", [slow("1"), "all"])
def test_two_processes_equal_one(tmp_path, span):
    one, two = tmp_path / "one", tmp_path / "two"
    # A microbatch is chosen by the memory that all have; with a span of all there is no choice.
    options = [f"--config.norm.span={span}", "--config.batch.microbatch=auto"]
    alone = load("digits", split_overrides([*OPTIONS[1:], *options])[0])
    session.run(alone, session.Request(Path("digits"), one), devices=jax.devices()[:2])
    assert run(two, 2, *options).count("complete") == 1  # process 0 alone prints
    assert json.loads((two / "config.json").read_text())["facts"]["processes"] == 2
    first, second = history(one), history(two)
    assert len(first) == len(second) == 6
    for a, b in zip(first, second, strict=True):
        # The same two devices, the same programs; only the sum of two numbers goes another way.
        for name in ("loss", "gradient_norm", "validation/loss"):
            if name in a:
                np.testing.assert_allclose(b[name], a[name], rtol=1e-5, err_msg=name)
        for name in ("samples", "top1", "validation/top1"):
            assert a.get(name) == b.get(name)


@two_processes
@pytest.mark.slow
def test_two_processes_begin_with_weights_and_trace_steps(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    run(first, 1, "--config.run.stop_after=3 steps")
    frozen = "--config.optimizer.lr_mults=(stem|norm)/.*: 0"
    more = [frozen, "--config.data.validation_sets=same=digits", "--config.norm.statistics=precise"]
    run(second, 2, f"--init_from={first}", "--config.run.profile=2:5", *more)
    assert list(second.glob("profile/plugins/profile/*/*.xplane.pb"))
    assert history(second)[0]["loss"] < history(first)[0]["loss"]
    assert history(second)[-1]["same/loss"] == history(second)[-1]["validation/loss"]


@two_processes
@pytest.mark.slow
def test_a_dry_run_of_two_processes(tmp_path):
    output = run(tmp_path / "run", 2, "--dry_run")
    for line in ("processes .*2, alike", "run directory .*free", "checkpoint .*bitwise identical"):
        assert re.search(line, output), output
    assert not list(tmp_path.iterdir())


PAIR = """
import socket, sys
from largebatch.parallel import processes
processes.initialise()
import jax
import numpy as np
from largebatch.training import checks
from largebatch.training.stage import Stage
from largebatch.training.state import Metrics, TrainState
from largebatch.training.timing import Clock
from tests.training import worlds
i = jax.process_index()
print(
    processes.agreed_minimum([3 * 2**32, 120_629_000_000][i]) == 3 * 2**32,
    processes.agreed_minimum([2**31 + 5, 7][i]) == 7,
    processes.agree(2**40 + 1),
    processes.agree(2**40 + i),
    processes.first_process_does(lambda: 5),
)
def told(failing):
    try:
        return processes.each_process_does(lambda: 7 // abs(i - failing))
    except Exception as error:
        return type(error).__name__
print(told(0), told(1), told(2))

name = [socket.gethostname(), "knoten-süd-" + 80 * "x"][i]
socket.gethostname = lambda: name
clock = Clock()
times = checks.HostTimes(clock, 6)
clock.train_s, clock.wait_s = 2.0, 4 * [0.01, 0.02][i]
times.note([0.1, 0.3][i])
print(checks.straggler_line(times.compare(10)))

made = worlds.steps(worlds.config(model=worlds.SMALL_TWO), 2, 4, "float32")
def placed(*values):
    sharding = jax.NamedSharding(made.mesh, jax.P())
    array = np.array(values, np.float32)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])
metrics = Metrics(placed(0, 0, 0, 0))
first, wrong = (TrainState({"a": placed(1, x)}, {}, {"b": placed(2)}) for x in (2, 2 + i))
stage, hosts = Stage(made), ("first", "second")
print(checks.differences(stage, (first, metrics), (first, metrics), hosts))
row = checks.differences(stage, (first, metrics), (wrong, metrics), hosts)
print(checks.corruption_line(row, 2, may_be_harmless=False))
"""


@two_processes
def test_processes_agree_on_numbers_failures_times_and_differences(tmp_path):
    printed = worlds.printed_by_two(PAIR, tmp_path)
    numbers, failures, slowest, same, differs = printed[-5:]
    assert numbers == "True True True False 5"  # beyond 32 bits
    assert failures == "ZeroDivisionError UserError 3"
    assert "process 1 (knoten-süd-" + 52 * "x" + ")" in slowest  # the first 64 bytes
    assert "2.91" in slowest
    assert same == "None"
    # Process 0 reports it, where nothing differs.
    assert "params/a" in differs
    assert "process 1 (second)" in differs


# ---- Faults of one process: how the others end


@two_processes
@pytest.mark.slow
def test_a_signal_to_one_of_two_stops_both_at_one_step_and_one_resumes(tmp_path):
    processes = Processes(tmp_path, 2, *LONG)
    processes.until_step(7)
    os.kill(processes.of(1), signal.SIGTERM)
    code, errors = processes.end()
    assert code == 75, errors[-3000:]
    assert summary(tmp_path)["status"] == "preempted"
    step = summary(tmp_path)["steps"]
    assert (tmp_path / "checkpoints" / f"{step}.safetensors").exists()
    assert [row["step"] for row in history(tmp_path)] == list(range(1, step + 1))
    run(tmp_path, 1, *LONG, f"--config.run.stop_after={step + 3} steps", "--resume=must")
    assert [row["step"] for row in history(tmp_path)] == list(range(1, step + 4))


@two_processes
@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_process_is_named_and_the_other_ends(victim, tmp_path):
    """If process 0 is killed, JAX would abort the other within a second: no coordinator."""
    processes = Processes(tmp_path, 2, *LONG)
    processes.until_step(6)
    pid = processes.of(victim)
    os.kill(pid, signal.SIGKILL)
    code, errors = processes.end()
    if victim == 0:
        assert code == 69, errors[-3000:]
        assert "process 0 (coordinator)" in errors.splitlines()[-1]
        return
    assert f"pid {pid}" in errors
    assert summary(tmp_path)["status"] == "failed"
    saved = [int(path.stem) for path in (tmp_path / "checkpoints").glob("*.safetensors")]
    assert max(saved) >= summary(tmp_path)["steps"] - 5  # the one that was being written, too
    assert not (tmp_path / "lock.json").exists()


@two_processes
@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "status", "word"),
    [
        ("fail", 1, "RuntimeError: the fan has stopped"),  # process 1, with its traceback
        ("hang", 70, "health.limit_s=30"),
    ],
)
def test_a_fault_of_one_process_ends_both(fault, status, word, tmp_path):
    limit = "--config.health.limit_s=30"
    code, errors = Processes(tmp_path, 2, *LONG, limit, fault=(fault, "1", "4")).end()
    assert code == status
    assert word in errors
    assert summary(tmp_path)["status"] == "failed"
    stacks = "".join(path.read_text() for path in tmp_path.glob("stacks_*.txt"))
    assert ("sleeps_for_ever" in stacks) == (fault == "hang"), (errors[-6000:], stacks)


@two_processes
@pytest.mark.slow
def test_with_a_deadline_a_slow_process_holds_up_nobody(tmp_path):
    # Process 3 waits 0.4 s in each of its four microbatches a step.
    run(
        tmp_path,
        4,
        *LONG,
        *("--config.model.name=resnet10", "--config.model.width=4", "--config.model.stem=small"),
        "--config.batch.workers=16",
        "--config.batch.images_per_worker=8",
        "--config.batch.deadline_s=0.2",
        "--config.schedule.length=40 steps",
        "--config.health.hosts_every=10 steps",
        fault=("slow", "3", "0.4"),
    )
    rows = history(tmp_path)[5:]
    # Two of the four microbatches of a process may be left out, of sixteen.
    assert 0.05 < sum(row["left_out"] for row in rows) / len(rows) <= 0.5
    losses = [row["loss"] for row in history(tmp_path)]
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    found = [row for row in events if row["event"] == "hosts"]
    assert all(row["slowest"] == 3 for row in found)
    assert [row["slow"] for row in found] == [False, False, True, True]


@two_processes
@pytest.mark.slow
@pytest.mark.parametrize("served", ["s3"], indirect=True)
def test_a_run_in_a_bucket_is_killed_and_resumes_on_another_host(served, tmp_path):
    _, url = served
    bucket, steps = Bucket(url), 30
    options = [*LONG, f"--config.schedule.length={steps} steps"]
    options.append("--config.run.checkpoint_every=10 steps")
    first = Processes(url, 2, *options, fault=("hang", "0", "25"), cache=tmp_path / "one")
    first.until(lambda: any(".safetensors" in name for name in bucket.objects("checkpoints")))
    first.kill()
    assert "summary.json" not in bucket.objects()
    run(url, 2, *options, "--resume=must", cache=tmp_path / "two")
    run(tmp_path / "whole", 2, *options)
    rows = [json.loads(line) for line in bucket.read("metrics.jsonl")[0].splitlines()]
    assert [row["step"] for row in rows if "step" in row] == list(range(1, steps + 1))
    digests = manifest_of(BucketPlace(bucket, tmp_path), steps).arrays
    assert digests == worlds.digests(tmp_path / "whole", steps)
    run(url, 2, *options, "--eval_only", cache=tmp_path / "four")
    found, left = (json.loads(bucket.read(name)[0]) for name in ("evaluation.json", "summary.json"))
    assert (found["steps"], found["top1"]) == (left["steps"], left["top1"]) == (steps, left["top1"])


# ---- Commands that differ


def commands(workdir, *given, only_second=(), environment=None):
    """Run train.py as two processes of which the second has more options; codes and errors."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    started = [
        subprocess.Popen(
            [
                *(sys.executable, "train.py", f"--workdir={workdir}", *given),
                *(only_second if process else ()),
            ],
            cwd=ROOT,
            env=os.environ
            | {
                "JAX_PLATFORMS": "cpu",
                "JAX_NUM_CPU_DEVICES": "1",
                "JAX_COORDINATOR_ADDRESS": address,
                "JAX_NUM_PROCESSES": "2",
                "JAX_PROCESS_ID": str(process),
            }
            | ((environment or {}) if process else {}),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for process in range(2)
    ]
    errors = [process.communicate(timeout=300)[1] for process in started]
    return [p.returncode for p in started], errors


@two_processes
@pytest.mark.parametrize(
    ("only_second", "environment", "words"),
    [
        (["--config.schedule.length=9 steps"], {}, "schedule.length: "),
        slow(["--config.schedule.paek=1"], {}, "schedule.paek"),
        slow([], {"LIBTPU_INIT_ARGS": "--xla_a=1"}, "LIBTPU_INIT_ARGS --xla_a"),
    ],
)
def test_two_commands_that_differ_end_together(tmp_path, only_second, environment, words):
    codes, errors = commands(tmp_path, only_second=only_second, environment=environment)
    assert codes == [2, 2], errors
    assert words in errors[0]
    assert "(process 1)" in errors[0]
    assert all(error.startswith("error: ") and error.count("\n") == 1 for error in errors)
    assert not list(tmp_path.iterdir())


# ---- How processes find each other


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({"SLURM_NTASKS": "4"}, None),  # sbatch without srun: one process
        ({"SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "4"}, "SLURM"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "Open MPI"),
        ({"TPU_WORKER_HOSTNAMES": "localhost"}, None),
        ({"TPU_WORKER_HOSTNAMES": "a,b"}, "TPU pod"),
    ],
)
def test_clusters_are_detected(environ, found):
    assert detect_cluster(environ) == found


def test_where_jax_knows_no_coordinator_of_open_mpi_the_script_is_named(monkeypatch):
    """As under version 5, which sets no OMPI_MCA_orte_hnp_uri."""
    monkeypatch.delenv("OMPI_MCA_orte_hnp_uri", raising=False)
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    with pytest.raises(UserError, match=r"scripts/launch/open_mpi"):
        initialise()


def test_a_tpu_host_trains_alone_only_where_no_cluster_is_configured(monkeypatch):
    def fails(**_):
        raise error

    monkeypatch.setattr("largebatch.environment._on_tpu_vm", lambda: True)
    monkeypatch.setattr(jax.distributed, "initialize", fails)
    error = ValueError("coordinator_address should be defined.")
    assert initialise() == "one process"
    error = RuntimeError("DEADLINE_EXCEEDED: 3 of 4 tasks connected")
    with pytest.raises(UserError, match="--processes=1"):
        initialise()


def test_a_platform_without_a_device_is_one_line():
    environ = {**os.environ, "JAX_PLATFORMS": "cuda"}
    command = [sys.executable, "train.py", "--dry_run"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environ)
    assert done.returncode == 2
    assert "JAX_PLATFORMS=cuda" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_numbers_of_processes_must_be_in_range(monkeypatch):
    with pytest.raises(UserError, match=r"--process=2 .*--processes=2"):
        initialise(coordinator="localhost:1", processes=2, process=2)
    monkeypatch.setenv("JAX_NUM_PROCESSES", "two")
    with pytest.raises(UserError, match="JAX_NUM_PROCESSES='two'"):
        initialise()
