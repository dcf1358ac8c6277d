"""Parameters of the real networks, without arrays."""

import functools

from largebatch.models import Model
from largebatch.parallel.backward_times import shapes_of


@functools.cache
def parameters(name: str = "resnet50", **options) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """(path, shape), in the order of the forward pass."""
    return shapes_of(Model(name, classes=1000, **options))
