"""Parameters of the real networks, without arrays."""

import functools

import jax

from largebatch.models import Model
from largebatch.trees import flatten_paths


@functools.cache
def parameters(name: str = "resnet50", **options) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """(path, shape), in the order of the forward pass."""
    model = Model(name, classes=1000, **options)
    shapes = {
        path: leaf.shape for path, leaf in flatten_paths(jax.eval_shape(model.init, 0)[0]).items()
    }
    return tuple((path, shapes[path]) for path in model.parameter_paths())
