"""The real networks, as GPUs and TPUs compute them, and their parameters without arrays."""

import functools

from largebatch.models import Model
from largebatch.models.tracing import shapes_of


def network(name: str = "resnet50", **options) -> Model:
    """A network of 1,000 classes."""
    return Model(name, classes=1000, form="plain", **options)


@functools.cache
def parameters(name: str = "resnet50", **options) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """(path, shape), in the order of the forward pass."""
    return shapes_of(network(name, **options))
