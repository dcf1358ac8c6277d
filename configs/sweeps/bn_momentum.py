"""BatchNorm's momentum: at a large batch an epoch has few steps for running statistics to follow.

    python scripts/sweep.py --sweep configs/sweeps/bn_momentum.py

Shares of 0.5 to 0.99 kept at each update, and evaluation with the moving average or with statistics
recomputed from training batches (Wu & Johnson 2021, arXiv 2105.07576, section 3): 10 trials.
"""

from ml_collections import ConfigDict

from largebatch.tools.sweep.space import Values, beside


def get_config() -> ConfigDict:
    """The digits, unless --config names another recipe."""
    return beside(__file__)


def sweep() -> Values:
    """Momentum × what evaluation uses."""
    return {
        "norm.momentum": [0.5, 0.8, 0.9, 0.97, 0.99],
        "norm.statistics": ["ema", "precise"],
    }
