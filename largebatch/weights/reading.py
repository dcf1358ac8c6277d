"""Reads weights: runs, checkpoints, safetensors, state dicts, ONNX and hub folders."""

import dataclasses
import importlib.metadata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from largebatch.checkpoint.place import LocalPlace, downloaded
from largebatch.data.source import MEAN, STD
from largebatch.errors import one_line
from largebatch.models import Model
from largebatch.store_urls import url_of
from largebatch.weights import hub, names, onnx_file, run
from largebatch.weights.weights import Weights, WeightsError, checked, decode

PICKLED = (".pth", ".pt", ".bin", ".tar", ".ckpt")
_TORCH = (2, 6)
"""The first version whose reader of state dicts executes nothing, whatever the file holds."""
_NEST = ("state_dict", "model_state_dict", "model")
_KINDS = (
    "a run, a checkpoint, a .safetensors or .onnx file, a .pth state dict, or a folder with "
    f"{hub.CONFIG} and {hub.TENSORS}"
)
_SIDE = 224


def read(
    path: str | Path, *, ema: bool = False, best: bool = False, trust: str | Sequence[str] = ()
) -> Weights:
    """Read the network at a path, for evaluation or further training.

    Args:
      path: a run directory, also in an object store, whose newest valid checkpoint is read; a
        checkpoint's file; a ``.safetensors`` file with torchvision's, timm's or Hugging Face's
        names; a ``.pth`` or ``.pt`` state dict, read without executing pickles; a folder of
        transformers or timm for Hugging Face's hub; an ``.onnx`` file that we exported.
      best: read the checkpoint of a run with the greatest validation accuracy instead of the
        newest one.
      ema: read the averaged weights of a run or checkpoint (``schedule.ema``).
      trust: modules of the user's own networks, such as ``mine`` or ``folder/mine.py``, which may
        be imported if ``path`` names them. No other module is imported.

    Raises:
      ConfigError: the network is code that is not in ``trust``.
      CheckpointError: a checkpoint is not valid, or there is none.
      WeightsError: there are no averaged weights; or a file is missing, damaged or of an unknown
        network. An array too many or too few is an error.
    """
    path, trust = Path(path), (trust,) if isinstance(trust, str) else trust
    if url := url_of(path).removesuffix("/checkpoints"):
        return _downloaded(url, ema=ema, best=best, trust=trust)
    if path.is_dir():
        if path.name == "checkpoints" and not run.is_run(path):
            path = path.parent
        if run.is_run(path):
            return run.of_run(LocalPlace(path), best=best, ema=ema, trust=trust)
    if run.is_checkpoint(path) and not best:
        return run.of_checkpoint(path.read_bytes(), str(path), path.parent.parent, ema, trust)
    if best:
        raise WeightsError(f"{path}: only a run has a best checkpoint; omit --best")
    if ema:
        raise WeightsError(f"{path}: only a run or a checkpoint has averaged weights; omit --ema")
    if path.is_dir():
        if not (path / hub.TENSORS).is_file():
            raise WeightsError(f"{path} holds no weights; use {_KINDS}")
        arrays, texts = read_safetensors(path / hub.TENSORS)
        own = decode(texts, str(path), trust)
        return _weights(arrays, str(path), own, None if own else hub.described(path))
    if not path.is_file():
        raise WeightsError(f"{path} does not exist; use {_KINDS}")
    if path.suffix == ".safetensors":
        arrays, texts = read_safetensors(path)
        return _weights(arrays, str(path), decode(texts, str(path), trust))
    if path.suffix == ".onnx":
        return _weights(*onnx_file.read(path))
    if path.suffix in PICKLED:
        return _weights(*read_pickled(path))
    raise WeightsError(f"{path} is not a file of weights; use {_KINDS}")


def _downloaded(url: str, *, ema: bool, best: bool, trust: Sequence[str]) -> Weights:
    """Read a run, or one of its checkpoints, in an object store."""
    folder, slash, name = url.rpartition("/checkpoints/")
    step = name.removesuffix(".safetensors")
    if slash and not step.isdecimal():
        raise WeightsError(f"{url} is not a checkpoint; use {_KINDS}")
    with downloaded(folder if slash else url) as place:
        chosen = int(step) if slash else None
        return run.of_run(place, step=chosen, best=best and not slash, ema=ema, trust=trust)


def read_safetensors(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str] | None]:
    """Return the arrays of a file by name, and its metadata.

    Raises:
      WeightsError: it is missing or damaged.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as stream:
            texts = stream.metadata()
            types = {name: stream.get_slice(name).get_dtype() for name in stream.keys()}  # noqa: SIM118
            arrays = {name: stream.get_tensor(name) for name in types if types[name] != "BF16"}
        if len(arrays) < len(types):  # NumPy alone has no bfloat16
            with safe_open(path, framework="flax") as stream:
                halves = [name for name in types if name not in arrays]
                arrays |= {name: np.asarray(stream.get_tensor(name)) for name in halves}
    except OSError as error:
        raise WeightsError(f"{path} cannot be read ({error.strerror or error})") from error
    except (SafetensorError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise WeightsError(
            f"{path} is not a valid safetensors file ({one_line(error)}); download or export it "
            "again"
        ) from error
    return arrays, texts


def read_pickled(path: Path) -> tuple[dict[str, np.ndarray], str]:
    """Return the tensors of a state dict, and their place. Nothing in the file is executed.

    Raises:
      WeightsError: torch is not installed or too old, or the file holds more than tensors.
    """
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        version = ""
    if not version or tuple(int(x) for x in version.split(".")[:2]) < _TORCH:
        raise WeightsError(
            f"{path} is a pickle, which only torch {'.'.join(map(str, _TORCH))} or newer reads "
            f"without executing it ({version or 'none'} is installed): pip install torch, or "
            "convert the file to safetensors"
        )
    import torch

    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
        nested = [name for name in _NEST if isinstance(found.get(name), dict)]
        tensors = found[nested[0]] if nested else found
        arrays = {str(name): _array(tensor) for name, tensor in tensors.items()}
    except OSError as error:
        raise WeightsError(f"{path} cannot be read ({error.strerror or error})") from error
    except Exception as error:  # torch's reader may raise anything on unknown content
        raise WeightsError(
            f"{path} is refused: it holds more than named dense tensors, or is damaged "
            f"({type(error).__name__}); save model.state_dict() alone"
        ) from error
    return arrays, f"{path}, its {nested[0]!r}" if nested else str(path)


def _array(tensor: Any) -> np.ndarray:
    tensor = tensor.detach()
    half = tensor.is_floating_point() and tensor.itemsize < 4  # NumPy has no bfloat16
    return (tensor.float() if half else tensor).numpy()


def _weights(
    arrays: Mapping[str, np.ndarray],
    origin: str,
    own: Weights | None = None,
    described: Mapping[str, Any] | None = None,
) -> Weights:
    """Weights from arrays by foreign names, with our metadata or with what a folder states."""
    if own and not own.model.is_resnet:
        params, stats = names.trees(own.model, arrays, origin)
    else:
        model, params, stats = names.imported(arrays, origin, own.model if own else None)
        own = own or _foreign(model, origin, described or {})
    return dataclasses.replace(own, params=params, stats=stats)


def _foreign(model: Model, origin: str, described: Mapping[str, Any]) -> Weights:
    """What is known of a foreign file, without arrays; the rest is torchvision's preprocessing."""
    grey_levels = (127.5,) * model.channels
    torchvision = {
        "classes": (),
        "mean": MEAN if model.channels == 3 else grey_levels,
        "std": STD if model.channels == 3 else grey_levels,
        "image_shape": (_SIDE, _SIDE, model.channels),
        "evaluation_crop": 0.875,
        "resampling": "antialias",
        "data": "",
        "origin": origin,
    }
    return checked({**torchvision, **described, "model": model}, origin)
