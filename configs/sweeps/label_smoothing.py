"""Label smoothing and weight decay: regularisation, whose best amount moves with the batch.

    python scripts/sweep.py --sweep configs/sweeps/label_smoothing.py

Smoothing of 0 to 0.2 × a quarter to four times the recipe's weight decay: 12 trials.
"""

from ml_collections import ConfigDict

from largebatch.config import Config
from largebatch.tools.sweep.space import Values, beside, rounded


def get_config() -> ConfigDict:
    """The digits, unless --config names another recipe."""
    return beside(__file__)


def sweep(config: Config) -> Values:
    """Smoothing × decay."""
    decay = config.optimizer.weight_decay or 1e-4
    return {
        "loss.label_smoothing": [0.0, 0.05, 0.1, 0.2],
        "optimizer.weight_decay": [rounded(decay * factor) for factor in (0.25, 1, 4)],
    }
