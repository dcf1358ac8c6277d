"""The optimizers that ``optimizer.name`` selects, in plain Python: making one imports JAX."""

import ast
import dataclasses
import re
from typing import Any

from largebatch.config.values import shown
from largebatch.errors import ConfigError
from largebatch.registry import Registry


@dataclasses.dataclass(frozen=True)
class Rule:
    """An update rule, and the options that it reads.

    Every rule reads ``momentum``, ``momentum_at_peak``, ``weight_decay``, ``decay_skip``,
    ``layout`` and ``update``.
    """

    title: str
    """For people; ``{flavour}`` and other options are filled in."""
    make: str
    """``package.module:function``, called as function(options, total) with the section
    ``optimizer`` and the ``total`` of `optim.norms_in`; returns an optax transformation whose
    update takes ``rates`` and whose state has a ``report``."""
    options: tuple[str, ...] = ()
    """Options of the section ``optimizer`` that not every rule reads."""


OPTIMIZERS: Registry[Rule] = Registry(
    "optimizer.name",
    {
        "lars": Rule(
            "LARS ({flavour})",
            "largebatch.optim.lars:configured",
            (
                *("flavour", "denominator", "denominator_decay", "trust_coefficient", "epsilon"),
                *("rate", "zero_norm", "trust_clip", "rate_clip", "trust_skip", "nesterov"),
            ),
        ),
        "sgd": Rule("SGD", "largebatch.optim.sgd:configured", ("rate", "decay", "nesterov")),
        "lamb": Rule(
            "LAMB",
            "largebatch.optim.lamb:configured",
            ("second_momentum", "epsilon", "trust_skip"),
        ),
        "rmsprop_sgd": Rule(
            "RMSprop → SGD",
            "largebatch.optim.rmsprop_sgd:configured",
            ("second_momentum", "epsilon", "rmsprop_rate", "nesterov"),
        ),
    },
    own="package.module:function, one of optax as optax:adamw",
)
"""Our own rules. Any other is the ``package.module:factory`` of an optax transformation."""

OF_FACTORIES = ("name", "options", "weight_decay", "decay_skip", "layout", "update")
"""The options of the section ``optimizer`` that a factory of an optax transformation reads."""


def parse_options(text: str) -> dict[str, Any]:
    """Return the values of ``optimizer.options``, by name.

    Args:
      text: ``name=value name=value``, where values are Python literals.

    Raises:
      ConfigError: the text has another form, or a name occurs twice.
    """
    found: dict[str, Any] = {}
    for part in filter(None, re.split(r"[\s,]+(?=[A-Za-z_]\w*=)", text.strip().rstrip(","))):
        name, equals, value = part.partition("=")
        form = "write name=value name=value"
        if not equals or not name.isidentifier():
            raise ConfigError(f"optimizer.options: got {shown(part)}; {form}")
        if name in found:
            raise ConfigError(f"optimizer.options: {name} is given twice; give it once")
        try:
            found[name] = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            raise ConfigError(
                f"optimizer.options: expected a Python literal for {name}, got {shown(value)}; "
                f'{form}, with quotes around a text: {name}="…"'
            ) from None
    return found


def check_rule(options: Any) -> None:
    """Refuse options of the section ``optimizer`` that its rule would not read.

    Args:
      options: the section.

    Raises:
      ConfigError: with all of them, and the arguments that reset them.
    """
    fields = dataclasses.fields(options)
    changed = {f.name: f.default for f in fields if getattr(options, f.name) != f.default}
    if options.name in OPTIMIZERS:
        rule = OPTIMIZERS[options.name]
        # The others are left unread: recipes set what belongs to LARS, and a user changes the name.
        wrong = {"options", *({"rate", "nesterov", "decay"} - set(rule.options))} & set(changed)
    else:
        wrong = set(changed) - set(OF_FACTORIES)
    if not wrong:
        return
    names = [f.name for f in fields if f.name in wrong]
    given = ", ".join(f"optimizer.{n}={_written(getattr(options, n))}" for n in names)
    reset = " ".join(f"--config.optimizer.{n}={_written(changed[n])}" for n in names)
    verb = "does" if len(names) == 1 else "do"
    more = "" if options.name in OPTIMIZERS else "; its own options go into optimizer.options"
    raise ConfigError(f"{given} {verb} not act on optimizer.name={options.name}; use {reset}{more}")


def _written(value: Any) -> str:
    """A value as it is written on a command line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "'" + ",".join(map(str, value)) + "'"
    return str(value) if value != "" else "''"
