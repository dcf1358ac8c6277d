"""Registries of the all-reduce schemes (``comm.allreduce``) and wire formats (``comm.wire``).

A new scheme or format is one registration. The collectives, the XLA options, the planner, the
doctor and the forecast read its properties.
"""

import dataclasses
import math
from collections.abc import Callable

from largebatch.registry import Registry


@dataclasses.dataclass(frozen=True)
class Scheme:
    """A rule that groups gradients into buckets; each bucket is one reduction in backward."""

    least: Callable[[float], float]
    """Maps ``comm.bucket_mib`` in elements to the number of elements that completes a bucket."""
    separate: bool = True
    """Whether XLA options prevent that reductions are merged."""
    planned: bool = False
    """Whether ``comm.bucket_mib=auto`` chooses the buckets with a model of the network."""


@dataclasses.dataclass(frozen=True)
class WireFormat:
    """A number format of gradients on the wire."""

    dtype: str
    """Name of the JAX dtype; empty: the dtype of the gradients."""
    itemsize: int
    """Bytes of a gradient."""
    narrow: bool = False
    """Whether gradients can overflow because the range is much smaller than that of float32."""


SCHEMES: Registry[Scheme] = Registry(
    "comm.allreduce",
    {
        "bucket": Scheme(lambda elements: elements, planned=True),
        "leaf": Scheme(lambda elements: 0),
        "tree": Scheme(lambda elements: math.inf, separate=False),
    },
)
WIRE_FORMATS: Registry[WireFormat] = Registry(
    "comm.wire",
    {
        "float32": WireFormat("", 4),
        "bfloat16": WireFormat("bfloat16", 2),
        "float16": WireFormat("float16", 2, narrow=True),
    },
)
