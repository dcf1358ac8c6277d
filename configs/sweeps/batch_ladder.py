"""A ladder of batches: how far the batch can grow before accuracy falls, and with which rate.

    python scripts/sweep.py --sweep configs/sweeps/batch_ladder.py

A quarter to four times the recipe's workers, epochs as they are; the peak rate grows linearly with
the batch (Goyal et al. 2017, arXiv 1706.02677) or as its square root (Krizhevsky 2014, arXiv
1404.5997). 9 trials. Published hyperparameters of ImageNet at a batch: scripts/recipes.py --batch.
"""

import re

from ml_collections import ConfigDict

from largebatch.config import Config, options
from largebatch.errors import ConfigError
from largebatch.tools.sweep.space import Values, beside, peak_of, with_peak


def get_config() -> ConfigDict:
    """The digits, unless --config names another recipe."""
    return beside(__file__)


def sweep(config: Config) -> Values:
    """Workers and peak together."""
    for key, said, _ in options(config):
        if key.startswith("schedule.") and re.match(r"[0-9.]+ *step", str(said)):
            raise ConfigError(
                f"{key}={said!r} would be other epochs at another batch; give --config.{key} in "
                "epochs"
            )
    base, peak = config.batch.workers, peak_of(config)
    points = []
    for factor in (0.25, 0.5, 1, 2, 4):
        workers = max(1, round(base * factor))
        points += [(workers, peak * (workers / base) ** power) for power in (1, 0.5)]
    return with_peak(config, ("batch.workers",), points)
