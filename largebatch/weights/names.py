"""What other libraries call the arrays of a ResNet, and how they lay them out.

Ours are '/'-joined paths. torchvision and timm share one set of names:

    stages/0/blocks/1/conv3/kernel
    layer1.1.conv3.weight
    resnet.encoder.stages.0.layers.1.layer.2.convolution.weight   (Hugging Face)

All three keep convolutions as OIHW and the head as (classes, features); here they are HWIO and
(features, classes).
"""

import functools
import re
from collections.abc import Iterable, Mapping
from typing import Literal

import numpy as np

Style = Literal["torchvision", "huggingface"]

COUNTER = "num_batches_tracked"
"""A BatchNorm's count of its training steps, which nothing reads; PyTorch keeps one per layer."""

_LEAVES = {"kernel": "weight", "scale": "weight", "mean": "running_mean", "var": "running_var"}
_PIECE = re.compile(r"stages/(\d+)/blocks/(\d+)/(?:(conv|bn)(\d+)|downsample_(conv|bn))")
# Of one stage, more than ResNet-152 has; what goes beyond is reported as an unknown name.
_MOST_BLOCKS = 64


def foreign_name(path: str, style: Style) -> str:
    """What an array is called there: 'stem/conv/kernel' is 'conv1.weight' in torchvision."""
    module, _, leaf = path.rpartition("/")
    return f"{_module(module, style)}.{_LEAVES.get(leaf, leaf)}"


def style_of(names: Iterable[str]) -> Style:
    """Whose names they are."""
    ours = any(name.startswith(("resnet.", "classifier.")) for name in names)
    return "huggingface" if ours else "torchvision"


@functools.cache
def own_names(style: Style) -> Mapping[str, str]:
    """From every name that a ResNet of any depth can have there to our path."""
    return {foreign_name(path, style): path for path in _all_paths()}


def to_foreign(path: str, array: np.ndarray) -> np.ndarray:
    """One of our arrays in their layout, contiguous."""
    return np.ascontiguousarray(array.transpose(_axes(path, array.ndim)))


def to_own(path: str, array: np.ndarray) -> np.ndarray:
    """The inverse of `to_foreign`, contiguous."""
    return np.ascontiguousarray(array.transpose(np.argsort(_axes(path, array.ndim))))


def foreign_shape(path: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that one of our arrays has there."""
    return tuple(shape[axis] for axis in _axes(path, len(shape)))


def _axes(path: str, rank: int) -> tuple[int, ...]:
    if path.endswith("/kernel"):
        return {4: (3, 2, 0, 1), 2: (1, 0)}.get(rank, tuple(range(rank)))
    return tuple(range(rank))


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


def _all_paths() -> Iterable[str]:
    norm = ("scale", "bias", "mean", "var")
    blocks = [f"stages/{i}/blocks/{j}" for i in range(4) for j in range(_MOST_BLOCKS)]
    pairs = [("stem/conv", "stem/bn")]
    for block in blocks:
        pairs += [(f"{block}/conv{k}", f"{block}/bn{k}") for k in (1, 2, 3)]
        pairs.append((f"{block}/downsample_conv", f"{block}/downsample_bn"))
    for conv, bn in pairs:
        yield f"{conv}/kernel"
        yield from (f"{bn}/{leaf}" for leaf in norm)
    yield from ("head/kernel", "head/bias")
