"""Data sources, sample order, augmentation, and the feed of microbatches."""

from largebatch.data.augment import Augment
from largebatch.data.feed import (
    EvaluationBatch,
    Microbatch,
    evaluation_batches,
    train_microbatches,
)
from largebatch.data.openers import open_source
from largebatch.data.order import Order, fingerprint
from largebatch.data.reading import PIECE, Reading, ahead, cores
from largebatch.data.sampling import content, sampled
from largebatch.data.sources import (
    Source,
    SourceOptions,
    class_counts,
    differing,
    identities,
    identity,
)
from largebatch.data.unreadable import Unreadable, as_far_as_possible
from largebatch.data.views import View, rectangular_views, square_views

__all__ = [
    "PIECE",
    "Augment",
    "EvaluationBatch",
    "Microbatch",
    "Order",
    "Reading",
    "Source",
    "SourceOptions",
    "Unreadable",
    "View",
    "ahead",
    "as_far_as_possible",
    "class_counts",
    "content",
    "cores",
    "differing",
    "evaluation_batches",
    "fingerprint",
    "identities",
    "identity",
    "open_source",
    "rectangular_views",
    "sampled",
    "square_views",
    "train_microbatches",
]
