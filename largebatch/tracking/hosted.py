"""Experiment trackers that many teams have already: Weights & Biases, MLflow, and users' own.

Both take what `metrics.jsonl` has, under the same names, and layers as `<quantity>/<path>`.
Project, server, key and offline mode come from their own environment variables (WANDB_…,
MLFLOW_…). A turn that resumes goes on with the same run there; rows after the checkpoint are sent
again, equal to the first ones.

The run's own files have every row, so a server that fails ends no training, nor holds it up: rows
are sent by a thread, and the first failure, which is told, is the last thing heard of it.
"""

import importlib.util
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from largebatch.config.trackers import TRACKERS
from largebatch.errors import UserError, one_line
from largebatch.files import read_json, write_json
from largebatch.tracking.tracker import Composite, Tracker, layer_scalars
from largebatch.trees import flatten_paths

PROJECT = "largebatch"
"""Where neither WANDB_PROJECT nor MLFLOW_EXPERIMENT_NAME says another."""
CLOSE_S = 30.0
"""Longest wait, in seconds, for rows that are still to be sent when the run ends."""
_METHODS = ("scalars", "layers", "event", "flush", "close")
_PARAMS, _METRICS = 100, 1000
"""What MLflow takes in one call."""


def check_installed(name: str) -> None:
    """Refuses a tracker whose package is not here.

    Raises:
        UserError: with how to install it; or a user's own cannot be imported.
    """
    if name not in TRACKERS:
        _ = TRACKERS[name]
    elif importlib.util.find_spec(name) is None:
        raise UserError(f"run.trackers={name} needs its package; pip install -e '.[{name}]'")


def hosted_tracker(
    name: str,
    workdir: Path,
    *,
    resume_step: int,
    config: Mapping[str, Any],
    warn: Callable[[str], None],
) -> Tracker:
    """Opens a tracker by its name.

    The factory of the name is called as factory(workdir, identity, config, warn) and returns a
    `Tracker`, which may have an `identity`, a text that the factory gets when the run resumes; of a
    new run it gets None.

    Args:
        name: of `TRACKERS`, or `package.module:factory`.
        workdir: directory of the run, in which `trackers.json` keeps what the run is called there.
        resume_step: step of the checkpoint resumed from; 0 is a new run.
        config: all that the run resolved to, nested.
        warn: is told, once, that rows cannot be sent any more; the run goes on.

    Raises:
        UserError: the package is not installed; the factory returns no tracker; or, of a new run,
            the tracker refuses. A run that resumes, perhaps by itself at night, goes on without.
    """
    check_installed(name)
    path = workdir / "trackers.json"
    try:
        known = read_json(path)
    except (OSError, ValueError):
        known = {}
    try:
        tracker = TRACKERS[name](workdir, known.get(name) if resume_step else None, config, warn)
    except Exception as error:
        if resume_step:
            warn(f"run.trackers={name}: {one_line(error)}; this turn goes on without")
            return Composite(())
        raise UserError(
            f"run.trackers={name}: {one_line(error)}; mend its settings, or go on with "
            "--config.run.trackers='()'"
        ) from error
    if missing := [method for method in _METHODS if not callable(getattr(tracker, method, None))]:
        raise UserError(
            f"run.trackers={name}: {type(tracker).__name__} has no {', '.join(missing)}; a tracker "
            f"has {', '.join(_METHODS)}"
        )
    if identity := getattr(tracker, "identity", None):
        write_json(path, known | {name: identity})
    return tracker if isinstance(tracker, _Hosted) else _Guarded(name, tracker, warn)


class _Guarded:
    """A user's own tracker, which is left alone after its first failure: no run ends by it."""

    def __init__(self, name: str, tracker: Tracker, warn: Callable[[str], None]) -> None:
        self._name, self._warn = name, warn
        self._tracker: Tracker | None = tracker

    def scalars(self, step: int, values: Mapping[str, float | int | str]) -> None:
        """See `Tracker.scalars`."""
        self._call("scalars", step, values)

    def layers(self, step: int, samples: int, values: Mapping[str, Mapping[str, float]]) -> None:
        """See `Tracker.layers`."""
        self._call("layers", step, samples, values)

    def event(self, name: str, step: int, samples: int, **values: float | str) -> None:
        """See `Tracker.event`."""
        self._call("event", name, step, samples, **values)

    def flush(self) -> None:
        """See `Tracker.flush`."""
        self._call("flush")

    def close(self) -> None:
        """See `Tracker.close`."""
        self._call("close")

    def _call(self, method: str, *arguments: Any, **values: Any) -> None:
        if self._tracker is None:
            return
        try:
            getattr(self._tracker, method)(*arguments, **values)
        except Exception as error:
            self._tracker = None
            self._warn(
                f"run.trackers={self._name}: {method} raised {type(error).__name__}: "
                f"{one_line(error)}; the run continues without it"
            )


class _Hosted:
    """What both have in common: a row is one call with numbers, made by a thread."""

    name: str
    identity: str
    """Of the run at the tracker."""

    def __init__(
        self,
        workdir: Path,
        identity: str | None,
        config: Mapping[str, Any],
        warn: Callable[[str], None],
    ) -> None:
        """Opens the run called `identity` there, or a new one."""
        self.identity = self._open(workdir, identity, config)
        self._warn = warn
        self._status = "failed"  # until the run says otherwise
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._failed = self._closed = False
        self._thread = threading.Thread(target=self._work, name=self.name, daemon=True)
        self._thread.start()

    def scalars(self, step: int, values: Mapping[str, float | int | str]) -> None:
        """Sends a row; texts are left out. See `Tracker.scalars`."""
        row = {k: float(v) for k, v in values.items() if not isinstance(v, str)}
        self._calls.put(lambda: self._send(step, row))

    def layers(self, step: int, samples: int, values: Mapping[str, Mapping[str, float]]) -> None:
        """Sends a row; see `Tracker.layers`."""
        row = layer_scalars(values)
        self._calls.put(lambda: self._send(step, row))

    def event(self, name: str, step: int, samples: int, **values: float | str) -> None:
        """Remembers how the run ends; see `Tracker.event`."""
        self._status = {"train_stop": "finished", "preempted": "killed"}.get(name, self._status)

    def flush(self) -> None:
        """Rows are sent as soon as they can be; `close` waits for them."""

    def close(self) -> None:
        """Waits until all is sent, but not for long; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._calls.put(lambda: self._finish(self._status))
        self._calls.put(None)
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            self._warn(f"run.trackers={self.name}: not all is sent after {CLOSE_S:.0f} s")

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            if self._failed:
                continue
            try:
                call()
            except Exception as error:
                self._failed = True
                self._warn(f"run.trackers={self.name}: {one_line(error)}; the run goes on without")

    def _open(self, workdir: Path, identity: str | None, config: Mapping[str, Any]) -> str:
        raise NotImplementedError

    def _send(self, step: int, row: dict[str, float]) -> None:
        raise NotImplementedError

    def _finish(self, status: str) -> None:
        raise NotImplementedError


class WandbTracker(_Hosted):
    """A run at Weights & Biases; with WANDB_MODE=offline, in `workdir/wandb/`."""

    name = "wandb"

    def _open(self, workdir: Path, identity: str | None, config: Mapping[str, Any]) -> str:
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
        # Its own count of steps cannot go back, as a resumed run does: the step is a value.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        return self._run.id

    def _send(self, step: int, row: dict[str, float]) -> None:
        self._run.log({"step": step, **row})

    def _finish(self, status: str) -> None:
        self._run.finish(exit_code=0 if status == "finished" else 1)


class MlflowTracker(_Hosted):
    """A run at the server of MLFLOW_TRACKING_URI."""

    name = "mlflow"

    def _open(self, workdir: Path, identity: str | None, config: Mapping[str, Any]) -> str:
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
            for start in range(0, len(params), _PARAMS):
                self._client.log_batch(identity, params=params[start : start + _PARAMS])
        else:
            self._client.update_run(identity, status="RUNNING")
        return identity

    def _send(self, step: int, row: dict[str, float]) -> None:
        now = int(time.time() * 1000)
        metrics = [self._metric(key, value, now, step) for key, value in row.items()]
        for start in range(0, len(metrics), _METRICS):
            self._client.log_batch(self.identity, metrics=metrics[start : start + _METRICS])

    def _finish(self, status: str) -> None:
        self._client.set_terminated(self.identity, status=status.upper())
