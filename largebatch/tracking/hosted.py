"""Experiment trackers that many teams have already: Weights & Biases, MLflow.

Both take what `metrics.jsonl` has, under the same names, and layers as `<quantity>/<path>`.
Project, server, key and offline mode come from their own environment variables (WANDB_…,
MLFLOW_…). A turn that resumes goes on with the same run there; rows after the checkpoint are sent
again, equal to the first ones.
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from largebatch.errors import UserError, one_line
from largebatch.files import write_json
from largebatch.tracking.tracker import Tracker
from largebatch.trees import flatten_paths

PROJECT = "largebatch"
"""Where neither WANDB_PROJECT nor MLFLOW_EXPERIMENT_NAME says another."""
_PARAMS, _METRICS = 100, 1000
"""What MLflow takes in one call."""


def hosted(
    name: str,
    workdir: Path,
    *,
    resume_step: int,
    config: Mapping[str, Any],
    warn: Callable[[str], None],
) -> Tracker:
    """Opens a tracker by its name.

    Args:
        name: `wandb` or `mlflow`.
        workdir: directory of the run, in which `trackers.json` keeps what the run is called there.
        resume_step: step of the checkpoint resumed from; 0 is a new run.
        config: all that the run resolved to, nested.
        warn: is told, once, that rows cannot be sent any more; the run goes on.

    Raises:
        UserError: the package is not installed, or the tracker refuses.
    """
    kind = {"wandb": WandbTracker, "mlflow": MlflowTracker}[name]
    path = workdir / "trackers.json"
    try:
        known = json.loads(path.read_text())
    except (OSError, ValueError):
        known = {}
    try:
        tracker = kind(workdir, known.get(name) if resume_step else None, config)
    except ModuleNotFoundError as error:
        raise UserError(
            f"run.trackers={name} needs the package {error.name}; pip install -e '.[{name}]'"
        ) from error
    except Exception as error:
        raise UserError(
            f"run.trackers={name}: {one_line(error)}; mend its settings, or go on with "
            "--config.run.trackers='()'"
        ) from error
    tracker.warn = warn
    write_json(path, known | {name: tracker.identity})
    return tracker


class _Hosted:
    """What both have in common: a row is one call with numbers."""

    identity: str
    """Of the run at the tracker."""
    name: str
    warn: Callable[[str], None] = staticmethod(print)
    _closed = False
    _failed = False

    def scalars(self, step: int, values: Mapping[str, float | int | str]) -> None:
        """Sends a row; texts are left out. See `Tracker.scalars`."""
        row = {k: float(v) for k, v in values.items() if not isinstance(v, str)}
        self._attempt(lambda: self._send(step, row))

    def layers(self, step: int, samples: int, values: Mapping[str, Mapping[str, float]]) -> None:
        """Sends a row; see `Tracker.layers`."""
        row = {
            f"{quantity}/{path}": float(value)
            for path, quantities in values.items()
            for quantity, value in quantities.items()
        }
        self._attempt(lambda: self._send(step, row))

    def event(self, name: str, step: int, samples: int, **values: float | str) -> None:
        """Not part of this record; see `Tracker.event`."""

    def flush(self) -> None:
        """Rows are sent by threads of the tracker; `close` waits for them."""

    def close(self) -> None:
        """Waits until all is sent; a second call does nothing."""
        if not self._closed:
            self._closed = True
            self._attempt(self._finish)

    def _attempt(self, action: Callable[[], None]) -> None:
        """What a server refuses must not end a training; its own files have every row."""
        try:
            action()
        except Exception as error:
            if not self._failed:
                self._failed = True
                self.warn(f"run.trackers={self.name}: {one_line(error)}; the run goes on without")

    def _send(self, step: int, row: dict[str, float]) -> None:
        raise NotImplementedError

    def _finish(self) -> None:
        raise NotImplementedError


class WandbTracker(_Hosted):
    """A run at Weights & Biases; with WANDB_MODE=offline, in `workdir/wandb/`."""

    name = "wandb"

    def __init__(self, workdir: Path, identity: str | None, config: Mapping[str, Any]) -> None:
        """Opens the run called `identity` there, or a new one."""
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
        self.identity = self._run.id
        # Its own count of steps cannot go back, as a resumed run does: the step is a value.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def _send(self, step: int, row: dict[str, float]) -> None:
        self._run.log({"step": step, **row})

    def _finish(self) -> None:
        self._run.finish()


class MlflowTracker(_Hosted):
    """A run at the server of MLFLOW_TRACKING_URI."""

    name = "mlflow"

    def __init__(self, workdir: Path, identity: str | None, config: Mapping[str, Any]) -> None:
        """Opens the run called `identity` there, or a new one."""
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        self._metric, self._client, self._sending = Metric, MlflowClient(), []
        if identity is None:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
            found = self._client.get_experiment_by_name(name)
            experiment = found.experiment_id if found else self._client.create_experiment(name)
            identity = self._client.create_run(experiment, run_name=workdir.name).info.run_id
            flat = flatten_paths(config["config"])
            params = [Param(key.replace("/", "."), str(value)) for key, value in flat.items()]
            for start in range(0, len(params), _PARAMS):
                self._client.log_batch(identity, params=params[start : start + _PARAMS])
        self.identity = identity

    def _send(self, step: int, row: dict[str, float]) -> None:
        now = int(time.time() * 1000)
        metrics = [self._metric(key, value, now, step) for key, value in row.items()]
        for start in range(0, len(metrics), _METRICS):
            part = metrics[start : start + _METRICS]
            self._client.log_batch(self.identity, metrics=part, synchronous=False)

    def _finish(self) -> None:
        self._client.set_terminated(self.identity)
