"""Networks and their loss, behind pure functions."""

from largebatch.models.batch_norm import BatchMode
from largebatch.models.functional import Model
from largebatch.models.resnet import DEPTHS

__all__ = ["DEPTHS", "BatchMode", "Model"]
