"""Update rules, the learning-rate schedule, and which parameter gets which part of a rule.

The rules are optax transformations that compose in `optax.chain`. They count no steps: the one
clock of a run is its sample position, which the host owns, so every `update` is given its
`learning_rate`, the value of a `Schedule` at that position.
"""

from largebatch.optim.lars import Flavour, LarsState, lars
from largebatch.optim.norms import Layout, norms_in
from largebatch.optim.parameters import KINDS, kinds, mask, path_names
from largebatch.optim.rates import Rates
from largebatch.optim.report import LayerReport, by_path, global_norm
from largebatch.optim.schedules import Decay, Schedule, peak_rate
from largebatch.optim.sgd import SgdState, sgd

__all__ = [
    "KINDS",
    "Decay",
    "Flavour",
    "LarsState",
    "LayerReport",
    "Layout",
    "Rates",
    "Schedule",
    "SgdState",
    "by_path",
    "global_norm",
    "kinds",
    "lars",
    "mask",
    "norms_in",
    "path_names",
    "peak_rate",
    "sgd",
]
