"""Kinds of parameters, masks of kinds, and learning rate multipliers.

Patterns of multipliers and their order are those of ``lr_mults`` in big_vision: a regular
expression for the whole path, and the first one that matches decides. A parameter with the factor 0
is frozen.
"""

import difflib
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
_NEAR = 3  # names in an error message


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
    for i in sorted(unused):
        if any(rules[i][0].fullmatch(path) for path in statistics):
            raise ConfigError(
                f"{_KEY}: {rules[i][0].pattern!r} decides about BatchNorm statistics alone, which "
                f"have no learning rate, got the factor {rules[i][1]:g}; use 0 to keep them"
            )
        raise ConfigError(_without_match(rules[i][0], (*parameters, *statistics)))
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


def _without_match(pattern: re.Pattern[str], paths: Sequence[str]) -> str:
    """Return the message for a pattern that decides about no path, with near patterns."""
    if any(pattern.fullmatch(path) for path in paths):
        return (
            f"{_KEY}: earlier patterns match all that {pattern.pattern!r} matches; the first match "
            "decides: use it before them, or remove it"
        )
    parts = [path.split("/") for path in paths]
    modules = {"/".join(part[:i]) for part in parts for i in range(1, len(part))}
    known = [*(f"{module}/.*" for module in sorted(modules)), *paths]
    translated = _in_our_names(pattern.pattern)
    near = [translated] if translated in known else []
    near = near or difflib.get_close_matches(pattern.pattern, known, n=_NEAR)
    near = near or list(dict.fromkeys(f"{part[0]}/.*" for part in parts if len(part) > 1))
    return (
        f"{_KEY}: expected a regular expression that matches the whole name of a parameter, got "
        f"{pattern.pattern!r}, which matches none; use {' or '.join(map(repr, near))}"
    )


def _in_our_names(pattern: str) -> str:
    """Return the pattern of a whole module that torchvision's or timm's name of it stands for."""
    name = re.split(r"\W", pattern)[0]
    if stage := re.fullmatch(r"layer([1-4])", name):
        return f"stages/{int(stage[1]) - 1}/.*"
    return {"conv1": "stem/.*", "bn1": "stem/.*", "fc": "head/.*", "classifier": "head/.*"}.get(
        name, ""
    )
