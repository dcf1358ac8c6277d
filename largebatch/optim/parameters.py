"""Kinds of parameters, declared by the layers of a network or derived from ResNet paths."""

import contextlib
import contextvars
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import jax
import optax

from largebatch.errors import ConfigError, did_you_mean

PyTree = Any

RULES: tuple[tuple[str, str], ...] = (
    ("conv", r"(.+/)?(downsample_)?conv\d*/kernel"),
    ("bn", r"(.+/)?(downsample_)?bn\d*/(scale|bias)"),
    ("fc", r"head/kernel"),
    ("bias", r"head/bias"),
)
"""(kind, pattern of the whole path) for ResNets; each parameter matches exactly one."""

KINDS: tuple[str, ...] = tuple(dict.fromkeys(kind for kind, _ in RULES))

_declared: contextvars.ContextVar[Mapping[str, str] | None] = contextvars.ContextVar(
    "kinds", default=None
)


def with_kinds(
    rule: optax.GradientTransformationExtraArgs, declared: Mapping[str, str]
) -> optax.GradientTransformationExtraArgs:
    """Return a rule with masks that use the declared kinds of a network's layers.

    Args:
        rule: An optimizer; its masks call `mask` or `kinds` in `init` or `update`.
        declared: Kind of each parameter, by '/'-joined path.
    """

    @contextlib.contextmanager
    def used() -> Iterator[None]:
        token = _declared.set(declared)
        try:
            yield
        finally:
            _declared.reset(token)

    def init(params: PyTree) -> PyTree:
        with used():
            return rule.init(params)

    def update(updates: PyTree, state: PyTree, params: PyTree = None, **extra: Any) -> Any:
        with used():
            return rule.update(updates, state, params, **extra)

    return optax.GradientTransformationExtraArgs(init, update)


def path_names(params: PyTree) -> PyTree:
    """Return a tree like `params` (nested dicts) with the path of each leaf."""
    return jax.tree.map_with_path(
        lambda path, _: jax.tree_util.keystr(path, simple=True, separator="/"), params
    )


def kinds(params: PyTree, rules: Sequence[tuple[str, str]] = RULES) -> PyTree:
    """Return a tree like `params` with the kind of each parameter.

    Inside a rule made by `with_kinds`, the result has the declared kinds.

    Args:
        params: Nested dicts; the values of the leaves are ignored.
        rules: (kind, regular expression for the whole path), used if no kinds are declared.

    Raises:
        ConfigError: A path matches no rule or more than one.
    """

    def kind_of(path: str) -> str:
        found = [kind for kind, pattern in rules if re.fullmatch(pattern, path)]
        if len(found) == 1:
            return found[0]
        table = ", ".join(f"{kind}={pattern!r}" for kind, pattern in rules)
        how = f"{len(found)} rules ({', '.join(found)})" if found else "no rule"
        raise ConfigError(
            f"parameter {path!r} matches {how}; expected a match with exactly one of {table}; "
            "rename it or change the rules"
        )

    declared = _declared.get()
    return jax.tree.map(kind_of if declared is None else declared.__getitem__, path_names(params))


def mask(params: PyTree, skip: Collection[str]) -> PyTree:
    """Return a tree of bools like `params`, False for the kinds in `skip`.

    Args:
        params: Nested dicts; the values of the leaves are ignored.
        skip: Kinds of parameter from `KINDS`.

    Raises:
        ConfigError: A kind in `skip` is unknown, or a path does not match exactly one kind.
    """
    for kind in skip:
        if kind not in KINDS:
            raise ConfigError(f"unknown kind of parameter {kind!r}; {did_you_mean(kind, KINDS)}")
    return jax.tree.map(lambda kind: kind not in skip, kinds(params))
