"""The launch templates: run under stand-ins for their launchers, and held against the code."""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import train as entry
from largebatch.config import Config, load
from largebatch.fault_tolerance import exit_codes as codes
from largebatch.parallel import processes
from largebatch.store_urls import url_of

ROOT = Path(entry.__file__).parent
LAUNCH = ROOT / "scripts" / "launch"
SCRIPTS = sorted(path.name for path in LAUNCH.glob("*.sh"))
FAKES = Path(__file__).with_name("launchers")
TINY = (
    "--config=configs/digits.py",
    "--config.model.name=resnet10",
    "--config.model.width=4",
    "--config.schedule.peak=1.0",
    "--config.schedule.warmup=1 epochs",
    "--config.schedule.length=100000 steps",
    "--config.run.log_every=1 steps",
    "--config.batch.microbatch=1",
)


class Launch:
    """A template under stand-ins, and what they noted."""

    def __init__(self, folder):
        self.folder, self.log = folder, folder / "calls.jsonl"
        self.bin = folder / "bin"
        self.bin.mkdir()
        for name in ("srun", "mpirun"):
            (self.bin / name).symlink_to(FAKES / name)
        for name in ("scontrol", "squeue", "gcloud"):
            (self.bin / name).symlink_to(FAKES / "recorder")

    def environment(self, **variables):
        # What the tests themselves run under is none of the job's.
        known = ("SLURM_", "OMPI_", "JAX_")
        base = {k: v for k, v in os.environ.items() if not k.startswith(known)}
        cache = {k: v for k, v in os.environ.items() if k == "JAX_COMPILATION_CACHE_DIR"}
        return {
            **base,
            **cache,
            "PATH": f"{self.bin}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
            "FAKE_LOG": str(self.log),
            **variables,
        }

    def start(self, script, *options, **variables):
        return subprocess.Popen(
            ["bash", str(LAUNCH / script), *options],
            cwd=ROOT,
            env=self.environment(**variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, script, *options, **variables):
        started = self.start(script, *options, **variables)
        out, err = started.communicate(timeout=600)
        return started.returncode, out + err

    @property
    def calls(self):
        text = self.log.read_text() if self.log.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    def called(self, name):
        return [call[1:] for call in self.calls if call[0] == name]


@pytest.fixture
def launch(tmp_path):
    return Launch(tmp_path)


def until_step(workdir, step, process, within=600):
    limit = time.monotonic() + within
    while time.monotonic() < limit and process.poll() is None:
        path = workdir / "metrics.jsonl"
        if path.exists() and len(path.read_text().splitlines()) >= step:
            return
        time.sleep(0.05)
    process.kill()
    raise AssertionError(process.communicate()[1][-3000:])


def summary(workdir):
    return json.loads((workdir / "summary.json").read_text())


# ---- all


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_sound(name):
    assert os.access(LAUNCH / name, os.X_OK)
    subprocess.run(["bash", "-n", str(LAUNCH / name)], check=True)
    if shutil.which("shellcheck") is None:
        pytest.skip("no shellcheck")
    subprocess.run(["shellcheck", str(LAUNCH / name)], check=True)


def commands(text):
    """The lines of scripts, pages and comments that call something of this checkout."""
    joined = re.sub(r"\\\n[# ]*", "", text)
    called = r"(?:train\.py|launch/\w+\.sh(?: run)?)"
    return re.findall(called + r" +(--[^\n`&|#]*)", joined)


def test_every_option_that_a_template_or_page_names_is_one():
    docs = ROOT / "docs"
    texts = [*LAUNCH.iterdir(), *(docs / "launch").glob("*.md")]
    seen = 0
    for path in texts:
        for found in commands(path.read_text()):
            words = [w for w in shlex.split(found) if "$" not in w]
            flags, overrides = entry.parse([w for w in words if w.startswith("--config")])
            assert flags.config.suffix == ".py", (path, words)
            if (ROOT / flags.config).exists():
                load(ROOT / flags.config, overrides)
                seen += 1
            else:
                assert "NAME" in str(flags.config), (path, flags.config)
    assert seen >= 8


# ---- SLURM

JOB = {"SLURM_JOB_ID": "4242", "SLURM_JOB_NAME": "largebatch", "SLURM_NTASKS": "2"}


@pytest.mark.parametrize(
    ("code", "state", "restarts", "requeued"),
    [
        (codes.MISTAKE, "RUNNING", "0", False),
        (codes.PREEMPTED, "RUNNING", "500", True),
        (codes.PREEMPTED, "CANCELLED", "0", False),
        (codes.HUNG, "RUNNING", "20", False),
    ],
)
def test_slurm_requeues_what_another_start_helps(launch, code, state, restarts, requeued):
    given = {"FAKE_CODES": str(code), "FAKE_STATE": state, "SLURM_RESTART_COUNT": restarts}
    done, _ = launch.run("slurm.sh", "--config=configs/digits.py", **JOB, **given)
    assert done == code
    assert launch.called("scontrol") == ([["requeue", "4242"]] if requeued else [])


def test_slurm_requeues_a_task_of_an_array_alone(launch):
    """Also the task that has the array's number: asked for that, squeue tells of all tasks."""
    array = {"SLURM_ARRAY_JOB_ID": "4242", "SLURM_ARRAY_TASK_ID": "4"}
    done, _ = launch.run("slurm.sh", **JOB, **array, FAKE_CODES="75", FAKE_ARRAY="4242")
    assert done == codes.PREEMPTED
    assert launch.called("scontrol") == [["requeue", "4242_4"]]


def test_slurm_copies_a_folder_to_each_node_whole_or_not_at_all(launch, tmp_path):
    shared, local = tmp_path / "shared" / "set", tmp_path / "local disk" / "set"
    (shared / "1.0").mkdir(parents=True)
    (shared / "1.0" / "shard").write_text("data")
    partial = local.with_name("set.partial")
    partial.mkdir(parents=True)  # of a copy that was cut short
    (partial / "old").write_text("")
    given = {**JOB, "SLURM_NTASKS": "1", "COPY": f"{shared}:{local}", "PYTHON": "true"}
    assert launch.run("slurm.sh", **given)[0] == 0
    assert (local / "1.0" / "shard").read_text() == "data"
    assert [path.name for path in local.parent.iterdir()] == ["set"]
    assert not (local / "old").exists()
    # What is there is kept; what cannot be copied ends the job.
    (shared / "1.0" / "shard").write_text("new")
    assert launch.run("slurm.sh", **given)[0] == 0
    assert (local / "1.0" / "shard").read_text() == "data"
    started = len(launch.called("srun"))
    missing = {**given, "COPY": f"{tmp_path}/nowhere:{tmp_path}/other"}
    assert launch.run("slurm.sh", **missing)[0] != 0
    assert len(launch.called("srun")) == started + 1


def test_slurm_is_requeued_by_a_signal_before_the_training(launch, tmp_path):
    slow = tmp_path / "bin" / "cp"
    slow.write_text(f"#!/bin/bash\ntouch {tmp_path}/began\nexec sleep 60 > /dev/null 2>&1\n")
    slow.chmod(0o755)
    given = {**JOB, "SLURM_NTASKS": "1", "COPY": f"{tmp_path}:{tmp_path}/copied"}
    started = launch.start("slurm.sh", **given)
    limit = time.monotonic() + 60
    while not (tmp_path / "began").exists() and time.monotonic() < limit:
        time.sleep(0.05)
    started.send_signal(signal.SIGUSR1)
    _, err = started.communicate(timeout=30)
    assert started.returncode == codes.PREEMPTED, err
    assert len(launch.called("srun")) == 1
    assert launch.called("scontrol")


def free_job():
    """A job whose port, which JAX makes of its number, is free here."""
    for number in range(700, 760):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", number % 2**12 + 65535 - 2**12 + 1))
            return str(number)
    raise AssertionError("no port")


@pytest.mark.slow
@pytest.mark.multiprocess
def test_slurm_saves_on_the_signal_and_is_requeued(launch, tmp_path):
    job = {**JOB, "SLURM_JOB_ID": free_job(), "WORKDIR": str(tmp_path / "run")}
    cpu = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
    started = launch.start("slurm.sh", *TINY, **job, **cpu)
    until_step(tmp_path / "run", 2, started)
    started.send_signal(signal.SIGUSR1)  # to the batch shell, as --signal=B: does
    _, err = started.communicate(timeout=600)
    assert started.returncode == codes.PREEMPTED, err[-3000:]
    assert launch.called("scontrol") == [["requeue", job["SLURM_JOB_ID"]]]
    stopped = summary(tmp_path / "run")
    assert stopped["status"] == "preempted"
    assert (tmp_path / "run" / "checkpoints" / f"{stopped['steps']}.safetensors").exists()
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["facts"]["processes"] == 2


# ---- Open MPI


@pytest.fixture
def python(tmp_path, launch):
    """A Python that only notes how it was called."""
    path = tmp_path / "bin" / "python"
    path.symlink_to(FAKES / "recorder")
    return str(path)


def test_open_mpi_tells_each_process_who_it_is(launch, python):
    rank = {
        "OMPI_COMM_WORLD_RANK": "5",
        "OMPI_COMM_WORLD_SIZE": "8",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "LARGEBATCH_COORDINATOR": "node7:62831",
    }
    done, _ = launch.run("open_mpi.sh", "--config=a.py", PYTHON=python, **rank)
    assert done == 0
    ((script, option, told),) = launch.called("python")
    assert (script, option) == ("train.py", "--config=a.py")
    assert told[processes.COORDINATOR] == "node7:62831"
    assert (told[processes.PROCESSES], told[processes.PROCESS]) == ("8", "5")
    assert told["JAX_LOCAL_DEVICE_IDS"] == "1"


# ---- one node


def test_one_node_shares_its_gpus_among_processes(launch, python):
    given = {"PYTHON": python, "FAKE_CODES": "69,2", "GPUS": "4", "PROCESSES": "2"}
    done, _ = launch.run("one_node.sh", "--config=a.py", **given)
    assert done == codes.MISTAKE  # that of the one that failed by itself
    told = [call[-1] for call in launch.called("python")]
    told.sort(key=lambda each: each[processes.PROCESS])
    assert [each["JAX_LOCAL_DEVICE_IDS"] for each in told] == ["0,1", "2,3"]
    assert {each[processes.PROCESSES] for each in told} == {"2"}
    assert len({each[processes.COORDINATOR] for each in told}) == 1
    assert launch.run("one_node.sh", GPUS="8", PROCESSES="3")[0] == codes.MISTAKE


# What a process does: "stop" freezes it; "wait:S:C" ends after S seconds with code C; "save" ends
# with 75 on SIGTERM. A child that sleeps shows whether what is killed leaves something behind.
ACTOR = """
import os, signal, subprocess, sys, time
act = sys.argv[-1].split(",")[int(os.environ["JAX_PROCESS_ID"])]
print(os.getpid(), file=open(f"{os.environ['FOLDER']}/{os.environ['JAX_PROCESS_ID']}", "a"))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
if act.startswith("stop"):
    quiet = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    child = subprocess.Popen(["sleep", "60"], **quiet)
    print(child.pid, file=open(f"{os.environ['FOLDER']}/child", "w"))
    os.kill(os.getpid(), signal.SIGSTOP)
if act in ("stop", "save"):
    time.sleep(300)
_, seconds, code = act.split(":")
time.sleep(float(seconds))
if int(code) < 0:
    os.kill(os.getpid(), -int(code))
sys.exit(int(code))
"""


@pytest.fixture(params=["launch_local", "one_node"])
def local(request, launch, tmp_path):
    """Start two processes that do as they are told, by either launcher of one machine."""
    actor = tmp_path / "actor.py"
    actor.write_text(ACTOR)
    (tmp_path / "folder").mkdir()

    def start(acts, **variables):
        if request.param == "launch_local":
            command = [sys.executable, "scripts/launch_local.py", "--processes=2", "--", str(actor)]
        else:
            command = ["bash", str(LAUNCH / "one_node.sh")]
            variables |= {"GPUS": "2", "PROCESSES": "2"}
            variables.setdefault("SCRIPT", str(actor))
        variables["FOLDER"] = str(tmp_path / "folder")
        return subprocess.Popen(
            [*command, acts],
            cwd=ROOT,
            env=launch.environment(**variables),
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


def lives(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.parametrize(
    ("acts", "code", "stopped"),
    [
        ("wait:1:69,stop", codes.PEER, 1),
        ("stop,wait:1:2", codes.MISTAKE, 0),  # the coordinator
        ("wait:1:0,stop", 128 + signal.SIGKILL, 1),  # nothing failed by itself
    ],
)
def test_a_stopped_process_is_killed_as_soon_as_another_ends(local, tmp_path, acts, code, stopped):
    started = time.monotonic()
    _, err = (process := local(acts)).communicate(timeout=60)
    assert process.returncode == code, err
    assert time.monotonic() - started < 30
    assert f"process {stopped} " in err
    child = int((tmp_path / "folder" / "child").read_text())
    assert not lives(child)


@pytest.mark.parametrize(
    ("acts", "code"),
    [
        ("wait:1:2,wait:2:1", codes.MISTAKE),  # the first
        ("wait:1:69,wait:2:2", codes.MISTAKE),  # 69 only says that another one failed
        ("wait:1:-9,wait:2:69", codes.PEER),  # and the code of a signal nothing
        ("wait:0:0,wait:0:0", 0),
    ],
)
def test_the_code_is_that_of_the_first_that_says_why(local, acts, code):
    _, err = (process := local(acts)).communicate(timeout=60)
    assert process.returncode == code, err


@pytest.mark.slow
def test_a_process_that_does_not_end_is_waited_for_and_killed(local):
    """The line names the process, and how long it has."""
    process = local("wait:0:2,wait:9:0", WAIT_S="6")
    _, err = process.communicate(timeout=60)
    assert process.returncode == codes.MISTAKE
    (line, *_) = [line for line in err.splitlines() if "waiting" in line]
    assert "process 1" in line
    assert re.search(r"\d+ s", line)


@pytest.mark.parametrize(
    ("script", "failures", "code", "starts"),
    [
        ("train.py", "69,70", codes.HUNG, 3),
        ("train.py", "2,69", codes.MISTAKE, 1),
        ("scripts/reproduce.py", "70,69", codes.HUNG, 1),  # it would begin anew
    ],
)
def test_one_node_starts_again_where_another_start_helps(
    launch, python, script, failures, code, starts
):
    given = {"PYTHON": python, "GPUS": "2", "PROCESSES": "2", "RESTARTS": "2", "SCRIPT": script}
    assert launch.run("one_node.sh", **given, FAKE_CODES=failures)[0] == code
    assert len(launch.called("python")) == 2 * starts


# ---- Kubernetes


def documents(name):
    yaml = pytest.importorskip("yaml")
    service, job = yaml.safe_load_all((LAUNCH / name).read_text())
    return service, job, job["spec"]["template"]["spec"]


@pytest.mark.parametrize(
    "name", ["kubernetes.yaml", "kubernetes_tpu.yaml", "kubernetes_store.yaml"]
)
def test_kubernetes_fits_the_code(name):
    service, job, pod = documents(name)
    spec, (container,) = job["spec"], pod["containers"]
    assert service["spec"]["selector"]["job-name"] == job["metadata"]["name"]
    assert pod["subdomain"] == service["metadata"]["name"]
    assert spec["completions"] == spec["parallelism"]
    # What is started again is what docs/reliability.md says.
    fail, stopped, _ = spec["podFailurePolicy"]["rules"]
    ends = {codes.FAILED, codes.MISTAKE}
    assert fail["onExitCodes"]["containerName"] == container["name"]
    assert (fail["action"], {*fail["onExitCodes"]["values"]}) == ("FailJob", ends)
    assert (stopped["action"], stopped["onExitCodes"]["values"]) == ("Ignore", [codes.PREEMPTED])
    assert pod["restartPolicy"] == "Never"  # without which there is no policy
    assert pod["terminationGracePeriodSeconds"] > Config().health.grace_s
    # Python is process 1 and runs what the recipe has.
    python, script, *options = container["command"]
    assert (python, script) == ("python", "$(SCRIPT)")
    assert {"name": "SCRIPT", "value": "train.py"} in container["env"]
    flags, overrides = entry.parse(options)
    load(ROOT / flags.config, overrides)
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert url_of(flags.workdir) or any(str(flags.workdir).startswith(place) for place in mounts)
    assert set(mounts.values()) == {volume["name"] for volume in pod["volumes"]}
