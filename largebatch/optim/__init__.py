"""Optimizers, schedules, and the kinds of parameter that they apply to.

The optimizers are optax transformations and compose in `optax.chain`. They do not count steps. The
host holds the sample position of a run and passes `rates` to each `update`, the values of a
`RateSchedule` at this position.
"""

from largebatch.optim.lamb import lamb
from largebatch.optim.lars import FLAVOURS, LarsSettings, lars, lars_of, lars_settings
from largebatch.optim.norms import LayerReport, Layout, Norms, by_path, global_norm, norms_in
from largebatch.optim.parameters import (
    KINDS,
    multipliers,
    path_names,
    skipping,
    with_multipliers,
)
from largebatch.optim.rule import RuleState, with_clipping, with_l2
from largebatch.optim.schedules import Blend, Rates, RateSchedule, Schedule, peak_rate
from largebatch.optim.sgd import rmsprop_sgd, sgd

__all__ = [
    "FLAVOURS",
    "KINDS",
    "Blend",
    "LarsSettings",
    "LayerReport",
    "Layout",
    "Norms",
    "RateSchedule",
    "Rates",
    "RuleState",
    "Schedule",
    "by_path",
    "global_norm",
    "lamb",
    "lars",
    "lars_of",
    "lars_settings",
    "multipliers",
    "norms_in",
    "path_names",
    "peak_rate",
    "rmsprop_sgd",
    "sgd",
    "skipping",
    "with_clipping",
    "with_l2",
    "with_multipliers",
]
