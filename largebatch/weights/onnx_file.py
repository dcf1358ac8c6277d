"""ONNX: the network in evaluation mode as a graph, with initializers under torchvision's names.

    images (batch, channels, height, width) float32, normalized  →  logits (batch, classes)

The batch is free, the image size is that of the run's evaluation. The metadata are those of our
safetensors files.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from largebatch.errors import one_line
from largebatch.models import DEPTHS, Model
from largebatch.weights.names import module_name
from largebatch.weights.weights import Weights, WeightsError, decode

OPSET = 17
_IR_VERSION = 8
"""Version of the file format: that of ONNX 1.12, the first with opset 17."""
IMAGES, LOGITS = "images", "logits"


def encode(
    model: Model,
    arrays: Mapping[str, np.ndarray],
    about: Mapping[str, str],
    shape: tuple[int, int, int],
) -> bytes:
    """Return the bytes of a file that ONNX's checker accepts.

    Args:
      model: the network.
      arrays: by torchvision's names, in PyTorch's layout, float32.
      about: metadata.
      shape: height, width and channels of the images.

    Raises:
      WeightsError: onnx is not installed.
    """
    onnx = _onnx()
    from onnx import TensorProto, helper, numpy_helper

    height, width, channels = shape

    def value(name: str, *sides: str | int) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, sides)

    graph = helper.make_graph(
        _Graph(model, helper.make_node).nodes,
        model.name,
        [value(IMAGES, "batch", channels, height, width)],
        [value(LOGITS, "batch", model.classes)],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    made = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=_IR_VERSION,
        producer_name="largebatch",
    )
    helper.set_model_props(made, dict(about))
    onnx.checker.check_model(made, full_check=True)
    return made.SerializeToString(deterministic=True)


def read(path: Path) -> tuple[dict[str, np.ndarray], str, Weights]:
    """Return the arrays by torchvision's names, the path as text, and the metadata.

    Raises:
      WeightsError: onnx is not installed, or the file is damaged or not ours.
    """
    onnx = _onnx()
    from onnx import numpy_helper

    try:
        found = onnx.load(path, load_external_data=False)
        arrays = {x.name: numpy_helper.to_array(x) for x in found.graph.initializer}
    except OSError as error:
        raise WeightsError(f"{path} cannot be read ({error.strerror or error})") from error
    except Exception as error:  # protobuf's, whose types change with its versions
        raise WeightsError(f"{path} is not a valid ONNX file ({one_line(error)})") from error
    own = decode({x.key: x.value for x in found.metadata_props}, str(path))
    if own is None:
        raise WeightsError(
            f"{path} was not written by scripts/export.py, and only its names are known; use the "
            "safetensors file or state dict that it was exported from"
        )
    return arrays, str(path), own


class _Graph:
    """The nodes of a network in the order of its forward pass."""

    def __init__(self, model: Model, make_node: Any) -> None:
        self._model, self._make = model, make_node
        self.nodes: list[Any] = []
        kind, depths = DEPTHS[model.name]
        small = model.stem == "small"
        x = self._conv(IMAGES, "stem/conv", 3 if small else 7, 1 if small else 2)
        x = self._relu(self._norm(x, "stem/bn"))
        if not small:
            x = self._add(
                "MaxPool", "maxpool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4
            )
        features = model.width
        for stage, depth in enumerate(depths):
            for block in range(depth):
                width, stride = model.width << stage, 2 if stage and not block else 1
                path = f"stages/{stage}/blocks/{block}"
                x, features = self._block(x, path, features, width, stride, kind)
        x = self._add("GlobalAveragePool", "avgpool", x)
        x = self._add("Flatten", "flatten", x, axis=1)
        head = _name("head")
        self._add("Gemm", LOGITS, x, f"{head}.weight", f"{head}.bias", transB=1)

    def _block(
        self, x: str, path: str, features: int, width: int, stride: int, kind: str
    ) -> tuple[str, int]:
        layers = [(3, stride), (3, 1)] if kind == "basic" else [(1, 1), (3, stride), (1, 1)]
        out = width if kind == "basic" else 4 * width
        shortcut = x
        if stride != 1 or features != out:
            shortcut = self._conv(x, f"{path}/downsample_conv", 1, stride)
            shortcut = self._norm(shortcut, f"{path}/downsample_bn")
        for number, (size, step) in enumerate(layers, start=1):
            x = self._conv(x, f"{path}/conv{number}", size, step)
            x = self._norm(x, f"{path}/bn{number}")
            if number == len(layers):
                block = _name(f"{path}/conv1").removesuffix(".conv1")
                x = self._add("Add", f"{block}.add", x, shortcut)
            x = self._relu(x)
        return x, out

    def _conv(self, x: str, path: str, size: int, stride: int) -> str:
        sides = {"kernel_shape": [size] * 2, "strides": [stride] * 2, "pads": [size // 2] * 4}
        return self._add("Conv", _name(path), x, f"{_name(path)}.weight", **sides)

    def _norm(self, x: str, path: str) -> str:
        leaves = ("weight", "bias", "running_mean", "running_var")
        inputs = [f"{_name(path)}.{leaf}" for leaf in leaves]
        epsilon = self._model.epsilon
        return self._add("BatchNormalization", _name(path), x, *inputs, epsilon=epsilon)

    def _relu(self, x: str) -> str:
        return self._add("Relu", f"{x}.relu", x)

    def _add(self, kind: str, name: str, *inputs: str, **attributes: Any) -> str:
        """Add a node and return its name, which is also that of its output."""
        self.nodes.append(self._make(kind, list(inputs), [name], name, **attributes))
        return name


def _name(path: str) -> str:
    return module_name(path, "torchvision")


def _onnx() -> Any:
    try:
        import onnx
    except ImportError as error:
        raise WeightsError("ONNX needs the package onnx: pip install -e '.[export]'") from error
    return onnx
