"""The arrays of a ResNet in other libraries: their names, their layout, and the network they make.

Ours are '/'-joined paths. torchvision and timm share one set of names:

    stages/0/blocks/1/conv3/kernel
    layer1.1.conv3.weight
    resnet.encoder.stages.0.layers.1.layer.2.convolution.weight   (Hugging Face)

All three keep convolutions as OIHW and the head as (classes, features); here they are HWIO and
(features, classes).
"""

import dataclasses
import functools
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import numpy as np

from largebatch.models import DEPTHS, Model
from largebatch.trees import flatten_paths, unflatten_paths
from largebatch.weights.weights import PyTree, WeightsError, few

Style = Literal["torchvision", "huggingface"]
Shapes = Mapping[str, tuple[int, ...]]

COUNTER = "num_batches_tracked"
"""A BatchNorm's number of training steps, one per layer in PyTorch; nothing reads it."""

_STEMS = {7: "conv7", 3: "small"}
# Put before every name by wrappers for several devices and by torch.compile.
_PREFIXES = ("module.", "_orig_mod.")
_LEAVES = {"kernel": "weight", "scale": "weight", "mean": "running_mean", "var": "running_var"}
_PIECE = re.compile(r"stages/(\d+)/blocks/(\d+)/(?:(conv|bn)(\d+)|downsample_(conv|bn))")
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


def foreign_name(path: str, style: Style) -> str:
    """Return another library's name of an array, such as 'conv1.weight' of 'stem/conv/kernel'."""
    module, _, leaf = path.rpartition("/")
    return f"{_module(module, style)}.{_LEAVES.get(leaf, leaf)}"


@functools.cache
def own_names(style: Style) -> Mapping[str, str]:
    """Map every name that an array of any ResNet can have in a style to our path."""
    blocks = [f"stages/{i}/blocks/{j}" for i in range(4) for j in range(_MAX_BLOCKS)]
    layers = [("stem/conv", "stem/bn")]
    for block in blocks:
        layers += [(f"{block}/conv{k}", f"{block}/bn{k}") for k in (1, 2, 3)]
        layers.append((f"{block}/downsample_conv", f"{block}/downsample_bn"))
    paths = ["head/kernel", "head/bias"]
    for conv, bn in layers:
        paths += [f"{conv}/kernel", *(f"{bn}/{leaf}" for leaf in ("scale", "bias", "mean", "var"))]
    return {foreign_name(path, style): path for path in paths}


def to_foreign(path: str, array: np.ndarray) -> np.ndarray:
    """Return one of our arrays in PyTorch's layout, contiguous."""
    return np.ascontiguousarray(array.transpose(_axes(path, array.ndim)))


def to_own(path: str, array: np.ndarray) -> np.ndarray:
    """Invert `to_foreign`."""
    return np.ascontiguousarray(array.transpose(np.argsort(_axes(path, array.ndim))))


def imported(
    found: Mapping[str, np.ndarray], where: str, stated: Model | None = None
) -> tuple[Model, PyTree, PyTree]:
    """Return the network, the parameters and the statistics of a state dict.

    Args:
      found: arrays in PyTorch's layout by torchvision's, timm's or Hugging Face's names, or in
        Flax's layout by our paths.
      where: the file, for messages.
      stated: the network according to the file's metadata; None if it has none. The arrays do not
        show a stem's computation and BatchNorm's epsilon, which are taken from it.

    Raises:
      WeightsError: a name is unknown or missing, or a shape or type is not that of a ResNet.
    """
    found = {n: x for n, x in _unwrapped(found).items() if n.rpartition(".")[2] != COUNTER}
    if found and found.keys() <= set(own_names("torchvision").values()):  # Flax paths
        found = {foreign_name(p, "torchvision"): to_foreign(p, x) for p, x in found.items()}
    theirs = any(name.startswith(("resnet.", "classifier.")) for name in found)
    style: Style = "huggingface" if theirs else "torchvision"
    known = own_names(style)
    if unknown := [name for name in found if name not in known]:
        raise WeightsError(
            f"{where}: {few(unknown)}: in no ResNet v1.5 with a plain stem{_hint(unknown[0])}; "
            f"{_KNOWN}"
        )
    arrays = {known[name]: array for name, array in found.items()}
    model = _inferred(arrays, where, style)
    if stated is not None:
        model = _completed(model, stated, where)
    params, stats = shapes(model)
    expected = params | stats
    if missing := [foreign_name(p, style) for p in expected if p not in arrays]:
        raise WeightsError(f"{where}: {model.name} needs {few(missing)}, which is missing")
    if left := [foreign_name(p, style) for p in arrays if p not in expected]:
        raise WeightsError(f"{where}: {few(left)} is no part of {model.name}; {_KNOWN}")
    for path, shape in expected.items():
        array, name = arrays[path], foreign_name(path, style)
        foreign = tuple(shape[axis] for axis in _axes(path, len(shape)))
        if array.shape != foreign:
            raise WeightsError(
                f"{where}: {name}: expected shape {foreign} in {model.name} of width "
                f"{model.width}, got {array.shape}"
            )
        if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
            raise WeightsError(f"{where}: {name}: expected floats, got {array.dtype}")
    own = {path: to_own(path, arrays[path].astype(np.float32)) for path in expected}
    return model, *(unflatten_paths({p: own[p] for p in group}) for group in (params, stats))


def trees(model: Model, found: Mapping[str, np.ndarray], where: str) -> tuple[PyTree, PyTree]:
    """Return the parameters and the statistics of a network from its arrays by our paths.

    Args:
      model: the network.
      found: its arrays in Flax's layout, in any order.
      where: the file, for messages.

    Raises:
      WeightsError: an array is missing, is too many, or has another shape.
    """
    params, stats = shapes(model)
    expected = params | stats
    wrong = [
        f"{name}: expected {expected.get(name, 'none')}, "
        f"got {found[name].shape if name in found else 'none'}"
        for name in sorted(expected.keys() | found.keys())
        if name not in found or expected.get(name) != found[name].shape
    ]
    if wrong:
        raise WeightsError(f"{where} does not hold the network that it names: {few(wrong)}")
    return tuple(
        unflatten_paths({n: np.asarray(found[n], np.float32) for n in group})
        for group in (params, stats)
    )


def _inferred(arrays: Mapping[str, np.ndarray], where: str, style: Style) -> Model:
    """The network of these arrays, by our paths but in PyTorch's layout."""
    for path in ("stem/conv/kernel", "head/kernel"):
        if path not in arrays or not arrays[path].size:
            name = foreign_name(path, style)
            raise WeightsError(f"{where} has no {name}, so it is not a ResNet")
    stem, head = arrays["stem/conv/kernel"].shape, arrays["head/kernel"].shape
    if len(stem) != 4 or stem[2] != stem[3] or stem[2] not in _STEMS:
        raise WeightsError(
            f"{where}: first convolution: expected kernels of 7×7 (model.stem=conv7) or 3×3 "
            f"(small), got shape {stem}"
        )
    kind = "bottleneck" if "stages/0/blocks/0/conv3/kernel" in arrays else "basic"
    depths = tuple(
        max((int(p.split("/")[3]) + 1 for p in arrays if p.startswith(f"stages/{i}/")), default=0)
        for i in range(4)
    )
    for name, known in DEPTHS.items():
        if known == (kind, depths) and head:
            stem_name = _STEMS[stem[2]]
            return Model(name, classes=head[0], channels=stem[1], width=stem[0], stem=stem_name)
    raise WeightsError(f"{where}: {kind} blocks, {depths} in the stages: no network; {_KNOWN}")


def _completed(model: Model, stated: Model, where: str) -> Model:
    """The inferred network with what its arrays do not show."""
    blocks = stated.stem == "space_to_depth" and model.stem == "conv7"
    stem = stated.stem if blocks else model.stem
    complete = dataclasses.replace(model, stem=stem, epsilon=stated.epsilon)
    for field in ("name", "classes", "channels", "width", "stem"):
        expected, got = getattr(stated, field), getattr(complete, field)
        if expected != got:
            raise WeightsError(f"{where} states model.{field}={expected}, its arrays are of {got}")
    return complete


def _unwrapped(found: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    found = dict(found)
    while prefix := next(
        (p for p in _PREFIXES if found and all(name.startswith(p) for name in found)), ""
    ):
        found = {name.removeprefix(prefix): array for name, array in found.items()}
    return found


def _hint(name: str) -> str:
    """What an unknown name of a frequent relative means."""
    if name.startswith(("conv1.", "stem.")):
        return " (a deep stem, such as timm's resnet50d)"
    if ".se." in name or ".attn" in name:
        return " (attention or squeeze-and-excitation)"
    if name.startswith(("module.", "backbone.")):
        return " (saved with a wrapper around the network)"
    return ""


def _axes(path: str, rank: int) -> tuple[int, ...]:
    layouts = {4: (3, 2, 0, 1), 2: (1, 0)} if path.endswith("/kernel") else {}
    return layouts.get(rank, tuple(range(rank)))


def _module(module: str, style: Style) -> str:
    theirs = style == "huggingface"
    kinds = {"conv": "convolution", "bn": "normalization"}
    if module == "head":
        return "classifier.1" if theirs else "fc"
    if module.startswith("stem/"):
        kind = module.removeprefix("stem/")
        return f"resnet.embedder.embedder.{kinds[kind]}" if theirs else f"{kind}1"
    stage, block, kind, number, shortcut = _PIECE.fullmatch(module).groups()
    if theirs:
        inner = f"layer.{int(number) - 1}.{kinds[kind]}" if kind else f"shortcut.{kinds[shortcut]}"
        return f"resnet.encoder.stages.{stage}.layers.{block}.{inner}"
    inner = f"{kind}{number}" if kind else f"downsample.{('conv', 'bn').index(shortcut)}"
    return f"layer{int(stage) + 1}.{block}.{inner}"
