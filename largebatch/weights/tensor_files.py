"""Files of named tensors: safetensors, and PyTorch's pickles without executing them."""

import importlib.metadata
from pathlib import Path
from typing import Any

import numpy as np

from largebatch.errors import one_line
from largebatch.weights.weights import WeightsError

PICKLED = (".pth", ".pt", ".bin", ".tar", ".ckpt")
_TORCH = (2, 6)
"""The first whose reader of state dicts executes nothing, whatever the file holds."""
_NEST = ("state_dict", "model_state_dict", "model")


def read_safetensors(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str] | None]:
    """The arrays of a file by name, and its metadata.

    Raises:
      WeightsError: it is missing or damaged.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as stream:
            texts = stream.metadata()
            kinds = {name: stream.get_slice(name).get_dtype() for name in stream.keys()}  # noqa: SIM118
            arrays = {n: stream.get_tensor(n) for n, kind in kinds.items() if kind != "BF16"}
        if len(arrays) < len(kinds):  # NumPy alone has no such type
            with safe_open(path, framework="flax") as stream:
                halves = [name for name in kinds if name not in arrays]
                arrays |= {name: np.asarray(stream.get_tensor(name)) for name in halves}
    except OSError as error:
        raise WeightsError(f"{path} cannot be read ({error.strerror or error})") from error
    except (SafetensorError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise WeightsError(
            f"{path} is no sound safetensors file ({one_line(error)}); fetch or export it anew"
        ) from error
    return arrays, texts


def read_pickled(path: Path) -> tuple[dict[str, np.ndarray], str]:
    """The tensors of a state dict, and where they are from. Nothing in the file is executed.

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
            "convert the file to safetensors where torch is"
        )
    import torch

    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise WeightsError(f"{path} cannot be read ({error.strerror or error})") from error
    except Exception as error:  # whatever torch's reader makes of a file of unknown content
        raise WeightsError(
            f"{path} is refused: it holds more than tensors, or is damaged "
            f"({type(error).__name__}); save model.state_dict() alone"
        ) from error
    inner = next(
        (k for k in _NEST if isinstance(found, dict) and isinstance(found.get(k), dict)), ""
    )
    origin = f"{path}, its {inner!r}" if inner else str(path)
    tensors = found[inner] if inner else found
    named = isinstance(tensors, dict) and all(isinstance(name, str) for name in tensors)
    if not named or not all(isinstance(x, torch.Tensor) for x in tensors.values()):
        raise WeightsError(f"{origin} holds more than named tensors; save model.state_dict() alone")
    try:
        return {name: _array(tensor) for name, tensor in tensors.items()}, origin
    except (TypeError, RuntimeError, NotImplementedError) as error:
        raise WeightsError(
            f"{origin} holds tensors that are no plain arrays ({one_line(error)}); save dense ones"
        ) from error


def _array(tensor: Any) -> np.ndarray:
    tensor = tensor.detach()
    # NumPy has no bfloat16.
    half = tensor.is_floating_point() and tensor.itemsize < 4
    return (tensor.float() if half else tensor).numpy()
