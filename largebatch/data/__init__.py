"""Sources of labelled images, their order, augmentation, and the feed of microbatches."""

from largebatch.data.augment import Augment
from largebatch.data.dataset import Dataset, open_dataset
from largebatch.data.feed import (
    EvaluationBatch,
    Microbatch,
    Reading,
    View,
    cores,
    evaluation_batches,
    evaluation_views,
    train_microbatches,
)
from largebatch.data.order import Order, fingerprint
from largebatch.data.prefetch import ahead
from largebatch.data.source import (
    Source,
    SourceOptions,
    Split,
    class_counts,
    content,
    differing,
    identity,
    open_source,
    sampled,
)
from largebatch.data.unreadable import Unreadable

__all__ = [
    "Augment",
    "Dataset",
    "EvaluationBatch",
    "Microbatch",
    "Order",
    "Reading",
    "Source",
    "SourceOptions",
    "Split",
    "Unreadable",
    "View",
    "ahead",
    "class_counts",
    "content",
    "cores",
    "differing",
    "evaluation_batches",
    "evaluation_views",
    "fingerprint",
    "identity",
    "open_dataset",
    "open_source",
    "sampled",
    "train_microbatches",
]
