"""Which network some arrays are, from their names and shapes; every array is accounted for."""

import dataclasses
import functools
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from largebatch.models import DEPTHS, Model
from largebatch.trees import flatten_paths, unflatten_paths
from largebatch.weights import names
from largebatch.weights.weights import PyTree, WeightsError, few

_STEMS = {7: "conv7", 3: "small"}
_PREFIXES = ("module.", "_orig_mod.")
"""Of every name, where a wrapper for several devices or a compiler was saved with the network."""


Shapes = Mapping[str, tuple[int, ...]]


@functools.cache  # tracing a deep network takes a second
def shapes(model: Model) -> tuple[Shapes, Shapes]:
    """Shapes of all parameters and of all statistics, by path, in ``Model.init``'s order."""
    trees = model.shapes()
    params, stats = ({p: x.shape for p, x in flatten_paths(tree).items()} for tree in trees)
    return MappingProxyType(params), MappingProxyType(stats)


def imported(
    found: Mapping[str, np.ndarray], where: str, said: Model | None = None
) -> tuple[Model, PyTree, PyTree]:
    """The network, its parameters and its statistics that a foreign state dict holds.

    Args:
      found: arrays in PyTorch's layout, by torchvision's, timm's or Hugging Face's names, or in
        Flax's by our paths.
      where: the file, for messages.
      said: what the file says of the network; None if nothing. Of what arrays do not show, the
        computation of the stem and BatchNorm's epsilon are taken from it.

    Raises:
      WeightsError: a name is unknown or missing, or a shape or type is not that of a ResNet.
    """
    found = _unwrapped(found)
    found = {n: x for n, x in found.items() if n.rpartition(".")[2] != names.COUNTER}
    if found and found.keys() <= set(names.own_names("torchvision").values()):  # Flax paths
        found = {
            names.foreign_name(path, "torchvision"): names.to_foreign(path, array)
            for path, array in found.items()
        }
    style = names.style_of(found)
    known = names.own_names(style)
    if unknown := [name for name in found if name not in known]:
        raise WeightsError(
            f"{where}: {few(unknown)} is in no ResNet v1.5 with a plain stem"
            f"{_hint(unknown)}; {_KNOWN}"
        )
    arrays = {known[name]: array for name, array in found.items()}
    model = inferred(arrays, where, style)
    if said is not None:
        model = _as_said(model, said, where)
    params, stats = shapes(model)
    wanted = params | stats
    if missing := [names.foreign_name(p, style) for p in wanted if p not in arrays]:
        raise WeightsError(f"{where}: {model.name} needs {few(missing)}, which is missing")
    if left := [names.foreign_name(p, style) for p in arrays if p not in wanted]:
        raise WeightsError(f"{where}: {few(left)} is no part of {model.name}; {_KNOWN}")
    for path, shape in wanted.items():
        has, array = names.foreign_shape(path, shape), arrays[path]
        name = names.foreign_name(path, style)
        if array.shape != has:
            raise WeightsError(
                f"{where}: {name} has shape {array.shape}, {model.name} of width {model.width} "
                f"has {has} there"
            )
        if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
            raise WeightsError(f"{where}: {name} is {array.dtype}; its numbers must be floats")
    own = {path: names.to_own(path, arrays[path].astype(np.float32)) for path in wanted}
    return model, *(unflatten_paths({p: own[p] for p in group}) for group in (params, stats))


def inferred(arrays: Mapping[str, np.ndarray], where: str, style: names.Style) -> Model:
    """The network whose arrays these are, by our paths but in PyTorch's layout."""
    stem, head = (_kernel(arrays, path, where, style) for path in ("stem/conv", "head"))
    if len(stem) != 4 or stem[2] != stem[3] or stem[2] not in _STEMS:
        raise WeightsError(
            f"{where}: the first convolution has shape {stem}; kernels of 7×7 (model.stem=conv7) "
            "and 3×3 (small) are known"
        )
    kind = "bottleneck" if "stages/0/blocks/0/conv3/kernel" in arrays else "basic"
    depths = tuple(
        max((int(p.split("/")[3]) + 1 for p in arrays if p.startswith(f"stages/{i}/")), default=0)
        for i in range(4)
    )
    for name, known in DEPTHS.items():
        if known == (kind, depths):
            return Model(
                name, classes=head[0], channels=stem[1], width=stem[0], stem=_STEMS[stem[2]]
            )
    raise WeightsError(f"{where}: {kind} blocks, {depths} in the stages, are no {_KNOWN}")


_KNOWN = f"known: {', '.join(DEPTHS)}"


def _kernel(
    arrays: Mapping[str, np.ndarray], path: str, where: str, style: names.Style
) -> tuple[int, ...]:
    path = f"{path}/kernel"
    if path not in arrays or not arrays[path].size:
        raise WeightsError(f"{where} has no {names.foreign_name(path, style)}, so it is no ResNet")
    return arrays[path].shape


def _as_said(model: Model, said: Model, where: str) -> Model:
    blocks = said.stem == "space_to_depth" and model.stem == "conv7"
    stem = said.stem if blocks else model.stem
    whole = dataclasses.replace(model, stem=stem, epsilon=said.epsilon)
    for field in ("name", "classes", "channels", "width", "stem"):
        says, has = getattr(said, field), getattr(whole, field)
        if says != has:
            raise WeightsError(f"{where} says model.{field}={says}, its arrays are of {has}")
    return whole


def _unwrapped(found: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    found = dict(found)
    while prefix := next(
        (p for p in _PREFIXES if found and all(name.startswith(p) for name in found)), ""
    ):
        found = {name.removeprefix(prefix): array for name, array in found.items()}
    return found


def _hint(unknown: list[str]) -> str:
    """What the names of frequent relatives mean."""
    first = unknown[0]
    if first.startswith(("conv1.", "stem.")):
        return " (a deep stem, as of timm's resnet50d)"
    if ".se." in first or ".attn" in first:
        return " (attention or squeeze-and-excitation)"
    if first.startswith("module.") or first.startswith("backbone."):
        return " (saved with a wrapper around the network)"
    return ""
