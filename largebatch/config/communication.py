"""How gradients cross the network: the schemes of ``comm.allreduce``, the formats of ``comm.wire``.

A scheme or a format is one registration. The collectives, the options of XLA, the planner, the
doctor and the forecast read what they need of it here.
"""

import dataclasses
import math
from collections.abc import Callable

from largebatch.registry import Registry


@dataclasses.dataclass(frozen=True)
class Scheme:
    """Into which buckets gradients are put; each bucket is one reduction, inside backward."""

    least: Callable[[float], float]
    """From the elements of ``comm.bucket_mib`` to those at which a bucket is closed."""
    separate: bool = True
    """Whether XLA is kept from merging the reductions."""
    planned: bool = False
    """Whether ``comm.bucket_mib=auto`` plans the buckets by a model of the network."""


@dataclasses.dataclass(frozen=True)
class WireFormat:
    """A number format of gradients on the wire."""

    dtype: str
    """Name of the dtype that JAX has; empty: that of the gradients."""
    itemsize: int
    """Bytes of a gradient."""
    narrow: bool = False
    """Whether its range is much smaller than float32's, so that large gradients are infinite."""


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
