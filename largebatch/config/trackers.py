"""The trackers that ``run.trackers`` selects; their packages are imported when one is opened."""

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
"""Called as factory(workdir, identity, config, warn), each returns a `tracking.Tracker`; users' own
are ``package.module:factory`` (`tracking.hosted.hosted_tracker`)."""
