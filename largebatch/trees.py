"""Conversion between nested dicts and flat dicts with '/'-joined paths as keys."""

from collections.abc import Collection, Iterator, Mapping
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


def without_paths(tree: Mapping[str, Any], paths: Collection[str]) -> Any:
    """Return a tree without the leaves at these paths; without paths, the tree itself."""
    if not paths:
        return tree
    return unflatten_paths({p: x for p, x in flatten_paths(tree).items() if p not in paths})


def with_leaves(tree: Mapping[str, Any], leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tree with the leaves of another tree, which may lack some, in place of its own."""
    return unflatten_paths(flatten_paths(tree) | flatten_paths(leaves))


def _items(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _items(value, f"{prefix}{name}/")
        else:
            yield prefix + name, value
