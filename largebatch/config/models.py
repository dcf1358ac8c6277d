"""Registry of the networks for ``model.name``; this module does not import JAX."""

from collections.abc import Callable
from typing import Any

from largebatch.registry import Registry

DEPTHS: dict[str, tuple[str, tuple[int, int, int, int]]] = {
    "resnet10": ("basic", (1, 1, 1, 1)),
    "resnet18": ("basic", (2, 2, 2, 2)),
    "resnet34": ("basic", (3, 4, 6, 3)),
    "resnet50": ("bottleneck", (3, 4, 6, 3)),
    "resnet101": ("bottleneck", (3, 4, 23, 3)),
    "resnet152": ("bottleneck", (3, 8, 36, 3)),
}
"""Block type and number of blocks per stage of the ResNets."""

MODELS: Registry[Callable[..., Any]] = Registry(
    "model.name",
    {name: f"largebatch.models.resnet:{name}" for name in DEPTHS},
    own="package.module:factory",
)
"""Factories ``factory(classes=…, rngs=…, dtype=…)`` that return an ``nnx.Module``."""
