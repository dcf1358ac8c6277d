"""Trials as jobs of SLURM, an array at a time, through submitit."""

import contextlib
import dataclasses
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from largebatch.errors import UserError
from largebatch.fault_tolerance.exit_codes import FAILED, PREEMPTED
from largebatch.tools.sweep.executors import Handle, Job

Cluster = Literal["slurm", "local"]
_LOST_AFTER = 5
"""Answers in a row in which the cluster does not know a job that an earlier sweep submitted."""
_WAITING = ("PENDING", "REQUEUED", "READY")


@dataclasses.dataclass(frozen=True)
class Resources:
    """What each trial asks the cluster for.

    Attributes:
        minutes: of wall time.
        gpus: on its one node.
        cpus: cores; 0: the cluster's default.
        partition: empty: the cluster's default.
        others: further options of sbatch by name.
    """

    minutes: int = 24 * 60
    gpus: int = 0
    cpus: int = 0
    partition: str = ""
    others: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Call:
    """What a job of the cluster runs: the command of a trial, which it passes signals on to."""

    def __init__(self, command: Sequence[str], output: Path) -> None:
        """Runs nothing yet."""
        self.command, self.output = tuple(command), output
        self._process: subprocess.Popen | None = None

    def __call__(self) -> int:
        """Run it; the exit code."""
        self.output.parent.mkdir(parents=True, exist_ok=True)
        with self.output.open("ab") as stream:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
            )
        signal.signal(signal.SIGTERM, lambda *_: self._process.send_signal(signal.SIGTERM))
        return self._process.wait()

    def checkpoint(self) -> Any:
        """Before the cluster takes the node away: save, and be queued again (submitit's hook)."""
        from submitit.helpers import DelayedSubmission

        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            # Not wait(): we are in a signal handler on top of the one that waits already.
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        return DelayedSubmission(Call(self.command, self.output))


class SubmititExecutor:
    """Jobs of a SLURM cluster; or of submitit's own processes on this machine, to try it."""

    def __init__(
        self, folder: Path, cluster: Cluster, jobs: int, resources: Resources, *, all_at_once: bool
    ) -> None:
        """Submits nothing yet.

        Args:
          folder: for submitit's scripts and results.
          cluster: ``local`` runs processes here.
          jobs: that run at a time.
          resources: of each.
          all_at_once: hand over all trials as one array, of which the cluster runs ``jobs`` at a
            time.

        Raises:
          UserError: submitit, or SLURM, is not here; or it does not know an option.
        """
        try:
            import submitit
        except ImportError as error:
            raise UserError("--slurm needs submitit; run: pip install -e '.[sweep]'") from error
        if jobs < 1:
            raise UserError(f"--jobs={jobs} must be at least 1")
        if cluster == "slurm" and shutil.which("sbatch") is None:
            raise UserError(
                "--slurm finds no sbatch on this machine; run it on a login node, or try "
                "--slurm=local"
            )
        self.every_s = 5.0 if cluster == "slurm" else 0.5
        self._submitit, self._cluster, self._folder = submitit, cluster, folder.resolve()
        self.at_once = 1_000_000 if all_at_once and cluster == "slurm" else jobs
        self._executor = submitit.AutoExecutor(folder=self._folder, cluster=cluster)
        options: dict[str, Any] = {
            "name": "largebatch",
            "nodes": 1,
            "tasks_per_node": 1,
            "timeout_min": resources.minutes,
            "gpus_per_node": resources.gpus,
            "slurm_array_parallelism": jobs,
            "slurm_additional_parameters": dict(resources.others),
        }
        if resources.partition:
            options["slurm_partition"] = resources.partition
        if resources.cpus:
            options["cpus_per_task"] = resources.cpus
        try:
            self._executor.update_parameters(**options)
        except (ValueError, NameError, TypeError) as error:
            raise UserError(f"--slurm: {str(error).splitlines()[0]}; see --help") from error

    def start(self, jobs: Sequence[Job]) -> list[Handle]:
        """See `Executor.start`; several at a time are one array.

        Raises:
          UserError: the cluster refuses them.
        """
        calls = [Call(job.command, job.output) for job in jobs]
        try:
            with self._executor.batch():
                submitted = [self._executor.submit(call) for call in calls]
        except (self._submitit.core.utils.FailedJobError, OSError) as error:
            raise UserError(f"sbatch refuses the trials: {str(error).splitlines()[0]}") from error
        return [_Submitted(job, self._cluster) for job in submitted]

    def attach(self, token: str) -> Handle | None:
        """See `Executor.attach`: a job that still waits or runs, or has left its exit code."""
        if not token:
            return None
        kind = self._submitit.SlurmJob if self._cluster == "slurm" else self._submitit.LocalJob
        job = kind(folder=self._folder, job_id=token)
        if self._cluster == "local" and not job.paths.result_pickle.exists():
            return None  # it cannot be asked, but the lock of the trial is seen while it runs
        return _Submitted(job, self._cluster, attached=True)


class _Submitted:
    """A job of submitit's."""

    def __init__(self, job: Any, cluster: Cluster, *, attached: bool = False) -> None:
        self.token = str(job.job_id)
        self._job, self._cluster, self._attached = job, cluster, attached
        self._unknown = self._answers = 0

    def poll(self) -> int | None:
        """See `Handle.poll`; a job that the cluster took away counts as preempted."""
        if not self._job.done():
            return PREEMPTED if self._lost() else None
        if not self._job.paths.result_pickle.exists() and self._cluster == "local":
            return PREEMPTED
        try:
            return int(self._job.result())
        except Exception as error:  # no result, or what the call raised
            return FAILED if type(error).__name__ == "FailedJobError" else PREEMPTED

    def _lost(self) -> bool:
        """Whether the cluster has forgotten the job, as it does after days: it has long ended.

        One that was submitted just now is not known yet, and is not lost.
        """
        if not self._attached or self._job.state.upper() != "UNKNOWN":
            self._unknown = 0
            return False
        # The same answer is given again for up to a minute; answers are counted, not looks.
        if self._job.watcher.num_calls != self._answers:
            self._answers = self._job.watcher.num_calls
            self._unknown += 1
        return self._unknown >= _LOST_AFTER

    def stop(self) -> None:
        """See `Handle.stop`."""
        if self._cluster == "local":
            with contextlib.suppress(OSError):
                os.kill(int(self.token), signal.SIGTERM)  # submitit passes it on
        elif self._job.state.upper() in _WAITING:
            self._job.cancel(check=False)
        else:
            subprocess.run(["scancel", "--signal=TERM", self.token], check=False)

    def kill(self) -> None:
        """See `Handle.kill`."""
        self._job.cancel(check=False)
