"""Kinds of parameters, masks of kinds, and learning rate multipliers.

Patterns of multipliers and their order are those of ``lr_mults`` in big_vision: a regular
expression for the whole path, and the first one that matches decides. A parameter with the factor 0
is frozen.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import optax

from largebatch.errors import ConfigError, did_you_mean
from largebatch.optim.rule import times

PyTree = Any

KINDS: tuple[str, ...] = ("conv", "bn", "fc", "bias")
"""Kinds of parameters: kernels of convolutions, scales and biases of norms, other kernels, other
biases."""

_KEY = "optimizer.lr_mults"


def path_names(params: PyTree) -> PyTree:
    """Return a tree like `params` (nested dicts) with the path of each leaf."""
    return jax.tree.map_with_path(
        lambda path, _: jax.tree_util.keystr(path, simple=True, separator="/"), params
    )


def skipping(skip: Collection[str], kinds: Mapping[str, str]) -> Callable[[PyTree], PyTree]:
    """Return a mask that is False for the kinds in `skip`, as a function of the parameters.

    Args:
        skip: Kinds of parameter from `KINDS`.
        kinds: Kind of each parameter, by '/'-joined path (`Model.kinds`).

    Raises:
        ConfigError: A kind in `skip` is unknown.
    """
    for kind in skip:
        if kind not in KINDS:
            raise ConfigError(f"unknown kind of parameter {kind!r}; {did_you_mean(kind, KINDS)}")
    return lambda params: jax.tree.map(lambda path: kinds[path] not in skip, path_names(params))


def read_multipliers(texts: Sequence[str]) -> tuple[tuple[re.Pattern[str], float], ...]:
    """Return (pattern, factor) of each text 'PATTERN: FACTOR' of ``optimizer.lr_mults``.

    Raises:
        ConfigError: A text does not have this form, or a factor is below 0 or infinite.
    """
    form = "use 'PATTERN: FACTOR', such as 'head/.*: 1' or 'stem/.*: 0'"
    rules = []
    for text in texts:
        pattern, _, factor = text.rpartition(":")
        try:
            number = float(factor)
        except ValueError:
            number = -1.0
        if not pattern.strip() or not 0 <= number < float("inf"):
            raise ConfigError(
                f"{_KEY}: expected a pattern and a factor of at least 0, got {text!r}; {form}"
            )
        try:
            rules.append((re.compile(pattern.strip()), number))
        except re.error as error:
            raise ConfigError(
                f"{_KEY}: {pattern.strip()!r} is no regular expression ({error}); {form}"
            ) from None
    return tuple(rules)


def multipliers(
    texts: Sequence[str], parameters: Collection[str], statistics: Collection[str] = ()
) -> dict[str, float]:
    """Return the factor of each path: that of the first pattern that matches it, otherwise 1.

    Args:
        texts: ``optimizer.lr_mults``.
        parameters: '/'-joined paths of the parameters.
        statistics: Paths of the running BatchNorm statistics. Only the factor 0 has a meaning
            there: the layer normalizes with its running statistics and keeps them.

    Raises:
        ConfigError: A text is wrong, decides about no path, or every parameter is frozen.
    """
    rules = read_multipliers(texts)
    unused = set(range(len(rules)))
    found = {}
    for path in (*parameters, *statistics):
        matching = (i for i, (pattern, _) in enumerate(rules) if pattern.fullmatch(path))
        first = next(matching, None)
        found[path] = 1.0 if first is None else rules[first][1]
        if path in parameters or not found[path]:
            unused.discard(first)
    if unused:
        pattern = rules[min(unused)][0].pattern
        modules = dict.fromkeys(f"{path.partition('/')[0]}/.*" for path in parameters)
        raise ConfigError(
            f"{_KEY}: {pattern!r} is not the first to match the whole name of any parameter, and "
            f"statistics of BatchNorm take only the factor 0; use patterns such as "
            f"{', '.join(map(repr, modules))}, special ones before general ones"
        )
    if not any(found[path] for path in parameters):
        raise ConfigError(
            f"{_KEY}: expected at least one parameter with a factor above 0, got 0 for all "
            f"{len(parameters)}; use '(?!head/).*: 0' to train the classifier alone"
        )
    return found


def with_multipliers(
    rule: optax.GradientTransformationExtraArgs, factors: Mapping[str, float]
) -> optax.GradientTransformationExtraArgs:
    """Return `rule` with each update multiplied by the factor of its parameter.

    The whole update is multiplied, including weight decay. Trust ratios, and their limits, are
    those of the rule without factors.

    Args:
        rule: An optimizer.
        factors: Factor by '/'-joined path of a parameter.
    """

    def update(grads: PyTree, state: PyTree, params: PyTree, **more: Any) -> tuple[PyTree, PyTree]:
        updates, state = rule.update(grads, state, params, **more)
        scaled = jax.tree.map(
            lambda u, path: u if factors[path] == 1 else times(factors[path], u).astype(u.dtype),
            updates,
            path_names(updates),
        )
        return scaled, state

    return optax.GradientTransformationExtraArgs(rule.init, update)
