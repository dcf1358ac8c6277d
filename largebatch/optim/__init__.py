"""Optimizers, schedules, and the kinds of parameter that they apply to.

The optimizers are optax transformations and compose in `optax.chain`. They do not count steps. The
host holds the sample position of a run and passes `rates` to each `update`, the values of a
`RateSchedule` at this position.
"""

from largebatch.optim.clipping import with_clipping
from largebatch.optim.flavours import FLAVOURS, Flavour, LarsSettings, lars_settings
from largebatch.optim.lamb import LambState, lamb
from largebatch.optim.lars import LarsState, lars
from largebatch.optim.momentum import with_l2
from largebatch.optim.multipliers import multipliers, read_multipliers, with_multipliers
from largebatch.optim.norms import Layout, norms_in
from largebatch.optim.parameters import KINDS, kinds, mask, path_names, with_kinds
from largebatch.optim.rates import Blend, Rates, RateSchedule
from largebatch.optim.report import LayerReport, by_path, global_norm
from largebatch.optim.rmsprop_sgd import RmspropSgdState, rmsprop_sgd
from largebatch.optim.schedules import Decay, Schedule, peak_rate
from largebatch.optim.sgd import SgdState, sgd

__all__ = [
    "FLAVOURS",
    "KINDS",
    "Blend",
    "Decay",
    "Flavour",
    "LambState",
    "LarsSettings",
    "LarsState",
    "LayerReport",
    "Layout",
    "RateSchedule",
    "Rates",
    "RmspropSgdState",
    "Schedule",
    "SgdState",
    "by_path",
    "global_norm",
    "kinds",
    "lamb",
    "lars",
    "lars_settings",
    "mask",
    "multipliers",
    "norms_in",
    "path_names",
    "peak_rate",
    "read_multipliers",
    "rmsprop_sgd",
    "sgd",
    "with_clipping",
    "with_kinds",
    "with_l2",
    "with_multipliers",
]
