"""Registry of the trackers for ``run.trackers``; opening a tracker imports its package."""

from collections.abc import Callable
from typing import Any

from largebatch.registry import Registry

TRACKERS: Registry[Callable[..., Any]] = Registry(
    "run.trackers",
    {
        "wandb": "largebatch.tracking.hosted:WandbTracker",
        "mlflow": "largebatch.tracking.hosted:MlflowTracker",
    },
)
"""Factories ``factory(workdir, identity, config, warn)`` that return a `tracking.Tracker`; users'
own are ``package.module:factory`` (see `tracking.hosted.hosted_tracker`)."""
