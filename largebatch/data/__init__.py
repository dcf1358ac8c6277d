"""Sources, sample order, augmentation, and the batches they make; knows no model."""

from largebatch.data.augment import Augment
from largebatch.data.feed import (
    EvaluationBatch,
    Microbatch,
    evaluation_batches,
    train_microbatches,
)
from largebatch.data.order import Order, fingerprint
from largebatch.data.sources import Source, open_source

__all__ = [
    "Augment",
    "EvaluationBatch",
    "Microbatch",
    "Order",
    "Source",
    "evaluation_batches",
    "fingerprint",
    "open_source",
    "train_microbatches",
]
