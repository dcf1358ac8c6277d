"""The update rule of a configuration."""

from collections.abc import Collection
from typing import Any

import optax

from largebatch import optim, parallel
from largebatch.config import Config
from largebatch.config.rates import lars_of
from largebatch.errors import ConfigError

PyTree = Any
_SKIPPED = ("bn", "bias")  # where neither an option nor a flavour says otherwise


def optimizer_of(config: Config) -> optax.GradientTransformationExtraArgs:
    """The update rule of a configuration; it is given the rates of ``config.rates.rates_of``.

    Raises:
      ConfigError: an optimizer without a rule here, choices that contradict each other, or an
        unknown kind of parameter to skip.
    """
    name, loss = config.optimizer.name, config.loss
    if name not in _RULES:
        raise ConfigError(
            f"optimizer.name={name}: no update rule of that name; use {', '.join(_RULES)}"
        )
    rule = _RULES[name](config)
    if loss.l2:
        rule = optim.with_l2(rule, loss.l2, _mask(loss.l2_skip))
    return rule


def _lars(config: Config) -> optax.GradientTransformationExtraArgs:
    options = config.optimizer
    settings = lars_of(options)
    return optim.lars(
        settings,
        nesterov=options.nesterov,
        trust_mask=_mask(settings.trust_skip),
        **_shared(config, settings.decay_skip),
    )


def _sgd(config: Config) -> optax.GradientTransformationExtraArgs:
    options = config.optimizer
    return optim.sgd(
        nesterov=options.nesterov,
        inside=options.rate in ("inside", "inside_corrected"),
        decoupled=options.decay == "decoupled",
        **_shared(config, _chosen(options.decay_skip, _SKIPPED)),
    )


def _lamb(config: Config) -> optax.GradientTransformationExtraArgs:
    options = config.optimizer
    return optim.lamb(
        second_momentum=_chosen(options.second_momentum, 0.999),
        epsilon=_chosen(options.epsilon, 1e-6),
        trust_mask=_mask(_chosen(options.trust_skip, _SKIPPED)),
        **_shared(config, _chosen(options.decay_skip, _SKIPPED)),
    )


def _rmsprop_sgd(config: Config) -> optax.GradientTransformationExtraArgs:
    options = config.optimizer
    return optim.rmsprop_sgd(
        second_momentum=_chosen(options.second_momentum, 0.99),
        rmsprop_rate=options.rmsprop_rate,
        epsilon=_chosen(options.epsilon, 1e-8),
        nesterov=options.nesterov,
        **_shared(config, _chosen(options.decay_skip, _SKIPPED)),
    )


_RULES = {"lars": _lars, "sgd": _sgd, "lamb": _lamb, "rmsprop_sgd": _rmsprop_sgd}


def _shared(config: Config, decay_skip: Collection[str]) -> dict[str, Any]:
    options = config.optimizer
    return {
        # Without any decay nothing is read for it.
        "decay_mask": _mask(decay_skip) if options.weight_decay else False,
        "layout": options.layout,
        "total": parallel.sum_over_devices if options.update == "sharded" else None,
    }


def _mask(skip: Collection[str]) -> Any:
    return lambda params: optim.mask(params, skip)


def _chosen(value: Any, otherwise: Any) -> Any:
    return otherwise if value == "auto" else value
