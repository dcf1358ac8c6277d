"""Devices, buckets and collectives."""

from largebatch.parallel.buckets import Bucket, plan_buckets
from largebatch.parallel.collectives import (
    flatten,
    map_over,
    member_sum,
    reduce_gradients_in_backward,
    sum_over_devices,
)
from largebatch.parallel.mesh import (
    REPLICATED,
    SPLIT,
    from_local,
    local_rows,
    make_mesh,
    replicated,
    split,
)

__all__ = [
    "REPLICATED",
    "SPLIT",
    "Bucket",
    "flatten",
    "from_local",
    "local_rows",
    "make_mesh",
    "map_over",
    "member_sum",
    "plan_buckets",
    "reduce_gradients_in_backward",
    "replicated",
    "split",
    "sum_over_devices",
]
