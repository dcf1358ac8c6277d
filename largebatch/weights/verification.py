"""Reads exported files again and compares them with the weights that were exported.

The other library is run with the very lines that are printed for the user.
"""

import importlib.metadata
from typing import Any

import jax
import numpy as np

from largebatch.models import Model
from largebatch.weights import onnx_file
from largebatch.weights.exporting import Written
from largebatch.weights.reading import read
from largebatch.weights.weights import Weights, WeightsError, by_path, encode

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


def verify(written: Written) -> str:
    """Read the files again, load them in the format's library, and compare all logits.

    Returns:
      The result in words, without the comparison if the library has no such network.

    Raises:
      WeightsError: they are not what was exported, or the library is not installed.
    """
    check_read_back(written)
    library = written.library
    if not library:
        return "by reading it back; the library has no such network to compare logits with"
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
    difference, largest = float(np.abs(ours - theirs).max()), float(np.abs(ours).max())
    limit = _LIMIT * max(1.0, largest)
    result = (
        f"{library} {importlib.metadata.version(library)}: logits differ by {difference:.1e} at "
        f"most, of {largest:.3g} (limit {limit:.0e})"
    )
    if not difference <= limit:  # true of NaN as well
        raise WeightsError(
            f"{written.path} is not what was exported; {result}; export it again, or report it"
        )
    return f"by reading it back, and in {result}"


def check_read_back(written: Written) -> None:
    """Read the files again; every array and all metadata must be what was exported.

    Raises:
      WeightsError: they are not.
    """
    found = read(written.path, trust=written.weights.model.name)
    if found.model != written.weights.model or encode(found) != encode(written.weights):
        raise WeightsError(f"{written.path} was read back with other metadata; export it again")
    theirs = by_path(found)
    ours = by_path(written.weights)
    for path in sorted({*ours, *theirs}):
        same = path in ours and path in theirs and ours[path].shape == theirs[path].shape
        if not same or ours[path].tobytes() != theirs[path].tobytes():
            raise WeightsError(f"{written.path} was read back with another {path}; export it again")


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
