"""Where rows and events of a run go beside its own files: TensorBoard, W&B, MLflow, users' own.

Project, server, key and offline mode of a hosted tracker come from the environment variables of its
package (WANDB_…, MLFLOW_…). A resumed run continues the same run there; rows after the checkpoint
are sent again with the same values. The run's own files have every row, so a failing server neither
ends nor delays training.
"""

import importlib.util
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

from largebatch.config.registries import TRACKERS
from largebatch.errors import UserError, one_line
from largebatch.files import read_json, write_json
from largebatch.registry import resolve
from largebatch.trees import flatten_paths

PROJECT = "largebatch"
"""Unless WANDB_PROJECT or MLFLOW_EXPERIMENT_NAME names another."""
CLOSE_S = 30.0
"""Longest wait, in seconds, for rows that are still to be sent when the run ends."""
FLUSH_S = 30.0
"""Longest time, in seconds, that a row for TensorBoard stays in memory."""
CURVES = (
    "loss",
    "top1",
    "top5",
    "learning_rate",
    "gradient_norm",
    "noise_scale",
    "images_per_s",
    "input_wait",
)
"""Columns that TensorBoard shows, beside those of evaluations, whose names contain `/`."""
_MAX_PARAMS = 100  # of one call to MLflow


@runtime_checkable
class Tracker(Protocol):
    """Records the history of a run on process 0, in the training thread."""

    def scalars(self, step: int, values: Mapping[str, float | int | str]) -> None:
        """Record named values of one step.

        Args:
            step: optimizer steps completed.
            values: name → value; no name may be `step`.
        """
        ...

    def event(self, name: str, step: int, samples: int, **values: float | str) -> None:
        """Record an event that happens now.

        Args:
            name: `train_start`, before the first training example is read; `step`, after a step
                with its evaluation and checkpoint; `eval_start`; `eval_stop`, with `top1`, a
                fraction; `train_stop`; `checkpoint`, when one is begun; `preempted`; `skipped` and
                `rollback`, of a step that was not finite or diverged; `hosts`, with the times of
                all hosts; `replay`, with what differs, if anything does; `unhealthy`, with the
                reason why the run ends.
            step: optimizer steps completed.
            samples: training samples consumed.
            **values: details of the event.
        """
        ...

    def close(self) -> None:
        """Flush and release the files; nothing may be recorded afterwards."""
        ...


class TensorBoardTracker:
    """Writes `CURVES` and the results of evaluations to `workdir/tensorboard/`.

    The x axis is the step. Names without `/` get the prefix `train/`.
    """

    def __init__(self, workdir: Path, *, resume_step: int) -> None:
        """Open a new event file, which hides what a resumed run will write again.

        Args:
            workdir: run directory, created if absent.
            resume_step: step of the checkpoint resumed from; events of later steps are purged
                from display. 0 is a new run, which purges everything.
        """
        events, writer = _tensorboardx()
        self._event = events.Event
        directory = workdir / "tensorboard"
        directory.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads the files in the order of their names, whatever the clocks of the hosts.
        # Those of earlier versions begin with events.out.
        count = len(list(directory.iterdir()))
        self._writer = writer(str(directory / f"events.run{count:04d}"))
        # At each START but the first of a directory, TensorBoard purges the events of its step and
        # after. So a new run must write one as well.
        start = events.SessionLog(status=events.SessionLog.START)
        self._write(resume_step + 1 if resume_step else 0, session_log=start)
        self._flush()

    def scalars(self, step: int, values: Mapping[str, float | int | str]) -> None:
        curves = [
            {"tag": name if "/" in name else f"train/{name}", "simple_value": float(value)}
            for name, value in values.items()
            if "/" in name or name in CURVES
        ]
        self._write(step, summary={"value": curves})
        if time.monotonic() - self._flushed > FLUSH_S:
            self._flush()

    def event(self, name: str, step: int, samples: int, **values: float | str) -> None:
        """Do nothing: TensorBoard shows curves."""

    def close(self) -> None:
        self._writer.close()

    def _write(self, step: int, **content: Any) -> None:
        self._writer.write_event(self._event(wall_time=time.time(), step=step, **content))

    def _flush(self) -> None:
        self._writer.flush()
        self._flushed = time.monotonic()


def _tensorboardx() -> tuple[ModuleType, type]:
    """Return the messages of tensorboardX, and its writer without a thread.

    With a thread, a full disk would not be an error of the row. PyTorch, where it is installed, is
    hidden from the import: it takes seconds and brings CUDA libraries of its own.
    """
    hides = "torch" not in sys.modules
    if hides:
        sys.modules["torch"] = None
    try:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2
    finally:
        if hides:
            del sys.modules["torch"]
    return event_pb2, EventsWriter


def check_installed(name: str) -> None:
    """Refuse a hosted tracker whose package is missing.

    Raises:
        UserError: it is not installed, or a user's own tracker cannot be imported.
    """
    if name not in TRACKERS:
        resolve(name, TRACKERS, "run.trackers")
    elif importlib.util.find_spec(name) is None:
        raise UserError(f"run.trackers={name} needs its package; pip install -e '.[{name}]'")


def hosted_tracker(
    name: str,
    workdir: Path,
    *,
    resumes: bool,
    config: Mapping[str, Any],
    warn: Callable[[str], None],
) -> Tracker | None:
    """Open a tracker by its name; a thread calls it, until its first failure.

    The factory of the name is called as factory(workdir, identity, config, warn) and returns a
    `Tracker`. Its attribute `identity`, if it has one, is a text that the factory receives when the
    run resumes; for a new run it receives None.

    Args:
        name: of `TRACKERS`, or `package.module:factory`.
        workdir: run directory; its `trackers.json` keeps the identities.
        resumes: whether the run continues from a checkpoint.
        config: everything that the run resolved to, nested.
        warn: is called if the tracker fails; the run continues without it.

    Returns:
        The tracker; None if that of a resumed run, which may be unattended, cannot be opened.

    Raises:
        UserError: the package is not installed; the factory returns no tracker; or the factory
            fails for a new run.
    """
    check_installed(name)
    path = workdir / "trackers.json"
    try:
        known = read_json(path)
    except (OSError, ValueError):
        known = {}
    try:
        tracker = resolve(name, TRACKERS, "run.trackers")(
            workdir, known.get(name) if resumes else None, config, warn
        )
    except Exception as error:
        if resumes:
            warn(f"run.trackers={name}: {one_line(error)}; the run continues without it")
            return None
        raise UserError(
            f"run.trackers={name}: {one_line(error)}; fix its settings, or use "
            "--config.run.trackers='()'"
        ) from error
    if not isinstance(tracker, Tracker):
        raise UserError(
            f"run.trackers={name}: expected an object with the methods scalars, event and close, "
            f"got {type(tracker).__name__}; see docs/contributing.md#add-a-tracker"
        )
    if identity := getattr(tracker, "identity", None):
        write_json(path, known | {name: identity})
    return _InThread(name, tracker, warn)


class _InThread:
    """Calls a tracker from a thread, until its first failure."""

    def __init__(self, name: str, tracker: Tracker, warn: Callable[[str], None]) -> None:
        self._name, self._tracker, self._warn = name, tracker, warn
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def scalars(self, step: int, values: Mapping[str, float | int | str]) -> None:
        self._calls.put(lambda: self._tracker.scalars(step, values))

    def event(self, name: str, step: int, samples: int, **values: float | str) -> None:
        self._calls.put(lambda: self._tracker.event(name, step, samples, **values))

    def close(self) -> None:
        """Wait until all is sent, for `CLOSE_S` at most."""
        self._calls.put(self._tracker.close)
        self._calls.put(None)
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            self._warn(f"run.trackers={self._name}: not all rows are sent after {CLOSE_S:.0f} s")

    def _work(self) -> None:
        try:
            while (call := self._calls.get()) is not None:
                call()
        except Exception as error:
            self._warn(
                f"run.trackers={self._name}: {type(error).__name__}: {one_line(error)}; the run "
                "continues without it"
            )
            while self._calls.get() is not None:
                pass


class _Hosted:
    """Rows of numbers, and how the run ended."""

    status = "failed"  # until an event says otherwise

    def scalars(self, step: int, values: Mapping[str, float | int | str]) -> None:
        self._send(step, {k: float(v) for k, v in values.items() if not isinstance(v, str)})

    def event(self, name: str, step: int, samples: int, **values: float | str) -> None:
        self.status = {"train_stop": "finished", "preempted": "killed"}.get(name, self.status)

    def _send(self, step: int, row: dict[str, float]) -> None:
        raise NotImplementedError


class WandbTracker(_Hosted):
    """A run of Weights & Biases; with WANDB_MODE=offline, in `workdir/wandb/`."""

    def __init__(
        self,
        workdir: Path,
        identity: str | None,
        config: Mapping[str, Any],
        warn: Callable[[str], None],
    ) -> None:
        """Open the run of this identity, or a new one."""
        import wandb

        self._run = wandb.init(
            project=None if "WANDB_PROJECT" in os.environ else PROJECT,
            dir=workdir,
            id=identity,
            name=workdir.name,
            resume="allow",
            config=dict(config),
            settings=wandb.Settings(console="off"),  # the terminal is the run's own
        )
        # W&B's own step cannot decrease, as it does in a resumed run: the step is a value.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        self.identity = self._run.id

    def close(self) -> None:
        self._run.finish(exit_code=0 if self.status == "finished" else 1)

    def _send(self, step: int, row: dict[str, float]) -> None:
        self._run.log({"step": step, **row})


class MlflowTracker(_Hosted):
    """A run at the server of MLFLOW_TRACKING_URI."""

    def __init__(
        self,
        workdir: Path,
        identity: str | None,
        config: Mapping[str, Any],
        warn: Callable[[str], None],
    ) -> None:
        """Open the run of this identity, or a new one."""
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        self._metric, self._client = Metric, MlflowClient()
        if identity is None:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
            found = self._client.get_experiment_by_name(name)
            experiment = found.experiment_id if found else self._client.create_experiment(name)
            identity = self._client.create_run(experiment, run_name=workdir.name).info.run_id
            flat = flatten_paths(config["config"])
            params = [Param(key.replace("/", "."), str(value)) for key, value in flat.items()]
            for start in range(0, len(params), _MAX_PARAMS):
                self._client.log_batch(identity, params=params[start : start + _MAX_PARAMS])
        else:
            self._client.update_run(identity, status="RUNNING")
        self.identity = identity

    def close(self) -> None:
        self._client.set_terminated(self.identity, status=self.status.upper())

    def _send(self, step: int, row: dict[str, float]) -> None:
        now = int(time.time() * 1000)
        metrics = [self._metric(key, value, now, step) for key, value in row.items()]
        self._client.log_batch(self.identity, metrics=metrics)
