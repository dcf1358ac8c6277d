"""Time of the backward pass from one gradient to the next, estimated.

It is the roofline of each layer: the larger of its FLOPs at the device's peak and its
bytes at the memory's bandwidth, over the share of both that ResNet-50 training sustains. It places
the cuts between buckets, for which the *shape* of the times matters: late stages have most bytes
and early stages take most time.
"""

import dataclasses
import math
import re
from collections.abc import Collection, Mapping, Sequence

import jax

from largebatch.models import Model
from largebatch.models.tracing import work_of
from largebatch.parallel.hardware import Hardware
from largebatch.trees import flatten_paths

_FIRST = re.compile(r"(?P<block>stages/(?P<stage>\d+)/blocks/(?P<number>\d+))/conv1/kernel")

Shapes = Sequence[tuple[str, tuple[int, ...]]]
"""(path, shape) of every parameter, in the order of the forward pass."""


def shapes_of(model: Model, image_shape: Sequence[int] | None = None) -> Shapes:
    """Return (path, shape) of a model's parameters, in the order of the forward pass.

    Args:
      model: the network.
      image_shape: height, width and channels, on which a user's module is traced for the order;
        None takes the order in which its constructor made the layers.
    """
    shapes = {path: leaf.shape for path, leaf in flatten_paths(model.shapes()[0]).items()}
    traced = image_shape is not None and not model.is_resnet
    paths = work_of(model, image_shape) if traced else model.parameter_paths()
    return tuple((path, shapes[path]) for path in paths)


@dataclasses.dataclass(frozen=True)
class _Layer:
    """A layer's work in backward for one image."""

    flops: float
    elements: float
    """Activation elements read or written."""


def backward_seconds(
    parameters: Shapes,
    hardware: Hardware,
    *,
    images: int,
    image_shape: Sequence[int],
    dtype: str,
    model: Model | None = None,
) -> dict[str, float]:
    """Return the seconds from each parameter's gradient to the next, in the order of completion.

    Args:
      parameters: (path, shape), in the order of the forward pass.
      hardware: peaks and the sustained share.
      images: images that a device computes at a time.
      image_shape: height, width, channels.
      dtype: of convolutions and activations.
      model: the network of the parameters; None is a ResNet.
    """
    if model is None or model.is_resnet:
        layers = _resnet_backward(parameters, image_shape)
    else:
        layers = _traced_backward(model, image_shape)
    itemsize = jax.numpy.dtype(dtype).itemsize

    def seconds(path: str, shape: tuple[int, ...]) -> float:
        layer = layers[path]
        moved = images * layer.elements * itemsize + 2 * math.prod(shape) * itemsize
        at_peak = images * layer.flops / hardware.flops[dtype]
        return max(at_peak, moved / hardware.bandwidth) / hardware.sustained

    return {path: seconds(path, shape) for path, shape in reversed(parameters)}


def without_frozen(seconds: Mapping[str, float], frozen: Collection[str]) -> dict[str, float]:
    """Return the seconds of a pass that computes no gradients of some parameters.

    Backward still passes through a frozen layer whose input depends on a parameter. Its time, an
    upper limit, is added to that of the next gradient. After the last gradient it ends.
    """
    found, passed = {}, 0.0
    for path, own in seconds.items():
        passed += own
        if path not in frozen:
            found[path], passed = passed, 0.0
    return found


def _traced_backward(model: Model, image_shape: Sequence[int]) -> dict[str, _Layer]:
    """Return each parameter's work in backward, from the traced forward pass.

    Backward has two products for each of forward's, and reads and writes twice as much; the first
    layer's input, the images, needs no gradient.
    """
    layers, ways = {}, 1
    for path, work in work_of(model, image_shape).items():
        layers[path] = _Layer(ways * work.flops, ways * work.elements)
        ways = 2
    return layers


def _resnet_backward(parameters: Shapes, image_shape: Sequence[int]) -> dict[str, _Layer]:
    """Return each parameter's work in backward, from paths, shapes and the image's size.

    A convolution reads its input and its output's gradient for the kernel's gradient, and reads
    that again and writes the input's gradient. BatchNorm with ReLU reads its input and its output's
    gradient twice, first for the sums that are its own gradients, then for the input's gradient,
    which it writes.
    """
    shapes = dict(parameters)
    areas = _areas(shapes, image_shape)
    layers = {}
    for path, shape in parameters:
        module, _, name = path.rpartition("/")
        if module == "head":
            pixels = areas["head"][0]
            layers[path] = (
                _Layer(4.0 * math.prod(shape), shape[0] * (1 + pixels) + shape[1])
                if name == "kernel"
                else _Layer(0.0, shape[0])
            )
            continue
        before, after = areas[module.replace("bn", "conv")]
        if name == "kernel":
            ways = 1 if module == "stem/conv" else 2  # images need no gradient
            flops = 2.0 * ways * math.prod(shape) * after
            layers[path] = _Layer(flops, ways * (before * shape[2] + after * shape[3]))
        elif name == "bias":  # complete first, and the scale with it
            layers[path] = _Layer(0.0, 2 * after * shape[0])
        else:
            pool = 0
            if module == "stem/bn":  # the max-pool's backward, where there is one
                pool = (after + areas["stem"][1]) * shape[0] if areas["stem"][1] < after else 0
            layers[path] = _Layer(0.0, 3 * after * shape[0] + pool)
    return layers


def _areas(
    shapes: Mapping[str, tuple[int, ...]], image_shape: Sequence[int]
) -> dict[str, tuple[int, int]]:
    """Return the pixels that each convolution, the stem and the head read and write."""
    sides = tuple(image_shape[:2])

    def halved(sides: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(-(-side // 2) for side in sides)

    areas, here = {}, sides
    if shapes["stem/conv/kernel"][0] == 7:
        here = halved(sides)
        areas["stem/conv"] = (math.prod(sides), math.prod(here))
        here = halved(here)
    else:
        areas["stem/conv"] = (math.prod(sides), math.prod(sides))
    areas["stem"] = (math.prod(sides), math.prod(here))
    for path in shapes:
        match = _FIRST.fullmatch(path)
        if not match:
            continue
        block = match["block"]
        bottleneck = f"{block}/conv3/kernel" in shapes
        strided = match["stage"] != "0" and match["number"] == "0"
        then = halved(here) if strided else here
        before, after = math.prod(here), math.prod(then)
        # The stride lies in the 3×3 convolution.
        areas[f"{block}/conv1"] = (before, before if bottleneck else after)
        areas[f"{block}/conv2"] = (before if bottleneck else after, after)
        areas[f"{block}/conv3"] = (after, after)
        areas[f"{block}/downsample_conv"] = (before, after)
        here = then
    areas["head"] = (math.prod(here), 1)
    return areas
