"""LARS' trust coefficient: the layer-wise part of the learning rate.

    python scripts/sweep.py --sweep configs/sweeps/lars_coefficient.py

From an eighth to eight times the recipe's, with its learning rate, and again with the rate changed
so that their product stays: layers that have a trust ratio then learn as before, and what differs
is BatchNorm and biases, which see the rate alone. 13 trials.
"""

from ml_collections import ConfigDict

from largebatch.config import Config
from largebatch.errors import ConfigError
from largebatch.tools.sweep.space import Values, beside, peak_of, rounded, with_peak


def get_config() -> ConfigDict:
    """The digits, unless --config names another recipe."""
    return beside(__file__)


def sweep(config: Config) -> Values:
    """Coefficient and peak together."""
    if config.optimizer.name != "lars":
        raise ConfigError(
            f"optimizer.name={config.optimizer.name} has no trust coefficient; sweep a recipe of "
            "LARS"
        )
    coefficient = config.optimizer.trust_coefficient
    if coefficient == "auto":
        from largebatch.optim.lars import lars_settings  # imports JAX

        coefficient = lars_settings(config.optimizer.flavour).trust_coefficient
    peak = peak_of(config)
    points = [(coefficient, peak)]
    for factor in (0.125, 0.25, 0.5, 2, 4, 8):
        points += [(coefficient * factor, peak), (coefficient * factor, peak / factor)]
    points = [(rounded(each), rate) for each, rate in sorted(points)]
    return with_peak(config, ("optimizer.trust_coefficient",), points)
