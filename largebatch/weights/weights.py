"""A trained network with all that is needed to use it."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from largebatch.errors import UserError
from largebatch.models import Model
from largebatch.trees import flatten_paths

if TYPE_CHECKING:
    from largebatch.checkpoint.manifest import Manifest

PyTree = Any


class WeightsError(UserError):
    """Weights that are missing, unreadable, or of no network that this program has."""


@dataclasses.dataclass(frozen=True)
class About:
    """All of `Weights` but the arrays."""

    model: Model
    """As the file or the run's options say; its arithmetic is float32."""
    classes: tuple[str, ...]
    """Names in the order of labels; () where nobody says them."""
    mean: tuple[float, ...]
    """Of each channel, in 0..255: images are (pixel − mean) / std."""
    std: tuple[float, ...]
    """Likewise."""
    image_shape: tuple[int, int, int]
    """Height, width and channels of the images of an evaluation."""
    evaluation_crop: float
    """As the option ``data.evaluation_crop``; 1 for data that are never cropped."""
    resampling: str
    """As the option ``data.resampling``."""
    origin: str
    """Where this is from, for people: the path that was read, then what to know of it."""
    data: str
    """``data.source`` of the run; '' for a foreign file."""

    def weights(self, params: PyTree, stats: PyTree) -> "Weights":
        """With the arrays."""
        return Weights(**vars(self), params=params, stats=stats)


@dataclasses.dataclass(frozen=True, eq=False)
class Weights(About):
    """A network in evaluation mode: logits are ``model.apply(params, stats, images)``."""

    params: PyTree
    """Nested dicts of float32 NumPy arrays, as ``Model.init`` gives them."""
    stats: PyTree
    """{…: {mean, var}}, float32: the statistics that evaluation uses."""
    manifest: "Manifest | None" = None
    """What the checkpoint that was read says of its run; None for files."""


def by_path(weights: Weights) -> dict[str, np.ndarray]:
    """All arrays, parameters first, by '/'-joined path."""
    return {**flatten_paths(weights.params), **flatten_paths(weights.stats)}


def few(names: Mapping[str, object] | list[str], most: int = 3) -> str:
    """The first names of several, for a message."""
    names = list(names)
    left = len(names) - most
    return ", ".join(map(str, names[:most])) + (f" and {left} more" if left > 0 else "")
