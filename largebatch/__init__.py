"""ResNet-50 on ImageNet at very large batch, the same mathematics on any number of devices."""

__version__ = "0.1.0"
