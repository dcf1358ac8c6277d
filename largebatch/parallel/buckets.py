"""Gradient buckets: the consecutive layers that share an all-reduce, and the planner of them.

Backward completes gradients from the last layer to the first. Consecutive layers in that order form
groups. The network takes one group at a time, as soon as its last gradient is complete. Few buckets
cost less latency, many begin earlier. The groups are fixed before the run, so processes need no
negotiation (Yamazaki et al. 2019, arXiv 1903.12650, III-C).

The record's authors cut at cubic numbers of layers (there; MLPerf v0.6). Here the cuts follow from
the time of backward and the network's cost, so that the last all-reduce ends soonest.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence

import jax
import numpy as np

from largebatch.config.registries import SCHEMES
from largebatch.config.sections import Comm
from largebatch.models import Model
from largebatch.models.tracing import shapes_of
from largebatch.parallel.clusters import cluster_of
from largebatch.parallel.network import all_reduce_s
from largebatch.parallel.timeline import (
    Compute,
    Done,
    Start,
    Timeline,
    backward_seconds,
    replay,
    without_frozen,
)

SLOWER = (1.0, 2.0, 4.0)
"""``plan`` takes networks into account that are slower than the line by these factors.

The optimum for the line itself puts all but the last layers' bytes into one bucket that just fits
under the rest of backward, and loses everything if the network has half the rate. For 2,048 V100,
40 images and fp16 it exposes 0.18, 4.8 and 15 ms on networks of the full, half and quarter rate;
``plan`` exposes 0.22, 0.43 and 2.1 ms.
"""
FALLBACK_MIB = 4.0
"""Least size of a bucket on unknown hardware."""

_TIE = 1e-9  # relative; ends closer than this are the same


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


def buckets_at(parameters: Sequence[tuple[str, int]], cuts: Sequence[int]) -> tuple[Bucket, ...]:
    """Return buckets of consecutive layers.

    Args:
      parameters: (path, elements), in the order of the forward pass.
      cuts: for each bucket, the number of parameters, counted from the last, up to its end.
    """
    backwards = list(reversed(parameters))
    groups = [backwards[a:b] for a, b in zip([0, *cuts], cuts, strict=False)]
    return tuple(
        Bucket(tuple(path for path, _ in group), tuple(size for _, size in group))
        for group in groups
    )


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
    cuts, pending = [], 0
    for end, (_, size) in enumerate(reversed(parameters), start=1):
        pending += size
        if pending >= least or end == len(parameters):
            cuts.append(end)
            pending = 0
    return buckets_at(parameters, cuts)


def best_cuts(
    seconds: Sequence[float], sizes: Sequence[int], cost_s: Callable[[int], float]
) -> tuple[int, ...]:
    """Return the cuts with the earliest end of the last transfer; of several such, the fewest.

    Of equally many cuts those with the smallest last bucket, which alone a faster network exposes.
    f(k, j), the earliest end of the transfers of the first j gradients in k buckets, is the least
    over i < j of max(t(j), f(k−1, i)) + cost(bytes of i…j), where t(j) is when gradient j is
    complete: an end that comes earlier never harms what follows.

    Args:
      seconds: of backward up to each gradient, since the one before.
      sizes: bytes of each.
      cost_s: seconds of a transfer of so many bytes.

    Returns:
      For each bucket, the number of gradients up to its end.
    """
    count = len(sizes)
    complete = np.cumsum(seconds)
    held = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    costs = np.full((count, count), np.inf)  # of the gradients from i to j
    for i in range(count):
        costs[i, i:] = [cost_s(int(held[j + 1] - held[i])) for j in range(i, count)]
    ends, choices = [complete + costs[0]], [np.zeros(count, np.int64)]  # one bucket: f(1, ·)
    for _ in range(1, count):
        # Column j, row i: the bucket of i…j after k−1 buckets of the first i.
        ready = np.maximum(complete[None, :], ends[-1][:-1, None])
        candidates = ready + costs[1:]
        tied = candidates <= candidates.min(0) * (1 + _TIE)
        choices.append(count - 1 - tied[::-1].argmax(0))
        ends.append(candidates.min(0))
    least = min(row[-1] for row in ends)
    k = next(k for k, row in enumerate(ends) if row[-1] <= least * (1 + _TIE))
    cuts, end = [], count
    for row in reversed(choices[: k + 1]):
        cuts.append(end)
        end = int(row[end - 1])
    return tuple(reversed(cuts))


def cubic_cuts(count: int) -> tuple[int, ...]:
    """Return the record's groups: 3k³ − 3(k−1)³ parameters, k = 1, 2, …, from the last layer."""
    inner = itertools.takewhile(lambda end: end < count, (3 * k**3 for k in itertools.count(1)))
    return (*inner, count)


def plan(
    parameters: Sequence[tuple[str, int]],
    seconds: Mapping[str, float],
    cost_s: Callable[[int], float],
    *,
    itemsize: int,
    slower: Sequence[float] = SLOWER,
) -> tuple[Bucket, ...]:
    """Return buckets that are near the best on each of several networks.

    The candidates are the best cuts for each network and for those half-way between. The choice has
    the smallest worst ratio of its end to the best end on the same network.

    Args:
      parameters: (path, elements), in the order of the forward pass.
      seconds: from each parameter's gradient to the next, in the order of backward.
      cost_s: seconds of an all-reduce of so many bytes.
      itemsize: bytes of an element on the wire.
      slower: factors by which each network is slower; 1 alone gives the optimum.
    """
    waits = [seconds[path] for path, _ in reversed(parameters)]
    sizes = [size * itemsize for _, size in reversed(parameters)]
    cached = functools.cache(cost_s)

    def best(factor: float) -> tuple[Bucket, ...]:
        return buckets_at(parameters, best_cuts(waits, sizes, lambda n: factor * cached(n)))

    def end(buckets: Sequence[Bucket], factor: float) -> float:
        return overlap(buckets, seconds, lambda n: factor * cached(n), itemsize=itemsize).total_s

    between = [math.sqrt(a * b) for a, b in itertools.pairwise(slower)]
    candidates = {factor: best(factor) for factor in sorted({*slower, *between})}
    least = {factor: end(candidates[factor], factor) for factor in slower}

    def regret(buckets: Sequence[Bucket]) -> float:
        return max(end(buckets, factor) / least[factor] for factor in slower)

    return min(candidates.values(), key=regret)


def overlap(
    buckets: Sequence[Bucket],
    seconds: Mapping[str, float],
    cost_s: Callable[[int], float],
    *,
    itemsize: int,
) -> Timeline:
    """Replay backward, and the all-reduces of these buckets beside it.

    Args:
      buckets: in the order in which backward completes them.
      seconds: from each parameter's gradient to the next.
      cost_s: seconds of an all-reduce of so many bytes.
      itemsize: bytes of an element on the wire.
    """
    program: list[Compute | Start | Done] = []
    for i, bucket in enumerate(buckets):
        nbytes = bucket.size * itemsize
        program += [Compute(path, seconds[path]) for path in bucket.paths]
        program.append(Start(str(i), nbytes, cost_s(nbytes)))
    return replay([*program, *(Done(str(i)) for i in range(len(buckets)))])


def gradient_buckets(
    model: Model,
    comm: Comm,
    devices: Sequence[jax.Device],
    *,
    images: int,
    image_shape: Sequence[int],
    frozen: Collection[str] = (),
) -> tuple[Bucket, ...]:
    """Return the groups of ``comm`` on these devices.

    Args:
      model: the network.
      comm: scheme, size of buckets or ``auto``, number format on the wire.
      devices: all devices.
      images: images that a device computes at a time.
      image_shape: height, width, channels.
      frozen: paths of parameters without gradients, which are in no bucket.
    """
    shapes = shapes_of(model, image_shape)
    elements = [(path, math.prod(shape)) for path, shape in shapes if path not in frozen]
    least, scheme = comm.bucket_mib, comm.allreduce
    if least == "auto":
        least = FALLBACK_MIB
        cluster = cluster_of(devices) if SCHEMES[scheme].planned else None
        if cluster is not None and cluster.hardware.name == "cpu":
            # Its compiler merges all reductions; joining would cost 0.7 s of a ResNet-50 step.
            scheme = "leaf"
        elif cluster is not None and cluster.nodes == 1 and cluster.hardware.bucket_mib:
            least = cluster.hardware.bucket_mib
        elif cluster is not None and cluster.devices > 1:
            seconds = backward_seconds(
                model, cluster.hardware, images=images, image_shape=image_shape
            )
            return plan(
                elements,
                without_frozen(seconds, frozen),
                lambda nbytes: all_reduce_s(cluster, nbytes),
                itemsize=comm.wire_bytes,
            )
        # One GPU has nothing to reduce. But joined gradients have the parameters' layout; otherwise
        # the update takes over the convolutions' layout, and copies every kernel back.
    return plan_buckets(
        elements, scheme=scheme, least_bytes=least * 2**20, itemsize=comm.wire_bytes
    )
