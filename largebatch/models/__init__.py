"""ResNet v1.5 as Flax NNX modules, and a functional interface to any NNX module."""

from largebatch.config.registries import DEPTHS, MODELS
from largebatch.models.batch_norm import BatchMode, BatchNorm, BatchStatistics
from largebatch.models.convolution import Conv
from largebatch.models.functional import Model
from largebatch.models.max_pool import relu_max_pool
from largebatch.models.resnet import ResNet

__all__ = [
    "DEPTHS",
    "MODELS",
    "BatchMode",
    "BatchNorm",
    "BatchStatistics",
    "Conv",
    "Model",
    "ResNet",
    "relu_max_pool",
]
