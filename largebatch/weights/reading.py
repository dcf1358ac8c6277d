"""Weights from whatever path is given."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from largebatch.models import Model
from largebatch.weights import architecture, hub, metadata, onnx_file, run, tensor_files
from largebatch.weights.weights import About, Weights, WeightsError

_KINDS = (
    "a run, a checkpoint, a .safetensors or .onnx file, a .pth state dict, or a folder with "
    f"{hub.CONFIG} and {hub.TENSORS}"
)
_SIDE = 224


def read(path: Path) -> Weights:
    """The network that a path holds, ready to be evaluated or trained further.

    Args:
      path: a run's directory, whose newest sound checkpoint is taken; a checkpoint's directory; a
        ``.safetensors`` file with torchvision's, timm's or Hugging Face's names; a ``.pth`` or
        ``.pt`` state dict, read without executing pickles; a folder of Hugging Face's hub, of
        transformers or of timm; an ``.onnx`` file that we exported.

    Raises:
      CheckpointError: a checkpoint is not sound, or there is none.
      WeightsError: a file is missing, damaged or of no network that this program has; every
        array is accounted for, both ways.
    """
    path = Path(path)
    if path.is_dir():
        if path.name == "checkpoints" and not run.is_run(path):
            path = path.parent
        if run.is_run(path):
            return run.newest(path)
        if run.is_checkpoint(path):
            return run.checkpoint(path)
        if (path / hub.TENSORS).is_file():
            return _folder(path)
        raise WeightsError(f"{path} holds no weights; give {_KINDS}")
    if not path.is_file():
        raise WeightsError(f"{path} does not exist; give {_KINDS}")
    if path.suffix == ".safetensors":
        arrays, texts = tensor_files.read_safetensors(path)
        return from_foreign(arrays, str(path), metadata.decode(texts, str(path)))
    if path.suffix == ".onnx":
        return from_foreign(*onnx_file.read(path))
    if path.suffix in tensor_files.PICKLED:
        return from_foreign(*tensor_files.read_pickled(path), None)
    raise WeightsError(f"{path} is no file of weights; give {_KINDS}")


def from_foreign(
    arrays: Mapping[str, np.ndarray],
    origin: str,
    own: About | None,
    seen: Mapping[str, Any] | None = None,
) -> Weights:
    """Weights from arrays by foreign names.

    Args:
      arrays: in PyTorch's layout.
      origin: the file.
      own: what our export says of them; None for foreign files.
      seen: of those, what is known of classes and preprocessing. The rest is torchvision's own:
        ImageNet's normalisation, 224 pixels, a crop of 0.875.

    Raises:
      WeightsError: as of `read`.
    """
    model, params, stats = architecture.imported(arrays, origin, own.model if own else None)
    return (own or _foreign(model, origin, seen or {})).weights(params, stats)


def _folder(path: Path) -> Weights:
    arrays, texts = tensor_files.read_safetensors(path / hub.TENSORS)
    own = metadata.decode(texts, str(path))
    return from_foreign(arrays, str(path), own, None if own else hub.described(path))


def _foreign(model: Model, origin: str, seen: Mapping[str, Any]) -> About:
    from largebatch.data.photos import MEAN, STD  # brings the image libraries

    defaults = {
        "classes": (),
        "mean": MEAN if model.channels == 3 else (127.5,) * model.channels,
        "std": STD if model.channels == 3 else (127.5,) * model.channels,
        "image_shape": (_SIDE, _SIDE, model.channels),
        "evaluation_crop": 0.875,
        "resampling": "antialias",
        "data": "",
        "origin": origin,
    }
    return metadata.checked({**defaults, **seen, "model": model}, origin)
