"""Reads exported files again and compares them with the weights that were exported.

The other library is run with the very lines that are printed for the user.
"""

import dataclasses
import importlib.metadata
from typing import Any

import jax
import numpy as np

from largebatch.models import Model
from largebatch.weights import onnx_file
from largebatch.weights.exporting import Written
from largebatch.weights.reading import read
from largebatch.weights.weights import Weights, WeightsError, by_path

_LIMIT = 1e-4
"""Largest difference of two logits, for each unit of the largest logit (at least 1).

Libraries sum the products of a convolution in different orders, so the float32 results of a layer
differ by some roundings, 6e-8 of their size. Through ResNet-50 the difference has been seen to grow
to 1e-6 of the largest logit; a wrong epsilon, stride or array shows at 1e-3 and above.
"""
_NEEDED = {
    "torchvision": "torch torchvision",
    "timm": "torch torchvision timm",
    "transformers": "torch transformers",
}


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Our logits and a library's for the same images."""

    library: str
    version: str
    difference: float
    """Largest absolute difference of two logits."""
    largest: float
    """Our largest absolute logit."""

    @property
    def limit(self) -> float:
        """The largest difference that rounding explains."""
        return _LIMIT * max(1.0, self.largest)

    @property
    def is_equal(self) -> bool:
        """Whether rounding explains the difference; False for NaN."""
        return self.difference <= self.limit


def check_read_back(written: Written) -> None:
    """Read the files again; every array and field must be what was exported.

    Raises:
      WeightsError: one is not.
    """
    found = read(written.path, trust=written.weights.model.name)
    for field in dataclasses.fields(Weights):
        if field.name in ("params", "stats", "origin", "options"):
            continue
        if getattr(found, field.name) != getattr(written.weights, field.name):
            raise WeightsError(f"{written.path} was read back with another {field.name}")
    theirs = by_path(found)
    ours = by_path(written.weights)
    for path in sorted({*ours, *theirs}):
        same = path in ours and path in theirs and ours[path].shape == theirs[path].shape
        if not same or ours[path].tobytes() != theirs[path].tobytes():
            raise WeightsError(f"{written.path} was read back with another {path}")


def compare(written: Written) -> Comparison | None:
    """Load the files in the format's library and compare logits.

    Returns:
      The comparison; None if the library has no constructor for the network.

    Raises:
      WeightsError: the library is not installed.
    """
    library = written.library
    if not library:
        return None
    images = random_images(written.weights)
    ours = logits(written.weights, images)
    try:
        space: dict[str, Any] = {}
        exec("\n".join(written.loading), space)
        theirs = foreign_logits(space["model"], images)
    except ImportError as error:
        needed = _NEEDED.get(library, library)
        raise WeightsError(
            f"{written.path} was read back, but {library} cannot be imported to compare logits "
            f"({error}): pip install {needed}"
        ) from error
    version = importlib.metadata.version(library)
    return Comparison(
        library, version, float(np.abs(ours - theirs).max()), float(np.abs(ours).max())
    )


def random_images(weights: Weights) -> np.ndarray:
    """Return normal deviates, float32 (2, height, width, channels), like normalized images."""
    return np.random.default_rng(0).standard_normal((2, *weights.image_shape), np.float32)


def logits(weights: Weights, images: np.ndarray) -> np.ndarray:
    """Return logits, float32 (images, classes), of normalized images."""
    return np.asarray(_apply(weights.model, weights.params, weights.stats, images))


_apply = jax.jit(Model.apply, static_argnums=0)


def foreign_logits(model: Any, images: np.ndarray) -> np.ndarray:
    """Return the logits of a network of PyTorch, transformers or ONNX Runtime."""
    planes = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    if hasattr(model, "get_providers"):
        return model.run(None, {onnx_file.IMAGES: planes})[0]
    import torch

    with torch.inference_mode():
        found = model(torch.from_numpy(planes))
    return getattr(found, "logits", found).numpy()
