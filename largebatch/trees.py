"""Nested dicts and their flat form, keyed by '/'-joined paths."""

from collections.abc import Iterator, Mapping
from typing import Any


def flatten_paths(tree: Mapping[str, Any]) -> dict[str, Any]:
    """{'a': {'b': x}} as {'a/b': x}, in the tree's own order."""
    return dict(_items(tree, ""))


def unflatten_paths(flat: Mapping[str, Any]) -> dict[str, Any]:
    """{'a/b': x} as {'a': {'b': x}}."""
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        *parents, name = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = value
    return tree


def _items(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _items(value, f"{prefix}{name}/")
        else:
            yield prefix + name, value
