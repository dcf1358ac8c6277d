"""Mesh, processes, collectives, gradient buckets and their planner, and the network model."""

from largebatch.parallel.buckets import Bucket, plan_buckets
from largebatch.parallel.collectives import (
    flatten,
    gather_parts,
    map_over,
    member_sum,
    own_parts,
    reduce_gradients_in_backward,
    scatter_gradients_in_backward,
    sum_over_devices,
)
from largebatch.parallel.mesh import (
    REPLICATED,
    SPLIT,
    from_local,
    local_rows,
    make_mesh,
    placed,
    replicated,
    split,
)

__all__ = [
    "REPLICATED",
    "SPLIT",
    "Bucket",
    "flatten",
    "from_local",
    "gather_parts",
    "local_rows",
    "make_mesh",
    "map_over",
    "member_sum",
    "own_parts",
    "placed",
    "plan_buckets",
    "reduce_gradients_in_backward",
    "replicated",
    "scatter_gradients_in_backward",
    "split",
    "sum_over_devices",
]
