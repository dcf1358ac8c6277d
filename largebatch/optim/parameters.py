"""Which parameter is what, by its path: its keys joined by '/', as in `stage1/block1/bn2/scale`."""

import re
from collections.abc import Collection, Sequence
from typing import Any

import jax

from largebatch.errors import ConfigError, did_you_mean

PyTree = Any

RULES: tuple[tuple[str, str], ...] = (
    ("conv", r"(.+/)?(downsample_)?conv\d*/kernel"),
    ("bn", r"(.+/)?(downsample_)?bn\d*/(scale|bias)"),
    ("fc", r"head/kernel"),
    ("bias", r"head/bias"),
)
"""(kind, pattern of the whole path); every parameter matches exactly one."""

KINDS: tuple[str, ...] = tuple(dict.fromkeys(kind for kind, _ in RULES))


def path_names(params: PyTree) -> PyTree:
    """A tree like `params` (nested dicts) whose leaves are their own paths."""
    return jax.tree.map_with_path(
        lambda path, _: jax.tree_util.keystr(path, simple=True, separator="/"), params
    )


def kinds(params: PyTree, rules: Sequence[tuple[str, str]] = RULES) -> PyTree:
    """A tree like `params` whose leaves are kinds.

    Args:
        params: Nested dicts; the leaves are not looked at.
        rules: (kind, regular expression that must match the whole path).

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

    return jax.tree.map(kind_of, path_names(params))


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
