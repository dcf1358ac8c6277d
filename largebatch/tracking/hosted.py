"""Hosted experiment trackers: Weights & Biases, MLflow, and users' own.

They receive the rows of `metrics.jsonl` under the same names, and the events.
Project, server, key and offline mode come from the environment variables of each package
(WANDB_…, MLFLOW_…). A resumed run continues the same run there; rows after the checkpoint are sent
again with the same values.

The run's own files have every row, so a failing server neither ends nor delays training: a thread
calls the tracker, and the first failure is reported and ends the calls.
"""

import importlib.util
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from largebatch.config.registries import TRACKERS
from largebatch.errors import UserError, one_line
from largebatch.files import read_json, write_json
from largebatch.registry import resolve
from largebatch.tracking.tracker import Tracker
from largebatch.trees import flatten_paths

PROJECT = "largebatch"
"""Unless WANDB_PROJECT or MLFLOW_EXPERIMENT_NAME names another."""
CLOSE_S = 30.0
"""Longest wait, in seconds, for rows that are still to be sent when the run ends."""
_METHODS = ("scalars", "event", "close")
_MAX_PARAMS, _MAX_METRICS = 100, 1000  # of one call to MLflow


def check_installed(name: str) -> None:
    """Refuse a tracker whose package is missing.

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
    """Open a tracker by its name.

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
    if missing := [method for method in _METHODS if not callable(getattr(tracker, method, None))]:
        raise UserError(
            f"run.trackers={name}: {type(tracker).__name__} has no {', '.join(missing)}; a tracker "
            f"has {', '.join(_METHODS)}"
        )
    if identity := getattr(tracker, "identity", None):
        write_json(path, known | {name: identity})
    return _Background(name, tracker, warn)


class _Background:
    """Calls a tracker from a thread, until its first failure."""

    def __init__(self, name: str, tracker: Tracker, warn: Callable[[str], None]) -> None:
        self._name, self._tracker, self._warn = name, tracker, warn
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def scalars(self, step: int, values: Mapping[str, float | int | str]) -> None:
        self._calls.put(lambda: self._tracker.scalars(step, values))

    def event(self, name: str, step: int, samples: int, **values: float | str) -> None:
        self._calls.put(lambda: self._tracker.event(name, step, samples, **values))

    def close(self) -> None:
        """Wait until all is sent, for `CLOSE_S` at most; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._calls.put(self._tracker.close)
        self._calls.put(None)
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            self._warn(f"run.trackers={self._name}: not all rows are sent after {CLOSE_S:.0f} s")

    def _work(self) -> None:
        failed = False
        while (call := self._calls.get()) is not None:
            if failed:
                continue
            try:
                call()
            except Exception as error:
                failed = True
                self._warn(
                    f"run.trackers={self._name}: {type(error).__name__}: {one_line(error)}; the "
                    "run continues without it"
                )


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
        """Finish the run there."""
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
        """Finish the run there."""
        self._client.set_terminated(self.identity, status=self.status.upper())

    def _send(self, step: int, row: dict[str, float]) -> None:
        now = int(time.time() * 1000)
        metrics = [self._metric(key, value, now, step) for key, value in row.items()]
        for start in range(0, len(metrics), _MAX_METRICS):
            self._client.log_batch(self.identity, metrics=metrics[start : start + _MAX_METRICS])
