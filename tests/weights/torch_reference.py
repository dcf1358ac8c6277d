"""ResNet v1.5 in PyTorch under torchvision's names, written from the paper and those names alone.

torchvision itself is not needed for the tests; nothing here is shared with the package.
"""

import torch
from torch import nn

BLOCKS = {10: (1, 1, 1, 1), 18: (2, 2, 2, 2), 50: (3, 4, 6, 3)}


class Basic(nn.Module):
    """Two 3×3 convolutions."""

    def __init__(self, features_in, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(features_in, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = shortcut(features_in, width, stride)

    def forward(self, x):
        y = torch.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return torch.relu(y + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    """1×1, 3×3 with the stride, 1×1 to four times the width."""

    def __init__(self, features_in, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(features_in, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.downsample = shortcut(features_in, 4 * width, stride)

    def forward(self, x):
        y = torch.relu(self.bn1(self.conv1(x)))
        y = torch.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return torch.relu(y + (x if self.downsample is None else self.downsample(x)))


def shortcut(features_in, features, stride):
    """The projection, or None for the identity."""
    if stride == 1 and features_in == features:
        return None
    return nn.Sequential(
        nn.Conv2d(features_in, features, 1, stride, bias=False), nn.BatchNorm2d(features)
    )


class ResNet(nn.Module):
    """Images (batch, channels, height, width) to logits."""

    def __init__(self, depth, classes, channels=3, width=64, small=False):
        super().__init__()
        size, stride = (3, 1) if small else (7, 2)
        self.conv1 = nn.Conv2d(channels, width, size, stride, size // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.Identity() if small else nn.MaxPool2d(3, 2, 1)
        block, factor = (Basic, 1) if depth < 50 else (Bottleneck, 4)
        features = width
        for i, count in enumerate(BLOCKS[depth]):
            blocks = []
            for j in range(count):
                blocks.append(block(features, width * 2**i, 2 if i and not j else 1))
                features = factor * width * 2**i
            setattr(self, f"layer{i + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(features, classes)

    def forward(self, x):
        x = self.maxpool(torch.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))
