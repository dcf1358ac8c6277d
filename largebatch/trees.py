"""Conversion between nested dicts and flat dicts with '/'-joined paths as keys."""

from collections.abc import Iterator, Mapping
from typing import Any


def flatten_paths(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Convert {'a': {'b': x}} to {'a/b': x}, in the order of the tree."""
    return dict(_items(tree, ""))


def unflatten_paths(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Convert {'a/b': x} to {'a': {'b': x}}."""
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
