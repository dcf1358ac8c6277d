"""The update rule of a configuration."""

import functools

import jax
import jax.numpy as jnp
import optax

from largebatch import optim, parallel
from largebatch.config import Config
from largebatch.config.optimizers import OPTIMIZERS, parse_options
from largebatch.config.sections import Optimizer
from largebatch.optim.adapter import Factory, adapted, check_adapted, factory_of
from largebatch.optim.configured import skipping
from largebatch.registry import imported
from largebatch.training.elementwise import check_elementwise


def optimizer_of(config: Config) -> optax.GradientTransformationExtraArgs:
    """The update rule of a configuration; it is given the rates of ``config.rates.rates_of``.

    Raises:
      ConfigError: choices that contradict each other, an unknown kind of parameter to skip, or a
        factory of an optax transformation that cannot be used here.
    """
    options, loss = config.optimizer, config.loss
    if options.name in OPTIMIZERS:
        make = imported(OPTIMIZERS[options.name].make, "optimizer.name")
        total = parallel.sum_over_devices if options.update == "sharded" else None
        rule = make(options, total)
    else:
        rule = _adapted(options)
    if loss.l2:
        rule = optim.with_l2(rule, loss.l2, skipping(loss.l2_skip))
    return rule


def summary(options: Optimizer) -> str:
    """The rule, its momentum and its weight decay, for people."""
    decay = f"weight decay {options.weight_decay:g}"
    if options.name in OPTIMIZERS:
        return f"{options.title}, momentum {options.momentum:g}, {decay}"
    return f"{options.title}, {decay if _factory(options).takes_decay else 'no weight decay'}"


def _factory(options: Optimizer) -> Factory:
    return factory_of(options.name, parse_options(options.options))


@functools.lru_cache
def _adapted(options: Optimizer) -> optax.GradientTransformationExtraArgs:
    """A factory's rule, checked once: every stage and every number of microbatches asks for it."""
    factory = _factory(options)

    def rule(total: optim.norms.Total | None) -> optax.GradientTransformationExtraArgs:
        return adapted(
            factory,
            weight_decay=options.weight_decay if factory.takes_decay else 0.0,
            decay_mask=skipping(options.decay_skip) if options.decay_skip else None,
            layout=options.layout,
            total=total,
        )

    shapes = {"conv": {"kernel": (3, 3, 2, 5)}, "head": {"kernel": (128, 130), "bias": (7,)}}
    params = jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32),
        shapes,
        is_leaf=lambda x: isinstance(x, tuple),
    )
    check_adapted(rule(None), options.name, params)
    if options.update == "sharded":
        check_elementwise(rule(None), options.name, params)
        return rule(parallel.sum_over_devices)
    return rule(None)
