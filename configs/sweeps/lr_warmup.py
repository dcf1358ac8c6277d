"""Learning rate × warm-up: what to tune first for a batch or a dataset that nobody has published.

    python scripts/sweep.py --sweep configs/sweeps/lr_warmup.py
    python scripts/sweep.py --sweep configs/sweeps/lr_warmup.py --config=configs/goyal2017_8k.py

Peaks from a quarter to four times the recipe's, each with warm-ups of 5 to 30 % of the training:
15 trials.
"""

from ml_collections import ConfigDict

from largebatch.config import Config
from largebatch.tools.sweep.space import Values, beside, peak_of, with_peak


def get_config() -> ConfigDict:
    """The digits, unless --config names another recipe."""
    return beside(__file__)


def sweep(config: Config) -> Values:
    """Peak × warm-up."""
    rates = with_peak(config, (), [(factor * peak_of(config),) for factor in (0.25, 0.5, 1, 2, 4)])
    return {**rates, "schedule.warmup": ["5 %", "15 %", "30 %"]}
