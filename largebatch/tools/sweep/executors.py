"""Where trials run: what the sweep asks of an executor, and the one of local processes."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from largebatch.errors import UserError
from largebatch.tools.sweep.reading import OUTPUT

_CHILD = Path(__file__).with_name("child.py")


@dataclass(frozen=True)
class Job:
    """A turn at a trial.

    Attributes:
        number: of the trial.
        command: to be run.
        workdir: of the trial, where its output is kept.
    """

    number: int
    command: tuple[str, ...]
    workdir: Path

    @property
    def output(self) -> Path:
        """What it prints is appended there."""
        return self.workdir / OUTPUT


class Handle(Protocol):
    """A job that was started."""

    token: str
    """By which another process finds it again; empty where that cannot be."""

    def poll(self) -> int | None:
        """Its exit code, -n for signal n; None while it runs or waits."""
        ...

    def stop(self) -> None:
        """Ask it to save and end: SIGTERM."""
        ...

    def kill(self) -> None:
        """End it at once."""
        ...


class Executor(Protocol):
    """Starts jobs."""

    at_once: int
    """Jobs that may be in its hands at a time."""
    every_s: float
    """Seconds between two looks at them."""

    def start(self, jobs: Sequence[Job]) -> list[Handle]:
        """Start jobs, or put them into its queue."""
        ...

    def attach(self, token: str) -> Handle | None:
        """The job that an earlier sweep started; None if it has to be started again."""
        ...


@dataclass(frozen=True)
class Share:
    """The part of this machine that one of several jobs has; empty: all."""

    cores: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()


def shares(jobs: int, cores: Sequence[int], gpus: Sequence[str]) -> list[Share]:
    """The machine divided among jobs: cores evenly, one core for several where there are fewer.

    Raises:
      UserError: more jobs than GPUs.
    """
    if jobs < 1:
        raise UserError(f"--jobs={jobs} must be at least 1")
    if gpus and jobs > len(gpus):
        raise UserError(
            f"--jobs={jobs} with {len(gpus)} GPUs, and a training takes a whole one; give at most "
            f"--jobs={len(gpus)}"
        )
    if jobs == 1:
        return [Share()]
    made = []
    for job in range(jobs):
        few = len(cores) < jobs
        own = cores[job % len(cores) :][:1] if few else _part(cores, job, jobs)
        made.append(Share(tuple(own), tuple(_part(gpus, job, jobs))))
    return made


def _part(items: Sequence, job: int, jobs: int) -> Sequence:
    return items[job * len(items) // jobs : (job + 1) * len(items) // jobs]


def cores_here() -> list[int]:
    """The cores that this process may use; empty where the system does not say."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return sorted(os.sched_getaffinity(0))
    return []


def gpus_here(environ: Mapping[str, str]) -> list[str]:
    """The GPUs that JAX would use here, as CUDA_VISIBLE_DEVICES names them, without opening any."""
    if environ.get("JAX_PLATFORMS", "").split(",")[0] == "cpu":
        return []
    if "CUDA_VISIBLE_DEVICES" in environ:
        return [name.strip() for name in environ["CUDA_VISIBLE_DEVICES"].split(",") if name.strip()]
    if shutil.which("nvidia-smi") is None:
        return []
    try:
        listed = subprocess.run(
            ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return listed.stdout.split()


class LocalExecutor:
    """Processes of this machine, each with its share of it."""

    every_s = 0.5

    def __init__(self, shared: Sequence[Share]) -> None:
        """Divides the machine as told by ``shares``."""
        self.at_once = len(shared)
        self._free = list(shared)

    def start(self, jobs: Sequence[Job]) -> list[Handle]:
        """See `Executor.start`."""
        return [_Process(job, self._free.pop(0), self._free) for job in jobs]

    def attach(self, token: str) -> None:
        """Processes are not found again: they have ended with their sweep, or soon will."""


class _Process:
    """A process and the share that it gives back."""

    token = ""

    def __init__(self, job: Job, share: Share, free: list[Share]) -> None:
        self._share, self._free = share, free
        cores = ",".join(map(str, share.cores))
        environment = dict(os.environ)
        if share.gpus:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(share.gpus)
        job.workdir.mkdir(parents=True, exist_ok=True)
        with job.output.open("ab") as stream:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(_CHILD), str(os.getpid()), cores, *job.command],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=environment,
                process_group=0,  # Ctrl-C is for the sweep, which stops them in its own way
            )

    def poll(self) -> int | None:
        """See `Handle.poll`."""
        code = self._process.poll()
        if code is not None and self._share is not None:
            self._free.append(self._share)
            self._share = None
        return code

    def stop(self) -> None:
        """See `Handle.stop`."""
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """See `Handle.kill`."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
