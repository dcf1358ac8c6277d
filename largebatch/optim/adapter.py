"""Adapter for optax transformations: ``optax:adamw`` or ``package.module:factory``.

The factory is called like those of optax, ``factory(learning_rate=…, **options)``. Our schedules
decide the learning rate and the weight decay of each step. Each update calls the factory with these
numbers as traced scalars, like `optax.inject_hyperparams`. Therefore the state is only that of the
transformation.
"""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from largebatch.errors import ConfigError, did_you_mean, one_line
from largebatch.optim.norms import DEFAULT, LayerReport, Norms, empty_report, measure
from largebatch.optim.rule import Mask, cast_like
from largebatch.optim.schedules import Rates
from largebatch.registry import imported

PyTree = Any
_MASKS = ("mask", "weight_decay_mask")
_OURS = {
    "learning_rate": "schedule.peak",
    "weight_decay": "optimizer.weight_decay",
    **dict.fromkeys(_MASKS, "optimizer.decay_skip"),
}
_CALLED = "use a factory that accepts factory(learning_rate=…, **options), like those of optax"


class AdaptedState(NamedTuple):
    """State of an adapted optax transformation."""

    inner: PyTree
    """State of the optax transformation."""
    report: LayerReport
    """Norms of the last update; the trust ratios are 1."""


@dataclasses.dataclass(frozen=True)
class Factory:
    """A function that returns optax transformations, with the user's options."""

    name: str
    """``optimizer.name``."""
    call: Callable[..., Any]
    options: Mapping[str, Any]
    takes_decay: bool
    """Whether the function has a parameter ``weight_decay``."""
    mask_parameter: str
    """Name of the parameter for the weight decay mask; empty if there is none."""

    def transformation(
        self, learning_rate: Any, weight_decay: Any = 0.0, mask: Mask = None
    ) -> optax.GradientTransformationExtraArgs:
        """Call the function and return the transformation.

        Args:
            learning_rate: A scalar.
            weight_decay: A scalar; not passed to a function without this parameter.
            mask: Parameters with weight decay; not passed to a function without such a parameter.

        Raises:
            ConfigError: The function raises, or does not return a transformation.
        """
        arguments: dict[str, Any] = {"learning_rate": learning_rate}
        if self.takes_decay:
            arguments["weight_decay"] = weight_decay
        if self.mask_parameter:
            arguments[self.mask_parameter] = mask
        try:
            made = self.call(**arguments, **self.options)
        except Exception as error:
            raise ConfigError(
                f"optimizer.name={self.name}: the factory raised {type(error).__name__}: "
                f"{one_line(error)}; {_CALLED}"
            ) from error
        if not isinstance(made, optax.GradientTransformation):
            raise ConfigError(
                f"optimizer.name={self.name}: expected a factory of optax.GradientTransformation, "
                f"got {type(made).__name__}; {_CALLED}"
            )
        return optax.with_extra_args_support(made)


def factory_of(name: str, options: Mapping[str, Any]) -> Factory:
    """Import the factory of an optax transformation and check its parameters.

    Args:
        name: ``optax:adamw`` or ``package.module:factory``.
        options: Arguments except learning rate, weight decay and mask, by name.

    Raises:
        ConfigError: The import fails, or the function has no parameter ``learning_rate``, does not
            have one of ``options``, or requires further arguments.
    """
    call = imported(name, "optimizer.name")
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError):
        raise ConfigError(f"optimizer.name={name} is not a function; {_CALLED}") from None
    parameters = {
        p.name: p
        for p in signature.parameters.values()
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    }
    if "learning_rate" not in parameters:
        raise ConfigError(f"optimizer.name={name} has no parameter learning_rate; {_CALLED}")
    anything = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    own = [p for p in parameters if p not in _OURS]
    for option in options:
        if option in _OURS:
            raise ConfigError(
                f"optimizer.options: {_OURS[option]} sets {option} of {name}; use that option"
            )
        if option not in own and not anything:
            raise ConfigError(
                f"optimizer.options: {name} has no parameter {option!r}; "
                f"{did_you_mean(option, own)}"
            )
    missing = [p for p in own if parameters[p].default is inspect.Parameter.empty]
    if missing := [p for p in missing if p not in options]:
        raise ConfigError(
            f"optimizer.name={name} needs {missing[0]}; use "
            f"--config.optimizer.options='{missing[0]}=VALUE'"
        )
    masks = [p for p in _MASKS if p in parameters]
    return Factory(
        name,
        call,
        options,
        takes_decay="weight_decay" in parameters,
        mask_parameter=masks[0] if masks else "",
    )


def adapted(
    factory: Factory,
    *,
    weight_decay: float = 0.0,
    decay_mask: Mask = None,
    norms: Norms = DEFAULT,
) -> optax.GradientTransformationExtraArgs:
    """Adapt an optax transformation so that its update takes the `Rates` of the step.

    Args:
        factory: Factory of the transformation.
        weight_decay: The coefficient; if it is 0, the factory gets the constant 0 instead of the
            scheduled weight decay.
        decay_mask: Parameters with weight decay.
        norms: Computation of the norms in the report, from `norms_in`.

    Returns:
        A transformation with an `AdaptedState`.
    """

    def init(params: PyTree) -> AdaptedState:
        inner = factory.transformation(1.0, weight_decay, decay_mask)
        return AdaptedState(inner.init(params), empty_report(params))

    def update(
        grads: PyTree, state: AdaptedState, params: PyTree, *, rates: Rates, **_: Any
    ) -> tuple[PyTree, AdaptedState]:
        report = measure(grads, params, norms)
        dtype = report.weight_norm.dtype
        rate = jnp.asarray(rates.learning_rate, dtype)
        decay = jnp.asarray(rates.weight_decay, dtype) if weight_decay else 0.0
        transformation = factory.transformation(rate, decay, decay_mask)
        updates, inner = transformation.update(grads, state.inner, params)
        return cast_like(updates, params), AdaptedState(inner, report)

    return optax.GradientTransformationExtraArgs(init, update)


def check_adapted(rule: optax.GradientTransformationExtraArgs, name: str, params: PyTree) -> None:
    """Trace an update to check that a training step can call the rule.

    Args:
        rule: A result of `adapted`.
        name: ``optimizer.name``, for messages.
        params: Shapes and dtypes of the parameters.

    Raises:
        ConfigError: The rule raises, changes the structure, shapes or dtypes of its state or of the
            parameters, or has values in its state that are not numbers.
    """
    number = jax.ShapeDtypeStruct((), jnp.float32)
    rates = Rates(*[number] * len(Rates._fields))
    try:
        state = jax.eval_shape(rule.init, params)
        updates, after = jax.eval_shape(
            lambda g, s, p, r: rule.update(g, s, p, rates=r), params, state, params, rates
        )
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"optimizer.name={name}: tracing an update raised {type(error).__name__}: "
            f"{one_line(error)}; use a rule with init(params) and update(gradients, state, params) "
            "that accepts traced scalars as learning_rate and weight_decay"
        ) from error
    for leaf in jax.tree.leaves(state):
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended):
            raise ConfigError(
                f"optimizer.name={name}: its state has the dtype {leaf.dtype}, which checkpoints "
                "cannot store; use a rule with numbers in its state"
            )
    for what, before, then in (("state", state, after), ("parameters", params, updates)):
        if _shapes(before) != _shapes(then):
            raise ConfigError(
                f"optimizer.name={name}: an update changes the structure, shapes or dtypes of the "
                f"{what}; use a rule that keeps them"
            )


def _shapes(tree: PyTree) -> tuple[Any, list[tuple[Any, Any]]]:
    return jax.tree.structure(tree), [(x.shape, x.dtype) for x in jax.tree.leaves(tree)]
