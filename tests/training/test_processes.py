"""Real processes over loopback, against one process."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from largebatch.cli import split_overrides
from largebatch.config import load
from largebatch.environment import detect_cluster
from largebatch.errors import UserError
from largebatch.parallel.processes import initialise
from largebatch.training import session
from tests.training import worlds
from tests.training.worlds import ROOT

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


def launch(workdir, processes, *options):
    """Run train.py as real processes with one CPU device each, or as one with as many."""
    train = ["train.py", f"--workdir={workdir}", *OPTIONS, *options]
    if processes == 1:
        command = [sys.executable, *train]
        environment = os.environ | {"JAX_NUM_CPU_DEVICES": "2", "JAX_PLATFORMS": "cpu"}
    else:
        command = [
            sys.executable,
            "scripts/launch_local.py",
            f"--processes={processes}",
            "--",
            *train,
        ]
        environment = dict(os.environ)
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False
    )


def history(workdir):
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.multiprocess
@pytest.mark.parametrize("span", [pytest.param("1", marks=pytest.mark.slow), "all"])
def test_two_processes_equal_one(tmp_path, span):
    one, two = tmp_path / "one", tmp_path / "two"
    option = f"--config.norm.span={span}"
    # A microbatch is chosen by the memory that all have; with a span of all there is no choice.
    options = [option, "--config.batch.microbatch=auto"]
    alone = load("digits", split_overrides([*OPTIONS[1:], *options])[0])
    session.run(alone, session.Request(Path("digits"), one), devices=jax.devices()[:2])
    done = launch(two, 2, *options)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("complete") == 1  # process 0 alone prints
    assert json.loads((two / "config.json").read_text())["facts"]["processes"] == 2
    first, second = history(one), history(two)
    assert len(first) == len(second) == 6
    for a, b in zip(first, second, strict=True):
        # The same two devices, the same programs; only the sum of two numbers goes another way.
        for name in ("loss", "gradient_norm", "validation/loss"):
            if name in a:
                np.testing.assert_allclose(b[name], a[name], rtol=1e-5, err_msg=name)
        assert a["samples"] == b["samples"]
        assert a["top1"] == b["top1"]
        assert a.get("validation/top1") == b.get("validation/top1")


@pytest.mark.slow
@pytest.mark.multiprocess
def test_two_processes_begin_with_weights_and_trace_steps(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    assert launch(first, 1, "--config.run.stop_after=3 steps").returncode == 0
    frozen = "--config.optimizer.lr_mults=(stem|norm)/.*: 0"
    more = [frozen, "--config.data.validation_sets=same=digits", "--config.norm.statistics=precise"]
    done = launch(second, 2, f"--init_from={first}", "--config.run.profile=2:5", *more)
    assert done.returncode == 0, done.stderr[-2000:]
    assert list(second.glob("profile/plugins/profile/*/*.xplane.pb"))
    assert len(history(second)) == 6
    assert history(second)[0]["loss"] < history(first)[0]["loss"]
    assert history(second)[-1]["same/loss"] == history(second)[-1]["validation/loss"]


@pytest.mark.slow
@pytest.mark.multiprocess
def test_what_fails_on_process_0_ends_all(tmp_path):
    (tmp_path / "file").write_text("")
    done = launch(tmp_path / "file" / "run", 2)
    assert done.returncode == 2
    assert f"--workdir={tmp_path / 'file' / 'run'}" in done.stderr
    assert "Traceback" not in done.stderr


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


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """What two processes print of what they agree on."""
    return worlds.printed_by_two(PAIR, tmp_path_factory.mktemp("pair"))[-5:]


@pytest.mark.multiprocess
def test_processes_agree_on_numbers_beyond_32_bits_and_on_failures(printed):
    numbers, failures, *_ = printed
    assert numbers == "True True True False 5"
    assert failures == "ZeroDivisionError UserError 3"


@pytest.mark.multiprocess
def test_processes_tell_each_other_their_times_and_what_differs(printed):
    *_, slowest, same, differs = printed
    name = "knoten-süd-" + 52 * "x"  # the first 64 bytes
    assert f"process 1 ({name})" in slowest
    assert "2.91" in slowest
    assert same == "None"
    # Process 0 reports it, where nothing differs.
    assert "params/a" in differs
    assert "process 1 (second)" in differs


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, None),
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


def test_addresses_must_be_complete_and_in_range(monkeypatch):
    with pytest.raises(UserError, match="--processes, --process"):
        initialise(coordinator="localhost:1")
    with pytest.raises(UserError, match=r"--process=2 .*--processes=2"):
        initialise(coordinator="localhost:1", processes=2, process=2)
    monkeypatch.setenv("JAX_NUM_PROCESSES", "two")
    with pytest.raises(UserError, match="JAX_NUM_PROCESSES='two'"):
        initialise()


@pytest.mark.slow
@pytest.mark.multiprocess
def test_a_dry_run_of_two_processes(tmp_path):
    done = launch(tmp_path / "run", 2, "--dry_run")
    assert done.returncode == 0, done.stderr[-2000:]
    for line in ("processes .*2, alike", "run directory .*free", "checkpoint .*bitwise identical"):
        assert re.search(line, done.stdout), done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.multiprocess
def test_two_processes_resume_what_one_began(tmp_path):
    part = "--config.batch.microbatch=2"  # two microbatches a step
    done = launch(tmp_path, 1, part, "--config.run.stop_after=3 steps")
    assert done.returncode == 0, done.stderr[-2000:]
    done = launch(tmp_path, 2, part, "--resume=must")
    assert done.returncode == 0, done.stderr[-2000:]
    assert [row["step"] for row in history(tmp_path)] == [1, 2, 3, 4, 5, 6]
