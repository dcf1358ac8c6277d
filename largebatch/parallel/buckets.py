"""The static plan of gradient buckets (Yamazaki et al. 2019, arXiv 1903.12650, section III-C).

Backward completes gradients from the last layer to the first. Consecutive layers in that order form
groups of a few MB. Each group crosses the network in one all-reduce as soon as it is complete. The
groups are fixed before the run, so processes need no negotiation.
"""

import dataclasses
from collections.abc import Sequence

from largebatch.config.registries import SCHEMES


@dataclasses.dataclass(frozen=True)
class Bucket:
    """Parameters whose gradients are reduced together, last layer first."""

    paths: tuple[str, ...]
    sizes: tuple[int, ...]
    """Elements of each parameter."""

    @property
    def size(self) -> int:
        """Elements of the bucket."""
        return sum(self.sizes)


def plan_buckets(
    parameters: Sequence[tuple[str, int]], *, scheme: str, least_bytes: float, itemsize: int
) -> tuple[Bucket, ...]:
    """Cut parameters into buckets.

    Args:
      parameters: (path, elements) in the order of the forward pass.
      scheme: of `SCHEMES`: ``bucket``; or for comparison ``leaf``, one bucket per parameter, and
        ``tree``, one for all.
      least_bytes: a bucket ends as soon as it has these bytes on the wire; only the one of the
        first layers, which backward fills last, may be smaller.
      itemsize: bytes of an element on the wire.

    Returns:
      Buckets in the order in which backward completes them; every parameter is in exactly one.
    """
    least = SCHEMES[scheme].least(least_bytes / itemsize)
    buckets, pending = [], []
    for path, size in reversed(parameters):
        pending.append((path, size))
        if sum(size for _, size in pending) >= least:
            buckets.append(pending)
            pending = []
    if pending:
        buckets.append(pending)
    return tuple(
        Bucket(tuple(path for path, _ in group), tuple(size for _, size in group))
        for group in buckets
    )
