"""Options, their validation, and the resolved plan of a run."""

from largebatch.config.difference import Difference, differences, table
from largebatch.config.facts import Facts
from largebatch.config.load import adjusted, default_config, load
from largebatch.config.options import changed, options
from largebatch.config.plan import Plan
from largebatch.config.resolution import microbatch_candidates, norm_statistics, resolve
from largebatch.config.schema import Config
from largebatch.config.stages import stages_of
from largebatch.config.typed import freeze, override

__all__ = [
    "Config",
    "Difference",
    "Facts",
    "Plan",
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
