"""ResNet v1.5 in PyTorch under torchvision's names, written from the paper and those names alone.

Nothing is shared with the package, and torchvision is not needed.
"""

import torch
from torch import nn

BLOCKS = {10: (1, 1, 1, 1), 18: (2, 2, 2, 2), 50: (3, 4, 6, 3)}


class Block(nn.Module):
    """Convolutions of (size, features, stride) with BatchNorm, and a shortcut around them."""

    def __init__(self, features, *layers):
        super().__init__()
        self.count, before = len(layers), features
        for i, (size, after, stride) in enumerate(layers, start=1):
            conv = nn.Conv2d(before, after, size, stride, size // 2, bias=False)
            setattr(self, f"conv{i}", conv)
            setattr(self, f"bn{i}", nn.BatchNorm2d(after))
            before = after
        stride = max(stride for _, _, stride in layers)
        self.downsample = None
        if stride != 1 or features != before:
            conv = nn.Conv2d(features, before, 1, stride, bias=False)
            self.downsample = nn.Sequential(conv, nn.BatchNorm2d(before))

    def forward(self, x):
        y = x
        for i in range(1, self.count + 1):
            y = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(y))
            y = torch.relu(y) if i < self.count else y
        return torch.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    """Images (batch, channels, height, width) to logits."""

    def __init__(self, depth, classes, channels=3, width=64, small=False):
        super().__init__()
        size, stride = (3, 1) if small else (7, 2)
        self.conv1 = nn.Conv2d(channels, width, size, stride, size // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.Identity() if small else nn.MaxPool2d(3, 2, 1)
        features = width
        for i, count in enumerate(BLOCKS[depth]):
            blocks = []
            for j in range(count):
                w, stride = width * 2**i, 2 if i and not j else 1
                layers = [(3, w, stride), (3, w, 1)]
                if depth >= 50:
                    layers = [(1, w, 1), (3, w, stride), (1, 4 * w, 1)]
                blocks.append(Block(features, *layers))
                features = layers[-1][1]
            setattr(self, f"layer{i + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(features, classes)

    def forward(self, x):
        x = self.maxpool(torch.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))
