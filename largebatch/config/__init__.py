"""Options, their checks, and the resolved plan of a run."""

import importlib
from typing import TYPE_CHECKING, Any

from largebatch.config.facts import Facts
from largebatch.config.load import adjusted, load
from largebatch.config.schema import (
    Config,
    Difference,
    changed,
    default_config,
    differences,
    freeze,
    options,
    override,
    table,
)
from largebatch.config.stages import stages_of

if TYPE_CHECKING:
    from largebatch.config.resolution import (
        Plan,
        StagePlan,
        microbatch_candidates,
        norm_statistics,
        resolve,
    )

__all__ = [
    "Config",
    "Difference",
    "Facts",
    "Plan",
    "StagePlan",
    "adjusted",
    "changed",
    "default_config",
    "differences",
    "freeze",
    "load",
    "microbatch_candidates",
    "norm_statistics",
    "options",
    "override",
    "resolve",
    "stages_of",
    "table",
]

# Options and recipes do not import JAX, so that an invalid option is reported within a second.
# Plans need optax and JAX; these names are imported on first use.
_RESOLVED = {"Plan", "StagePlan", "microbatch_candidates", "norm_statistics", "resolve"}


def __getattr__(name: str) -> Any:
    """Import names that need JAX on first use."""
    if name not in _RESOLVED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("largebatch.config.resolution"), name)
