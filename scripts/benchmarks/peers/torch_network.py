"""Networks of torchvision's blocks."""

import importlib
from typing import Any

from benchmarks.competitor import Absent

_DEPTHS = {
    "resnet18": ("BasicBlock", (2, 2, 2, 2)),
    "resnet34": ("BasicBlock", (3, 4, 6, 3)),
    "resnet50": ("Bottleneck", (3, 4, 6, 3)),
}


def load(name: str) -> Any:
    """A module of a library that may not be installed.

    Raises:
        Absent: It cannot be imported.
    """
    try:
        return importlib.import_module(name)
    except Exception as error:  # its binary part may fail to load, or not match another library's
        raise Absent(f"{name} cannot be imported ({type(error).__name__}: {error})") from error


def resnet(name: str, width: int, classes: int) -> Any:
    """A ResNet of torchvision's blocks and initial values; torchvision's own class has width 64.

    Raises:
        Absent: torchvision cannot be imported, or has no such network.
    """
    if name not in _DEPTHS:
        raise Absent(f"{name} is not made from torchvision's blocks; use {', '.join(_DEPTHS)}")
    kind, depths = _DEPTHS[name]
    nn, block = load("torch.nn"), getattr(load("torchvision.models.resnet"), kind)
    stem = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
    layers, fan_in = [*stem, nn.MaxPool2d(3, 2, 1)], width
    for stage, depth in enumerate(depths):
        planes = width << stage
        out = planes * block.expansion
        for index in range(depth):
            stride = 2 if stage and not index else 1
            shortcut = None
            if stride != 1 or fan_in != out:
                conv = nn.Conv2d(fan_in, out, 1, stride, bias=False)
                shortcut = nn.Sequential(conv, nn.BatchNorm2d(out))
            layers.append(block(fan_in, planes, stride, shortcut))
            fan_in = out
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(fan_in, classes)]
    network = nn.Sequential(*layers)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return network
