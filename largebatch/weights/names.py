"""The arrays of a ResNet in all formats: their names, their layout, and the network they make.

    flax          stages/0/blocks/1/conv3/kernel      the '/'-joined paths of this program
    torchvision   layer1.1.conv3.weight               also of timm and of our ONNX files
    huggingface   resnet.encoder.stages.0.layers.1.layer.2.convolution.weight

`_MODULES` is the only place that spells them. The last two keep convolutions as OIHW and the head
as (classes, features); here they are HWIO and (features, classes).
"""

import functools
import itertools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, get_args

import numpy as np

from largebatch.models import DEPTHS, Model
from largebatch.trees import flatten_paths, unflatten_paths
from largebatch.weights.weights import PyTree, WeightsError, few

Style = Literal["flax", "torchvision", "huggingface"]
Shapes = Mapping[str, tuple[int, ...]]

COUNTER = "num_batches_tracked"
"""A BatchNorm's number of training steps, one per layer in PyTorch; nothing reads it."""

_STYLES: tuple[Style, ...] = get_args(Style)
_BLOCK, _LAYER = "stages/{i}/blocks/{j}", "resnet.encoder.stages.{i}.layers.{j}"
# In each style; {i}, {j} and {k} count from 0, {i1} and {k1} from 1.
_MODULES = (
    ("stem/conv", "conv1", "resnet.embedder.embedder.convolution"),
    ("stem/bn", "bn1", "resnet.embedder.embedder.normalization"),
    (f"{_BLOCK}/conv{{k1}}", "layer{i1}.{j}.conv{k1}", f"{_LAYER}.layer.{{k}}.convolution"),
    (f"{_BLOCK}/bn{{k1}}", "layer{i1}.{j}.bn{k1}", f"{_LAYER}.layer.{{k}}.normalization"),
    (f"{_BLOCK}/downsample_conv", "layer{i1}.{j}.downsample.0", f"{_LAYER}.shortcut.convolution"),
    (f"{_BLOCK}/downsample_bn", "layer{i1}.{j}.downsample.1", f"{_LAYER}.shortcut.normalization"),
    ("head", "fc", "classifier.1"),
)
_STEMS = {7: "conv7", 3: "small"}
# Put before every name by wrappers for several devices and by torch.compile.
_PREFIXES = ("module.", "_orig_mod.")
_LEAVES = {"kernel": "weight", "scale": "weight", "mean": "running_mean", "var": "running_var"}
_MAX_BLOCKS = 64  # of a stage; more than ResNet-152 has
_KNOWN = f"known: {', '.join(DEPTHS)}"


@functools.cache  # tracing a deep network takes a second
def shapes(model: Model) -> tuple[Shapes, Shapes]:
    """Return the shapes of all parameters and all statistics, by path, in the network's order."""
    params, stats = (
        {path: array.shape for path, array in flatten_paths(tree).items()}
        for tree in model.shapes()
    )
    return MappingProxyType(params), MappingProxyType(stats)


@functools.cache
def _modules(style: Style) -> Mapping[str, str]:
    """Return the name in a style of every module that a ResNet can have, by our path."""
    column = _STYLES.index(style)
    places = itertools.product(range(4), range(_MAX_BLOCKS), range(3))
    positions = [{"i": i, "i1": i + 1, "j": j, "k": k, "k1": k + 1} for i, j, k in places]
    return {row[0].format(**at): row[column].format(**at) for row in _MODULES for at in positions}


def module_name(module: str, style: Style) -> str:
    """Return the name of a module in a style, such as 'conv1' of 'stem/conv'."""
    return _modules(style)[module]


def foreign_name(path: str, style: Style) -> str:
    """Return the name of an array in a style, such as 'conv1.weight' of 'stem/conv/kernel'."""
    module, _, leaf = path.rpartition("/")
    return path if style == "flax" else f"{module_name(module, style)}.{_LEAVES.get(leaf, leaf)}"


@functools.cache
def own_names(style: Style) -> Mapping[str, str]:
    """Map every name that an array of any ResNet can have in a style to our path."""
    paths = []
    for module in _modules(style):
        is_norm = "bn" in module.rpartition("/")[2]
        leaves = ("scale", "bias", "mean", "var") if is_norm else ("kernel",)
        paths += [f"{module}/{leaf}" for leaf in leaves]
    return {foreign_name(path, style): path for path in [*paths, "head/bias"]}


def to_foreign(path: str, array: np.ndarray, style: Style) -> np.ndarray:
    """Return one of our arrays in the layout of a style, contiguous."""
    return np.ascontiguousarray(array.transpose(_axes(path, array.ndim, style)))


def imported(
    found: Mapping[str, np.ndarray], where: str, stated: Model | None = None
) -> tuple[Model, PyTree, PyTree]:
    """Return the network, the parameters and the statistics of a state dict.

    Args:
      found: arrays by the names and in the layout of a style.
      where: the file, for messages.
      stated: the network according to the file's metadata; None: it is inferred from the arrays,
        which do not show a stem's computation and BatchNorm's epsilon.

    Raises:
      WeightsError: a name is unknown or missing, or a shape or type is not that of a ResNet.
    """
    found = {n: x for n, x in _unwrapped(found).items() if n.rpartition(".")[2] != COUNTER}
    usual: tuple[Style, ...] = ("torchvision", "huggingface", "flax")  # the first if none fits
    style = max(usual, key=lambda each: len(found.keys() & own_names(each).keys()))
    known = own_names(style)
    if unknown := [name for name in found if name not in known]:
        raise WeightsError(
            f"{where}: {few(unknown)}: in no ResNet v1.5 with a plain stem and without "
            f"squeeze-and-excitation; {_KNOWN}"
        )
    arrays = {}
    for name, array in found.items():
        axes = np.argsort(_axes(known[name], array.ndim, style))
        arrays[known[name]] = np.ascontiguousarray(array.transpose(axes))
    model = stated or _inferred(arrays, where, style)
    return model, *trees(model, arrays, where, style)


def trees(
    model: Model, found: Mapping[str, np.ndarray], where: str, style: Style = "flax"
) -> tuple[PyTree, PyTree]:
    """Return the parameters and the statistics of a network from its arrays by our paths.

    Args:
      model: the network.
      found: its arrays in our layout, in any order.
      where: the file, for messages.
      style: of the names and shapes in messages.

    Raises:
      WeightsError: an array is missing or is too many, or its shape or type is another.
    """
    params, stats = shapes(model)
    expected = params | stats
    if missing := [foreign_name(p, style) for p in expected if p not in found]:
        raise WeightsError(f"{where}: {model.name} needs {few(missing)}, which is missing")
    if left := [foreign_name(p, style) for p in found if p not in expected]:
        raise WeightsError(f"{where}: {few(left)} is no part of {model.name}; {_KNOWN}")
    for path, own in expected.items():
        name, array, axes = foreign_name(path, style), found[path], _axes(path, len(own), style)
        if array.shape != own:
            shape, got = (
                tuple(sides[axis] for axis in axes) if len(sides) == len(axes) else sides
                for sides in (own, array.shape)
            )
            raise WeightsError(
                f"{where}: {name}: expected shape {shape} in {model.title}, got {got}"
            )
        if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
            raise WeightsError(f"{where}: {name}: expected floats, got {array.dtype}")
    return tuple(
        unflatten_paths({path: np.asarray(found[path], np.float32) for path in group})
        for group in (params, stats)
    )


def _inferred(arrays: Mapping[str, np.ndarray], where: str, style: Style) -> Model:
    """The network of these arrays, by our paths; ``style`` is that of names in messages."""
    for path in ("stem/conv/kernel", "head/kernel"):
        if path not in arrays or not arrays[path].size:
            name = foreign_name(path, style)
            raise WeightsError(f"{where} has no {name}, so it is not a ResNet")
    stem, head = arrays["stem/conv/kernel"].shape, arrays["head/kernel"].shape
    if len(stem) != 4 or stem[0] != stem[1] or stem[0] not in _STEMS:
        raise WeightsError(
            f"{where}: first convolution: expected kernels of 7×7 (model.stem=conv7) or 3×3 "
            f"(small), got {'×'.join(map(str, stem[:2])) or 'a number'}"
        )
    kind = "bottleneck" if "stages/0/blocks/0/conv3/kernel" in arrays else "basic"
    depths = tuple(
        max((int(p.split("/")[3]) + 1 for p in arrays if p.startswith(f"stages/{i}/")), default=0)
        for i in range(4)
    )
    for name, known in DEPTHS.items():
        if known == (kind, depths) and head:
            channels, width = stem[2:]
            return Model(
                name, classes=head[-1], channels=channels, width=width, stem=_STEMS[stem[0]]
            )
    raise WeightsError(f"{where}: {kind} blocks, {depths} in the stages: no network; {_KNOWN}")


def _unwrapped(found: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    found = dict(found)
    while prefix := next(
        (p for p in _PREFIXES if found and all(name.startswith(p) for name in found)), ""
    ):
        found = {name.removeprefix(prefix): array for name, array in found.items()}
    return found


def _axes(path: str, rank: int, style: Style) -> tuple[int, ...]:
    """The axes of our array in the order of a style."""
    kernel = path.endswith("/kernel") and style != "flax"
    layouts = {4: (3, 2, 0, 1), 2: (1, 0)} if kernel else {}
    return layouts.get(rank, tuple(range(rank)))
