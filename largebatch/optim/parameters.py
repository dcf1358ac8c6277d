"""Kinds of parameters: by layer where a network declares them, else by the path of a ResNet's."""

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
"""(kind, pattern of the whole path) of a ResNet; every parameter matches exactly one."""

KINDS: tuple[str, ...] = tuple(dict.fromkeys(kind for kind, _ in RULES))

_declared: contextvars.ContextVar[Mapping[str, str] | None] = contextvars.ContextVar(
    "kinds", default=None
)


def with_kinds(
    rule: optax.GradientTransformationExtraArgs, declared: Mapping[str, str]
) -> optax.GradientTransformationExtraArgs:
    """Return a rule whose masks take the kinds of parameters from a network's layers.

    Args:
        rule: Whose masks call `mask` or `kinds` when it is initialised or updates.
        declared: Kind by '/'-joined path, of every parameter.
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
    """A tree like `params` (nested dicts) whose leaves are their own paths."""
    return jax.tree.map_with_path(
        lambda path, _: jax.tree_util.keystr(path, simple=True, separator="/"), params
    )


def kinds(params: PyTree, rules: Sequence[tuple[str, str]] = RULES) -> PyTree:
    """A tree like `params` whose leaves are kinds.

    Inside a rule made by `with_kinds` they are those of the network's layers.

    Args:
        params: Nested dicts; the leaves are not looked at.
        rules: (kind, regular expression that must match the whole path), where none are declared.

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
            f"parameter {path!r} matches {how} and must match exactly one of {table}; "
            "rename it or change the rules"
        )

    declared = _declared.get()
    return jax.tree.map(kind_of if declared is None else declared.__getitem__, path_names(params))


def mask(params: PyTree, skip: Collection[str]) -> PyTree:
    """A tree like `params` of bools: True where something applies, False for the kinds skipped.

    Args:
        params: Nested dicts; the leaves are not looked at.
        skip: Kinds of parameter, of `KINDS`.

    Raises:
        ConfigError: An unknown kind in `skip`, or a path that has not exactly one kind.
    """
    for kind in skip:
        if kind not in KINDS:
            raise ConfigError(
                f"{kind!r} is no kind of parameter to skip; {did_you_mean(kind, KINDS)}"
            )
    return jax.tree.map(lambda kind: kind not in skip, kinds(params))
