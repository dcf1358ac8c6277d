"""What was written, loaded again and compared with the weights that it was made from.

The library's part is done by the very lines that a user is told to paste.
"""

import dataclasses
import importlib.metadata
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from largebatch.models import Model
from largebatch.weights import onnx_file, tensor_files
from largebatch.weights.exporting import Written
from largebatch.weights.reading import read
from largebatch.weights.weights import Weights, WeightsError, by_path

LIMIT = 1e-4
"""Largest difference of two logits, for each unit of the largest logit (at least 1).

Libraries sum the products of a convolution in different orders, so each layer's float32 results
differ by some roundings, 6e-8 of their size. Through ResNet-50 these have been seen to grow to 1e-6
of the largest logit; a wrong epsilon, stride or array shows at 1e-3 and above.
"""
_IMAGES = 2
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
    """Largest absolute logit of ours."""

    @property
    def limit(self) -> float:
        """The difference that rounding explains."""
        return LIMIT * max(1.0, self.largest)

    @property
    def is_equal(self) -> bool:
        """Whether rounding explains the difference; it does not explain NaN."""
        return self.difference <= self.limit


def check_read_back(written: Written) -> None:
    """Read the files again; every array and option must be what was to be written.

    Raises:
      WeightsError: it is not.
    """
    if written.format == "flax":
        theirs, _ = tensor_files.read_safetensors(written.path)
        _compare_arrays(written, theirs)
        return
    found = read(written.path)
    for field in dataclasses.fields(Weights):
        if field.name in ("params", "stats", "origin", "manifest"):
            continue
        if getattr(found, field.name) != getattr(written.weights, field.name):
            raise WeightsError(f"{written.path} was read back with another {field.name}")
    _compare_arrays(written, by_path(found))


def _compare_arrays(written: Written, theirs: Mapping[str, np.ndarray]) -> None:
    ours = by_path(written.weights)
    for path in sorted({*ours, *theirs}):
        same = path in ours and path in theirs and ours[path].shape == theirs[path].shape
        if not same or ours[path].tobytes() != theirs[path].tobytes():
            raise WeightsError(f"{written.path} was read back with another {path}")


def compare(written: Written) -> Comparison | None:
    """Load the files in the format's own library and compare logits.

    Returns:
      The comparison; None where the library has no constructor for the network.

    Raises:
      WeightsError: the library is not installed.
    """
    library = written.loading.library
    if not library:
        return None
    images = random_images(written.weights)
    try:
        space: dict[str, Any] = {}
        exec("\n".join(written.loading.lines), space)
        theirs = foreign_logits(space["model"], images)
    except ImportError as error:
        needed = _NEEDED.get(library, library)
        raise WeightsError(
            f"{written.path} was read back whole, but {library} cannot be imported to compare "
            f"logits with ({error}): pip install {needed}"
        ) from error
    return compared(written.weights, images, theirs, library)


def compared(weights: Weights, images: np.ndarray, theirs: np.ndarray, library: str) -> Comparison:
    """Logits of ours beside ``theirs``, of the same images."""
    ours = logits(weights, images)
    return Comparison(
        library,
        importlib.metadata.version(library),
        float(np.max(np.abs(ours - theirs))),
        float(np.max(np.abs(ours))),
    )


def random_images(weights: Weights, seed: int = 0) -> np.ndarray:
    """Normal deviates float32 (2, height, width, channels), as normalised images are."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((_IMAGES, *weights.image_shape), np.float32)


def logits(weights: Weights, images: np.ndarray) -> np.ndarray:
    """Float32 (images, classes), of normalised images (images, height, width, channels)."""
    return np.asarray(_apply(weights.model, weights.params, weights.stats, images))


_apply = jax.jit(Model.apply, static_argnums=0)


def foreign_logits(model: Any, images: np.ndarray) -> np.ndarray:
    """The same of a network of PyTorch's, of transformers' or of ONNX Runtime's."""
    planes = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    if hasattr(model, "get_providers"):
        return model.run(None, {onnx_file.IMAGES: planes})[0]
    import torch

    with torch.inference_mode():
        found = model(torch.from_numpy(planes))
    return getattr(found, "logits", found).numpy()
