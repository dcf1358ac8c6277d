"""Options, their checks, and the resolved plan of a run.

Options and recipes do not import JAX, so that an invalid option is reported within a second.
`config.plan` and `config.resolution` do.
"""

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

__all__ = [
    "Config",
    "Difference",
    "Facts",
    "adjusted",
    "changed",
    "default_config",
    "differences",
    "freeze",
    "load",
    "options",
    "override",
    "stages_of",
    "table",
]
