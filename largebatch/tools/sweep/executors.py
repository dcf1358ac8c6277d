"""Where trials run: processes of this machine, or jobs of SLURM through submitit."""

import contextlib
import dataclasses
import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from largebatch.environment import command_output
from largebatch.errors import UserError, one_line
from largebatch.fault_tolerance.exit_codes import FAILED, PREEMPTED
from largebatch.tools.sweep.trial import OUTPUT

Cluster = Literal["slurm", "local"]
_CHILD = Path(__file__).with_name("child.py")


@dataclasses.dataclass(frozen=True)
class Job:
    """An attempt at a trial: its number, the command to run, and its directory."""

    number: int
    command: tuple[str, ...]
    workdir: Path

    @property
    def output(self) -> Path:
        """The file to which output is appended."""
        return self.workdir / OUTPUT


@dataclasses.dataclass(frozen=True)
class Share:
    """The part of this machine that one of several jobs gets; empty: all of it."""

    cores: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()


def shares(jobs: int, cores: Sequence[int], gpus: Sequence[str]) -> list[Share]:
    """Divide the machine evenly among jobs; jobs share a core if there are fewer cores.

    Raises:
      UserError: more jobs than GPUs.
    """
    if gpus and jobs > len(gpus):
        raise UserError(f"--jobs={jobs}: expected at most --jobs={len(gpus)}, one for each GPU")
    if jobs == 1:
        return [Share()]
    if 0 < len(cores) < jobs:
        cores = [cores[job % len(cores)] for job in range(jobs)]
    return [Share(_part(cores, job, jobs), _part(gpus, job, jobs)) for job in range(jobs)]


def _part(items: Sequence, job: int, jobs: int) -> tuple:
    return tuple(items[job * len(items) // jobs : (job + 1) * len(items) // jobs])


def gpus_here(environ: Mapping[str, str]) -> list[str]:
    """Return the GPUs that JAX would use, in the form of CUDA_VISIBLE_DEVICES, opening none."""
    if environ.get("JAX_PLATFORMS", "").split(",")[0] == "cpu":
        return []
    if "CUDA_VISIBLE_DEVICES" in environ:
        names = [name.strip() for name in environ["CUDA_VISIBLE_DEVICES"].split(",")]
        # CUDA ignores what follows a name that is none, such as -1.
        return list(itertools.takewhile(lambda name: name and not name.startswith("-"), names))
    return (
        command_output("nvidia-smi", "--query-gpu=index", "--format=csv,noheader") or ""
    ).split()


def local_executor(jobs: int | None) -> "LocalExecutor":
    """Return an executor of this machine for some jobs; None: one for each GPU, or one."""
    gpus = gpus_here(os.environ)
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return LocalExecutor(shares(jobs or max(1, len(gpus)), cores, gpus))


class LocalExecutor:
    """Processes of this machine, each with its share."""

    every_s = 0.5

    def __init__(self, shared: Sequence[Share]) -> None:
        """Take the shares, one for each job at a time."""
        self.at_once = len(shared)
        self._free = list(shared)

    def start(self, jobs: Sequence[Job]) -> list["_Process"]:
        """Start a process for each job."""
        return [_Process(job, self._free) for job in jobs]

    def attach(self, token: str) -> None:
        """Find nothing: processes end with their sweep."""


class _Process:
    """A process, which gives its share back at its end."""

    token = ""

    def __init__(self, job: Job, free: list[Share]) -> None:
        share = free.pop(0)
        self._free, self._given = free, [share]
        gpus = {"CUDA_VISIBLE_DEVICES": ",".join(share.gpus)} if share.gpus else {}
        cores = ",".join(map(str, share.cores))
        job.workdir.mkdir(parents=True, exist_ok=True)
        with job.output.open("ab") as stream:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(_CHILD), str(os.getpid()), cores, *job.command],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=os.environ | gpus,
                process_group=0,  # Ctrl-C is for the sweep, which stops the trials itself
            )

    def poll(self) -> int | None:
        code = self._process.poll()
        if code is not None and self._given:
            self._free.append(self._given.pop())
        return code

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


class Call:
    """What a job of the cluster runs: the command of a trial, to which it passes signals on."""

    def __init__(self, command: Sequence[str], output: Path) -> None:
        """Run nothing yet."""
        self.command, self.output = tuple(command), output
        self._process: subprocess.Popen | None = None

    def __call__(self) -> int:
        """Run the command; return its exit code."""
        self.output.parent.mkdir(parents=True, exist_ok=True)
        with self.output.open("ab") as stream:
            process = self._process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT
            )
        signal.signal(signal.SIGTERM, lambda *_: process.send_signal(signal.SIGTERM))
        return process.wait()

    def checkpoint(self) -> Any:
        """Save and queue the job again when the cluster takes the node away (submitit's hook)."""
        from submitit.helpers import DelayedSubmission

        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            # Not wait(): this signal handler interrupts one.
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        return DelayedSubmission(Call(self.command, self.output))


class SubmititExecutor:
    """Jobs of a SLURM cluster; or processes of submitit on this machine, to try it."""

    def __init__(
        self,
        folder: Path,
        cluster: Cluster,
        jobs: int,
        resources: Mapping[str, Any],
        *,
        all_at_once: bool,
    ) -> None:
        """Submit nothing yet.

        Args:
          folder: for submitit's scripts and results.
          cluster: ``local`` runs processes here.
          jobs: that run at a time.
          resources: of each, as parameters of submitit.
          all_at_once: submit all trials as one array, of which the cluster runs ``jobs`` at a time.

        Raises:
          UserError: submitit or SLURM is absent, or submitit refuses an option.
        """
        try:
            import submitit
        except ImportError as error:
            raise UserError("--slurm needs submitit; run: pip install -e '.[sweep]'") from error
        if cluster == "slurm" and shutil.which("sbatch") is None:
            raise UserError(
                "--slurm: there is no sbatch on this machine; use a login node, or --slurm=local"
            )
        self.every_s = 5.0 if cluster == "slurm" else 0.5
        self.at_once = 1_000_000 if all_at_once and cluster == "slurm" else jobs
        self._submitit, self._cluster, self._folder = submitit, cluster, folder.resolve()
        self._executor = submitit.AutoExecutor(folder=self._folder, cluster=cluster)
        try:
            self._executor.update_parameters(
                name="largebatch",
                nodes=1,
                tasks_per_node=1,
                slurm_array_parallelism=jobs,
                **resources,
            )
        except (ValueError, NameError, TypeError) as error:
            raise UserError(f"--slurm: {one_line(error)}; see --help") from error

    def start(self, jobs: Sequence[Job]) -> list["_Submitted"]:
        """Submit jobs, several as one array.

        Raises:
          UserError: the cluster refuses them.
        """
        try:
            with self._executor.batch():
                calls = [Call(job.command, job.output) for job in jobs]
                submitted = [self._executor.submit(call) for call in calls]
        except (self._submitit.core.utils.FailedJobError, OSError) as error:
            raise UserError(f"sbatch refuses the trials: {one_line(error)}") from error
        return [_Submitted(job, self._cluster) for job in submitted]

    def attach(self, token: str) -> "_Submitted | None":
        """Find a job that waits, runs or has left its exit code; SLURM forgets others in days."""
        if not token:
            return None
        kind = self._submitit.SlurmJob if self._cluster == "slurm" else self._submitit.LocalJob
        job: Any = kind(folder=self._folder, job_id=token)
        # A local process cannot be asked, but holds the lock of its trial.
        asked = self._cluster == "slurm" and (job.get_info("cache") or job.get_info("force"))
        known = asked or job.paths.result_pickle.exists()
        return _Submitted(job, self._cluster) if known else None


class _Submitted:
    """A job of submitit."""

    def __init__(self, job: Any, cluster: Cluster) -> None:
        self.token = str(job.job_id)
        self._job, self._cluster = job, cluster

    def poll(self) -> int | None:
        if not self._job.done():
            return None
        if self._cluster == "local" and not self._job.paths.result_pickle.exists():
            return PREEMPTED
        try:
            return int(self._job.result())
        except Exception as error:  # no result: the cluster took the job away; or the call raised
            return FAILED if type(error).__name__ == "FailedJobError" else PREEMPTED

    def stop(self) -> None:
        """Ask it to save and end; cancel it while it waits."""
        if self._cluster == "local":
            with contextlib.suppress(OSError):
                os.kill(int(self.token), signal.SIGTERM)  # submitit passes it on
        elif self._job.state.upper() in ("PENDING", "REQUEUED", "READY"):
            self._job.cancel(check=False)
        else:
            subprocess.run(["scancel", "--signal=TERM", self.token], check=False)

    def kill(self) -> None:
        self._job.cancel(check=False)


Executor = LocalExecutor | SubmititExecutor
"""It starts jobs, at most `at_once`, and is polled every `every_s` seconds."""
Handle = _Process | _Submitted
"""A job: `poll` returns its exit code (-n for signal n) or None, `stop` lets it save and end."""
