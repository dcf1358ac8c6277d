"""Planner of gradient buckets: the consecutive layers that share an all-reduce.

Backward completes gradients one after the other. The network takes one bucket at a time, as soon as
its last gradient is complete. Few buckets cost less latency, many begin earlier. The record's
authors cut at cubic numbers of layers (Yamazaki et al. 2019, arXiv 1903.12650, III-C; MLPerf v0.6).
Here the cuts follow from the backward profile and the network's cost, so that the last all-reduce
ends soonest.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence

import jax
import numpy as np

from largebatch import parallel
from largebatch.config.registries import SCHEMES
from largebatch.config.sections import Comm
from largebatch.models import Model
from largebatch.parallel import Bucket
from largebatch.parallel.backward_times import Shapes, backward_seconds, without_frozen
from largebatch.parallel.clusters import cluster_of
from largebatch.parallel.network import all_reduce_s
from largebatch.parallel.timeline import Compute, Done, Start, Timeline, replay
from largebatch.parallel.xla_options import overlaps

SLOWER = (1.0, 2.0, 4.0)
"""``plan`` takes networks into account that are slower than the line by these factors.

The optimum for the line itself puts all but the last layers' bytes into one bucket that just fits
under the rest of backward, and loses everything if the network has half the rate. For 2,048 V100,
40 images and fp16 it exposes 0.18, 4.8 and 15 ms on networks of the full, half and quarter rate;
``plan`` exposes 0.39, 0.78 and 2.1 ms.
"""
FALLBACK_MIB = 4.0
"""Least size of a bucket on unknown hardware."""

_TIE = 1e-9  # relative; ends closer than this are the same


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The all-reduces of a step beside its backward pass."""

    buckets: tuple[Bucket, ...]
    nbytes: tuple[int, ...]
    """Bytes of each bucket on the wire."""
    backward_s: float
    timeline: Timeline

    @property
    def end_s(self) -> float:
        """From the begin of backward to the end of the last all-reduce."""
        return self.timeline.total_s

    @property
    def exposed_s(self) -> float:
        """The part after backward."""
        return self.timeline.exposed_s


def best_cuts(
    seconds: Sequence[float], sizes: Sequence[int], cost_s: Callable[[int], float]
) -> tuple[int, ...]:
    """Return the cuts with the earliest end of the last transfer; of several such, the fewest.

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
        choices.append(candidates.argmin(0) + 1)
        ends.append(candidates.min(0))
    least = min(row[-1] for row in ends)
    k = next(k for k, row in enumerate(ends) if row[-1] <= least * (1 + _TIE))
    cuts, end = [], count
    for row in reversed(choices[: k + 1]):
        cuts.append(end)
        end = int(row[end - 1])
    return tuple(reversed(cuts))


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
        return predict(buckets, seconds, lambda n: factor * cached(n), itemsize=itemsize).end_s

    between = [math.sqrt(a * b) for a, b in itertools.pairwise(slower)]
    candidates = {factor: best(factor) for factor in sorted({*slower, *between})}
    least = {factor: end(candidates[factor], factor) for factor in slower}

    def regret(buckets: Sequence[Bucket]) -> float:
        return max(end(buckets, factor) / least[factor] for factor in slower)

    return min(candidates.values(), key=regret)


def predict(
    buckets: Sequence[Bucket],
    seconds: Mapping[str, float],
    cost_s: Callable[[int], float],
    *,
    itemsize: int,
) -> Prediction:
    """Replay backward with these buckets."""
    program: list[Compute | Start | Done] = []
    nbytes = tuple(bucket.size * itemsize for bucket in buckets)
    for i, (bucket, size) in enumerate(zip(buckets, nbytes, strict=True)):
        program += [Compute(path, seconds[path]) for path in bucket.paths]
        program.append(Start(str(i), size, cost_s(size)))
    program += [Done(str(i)) for i in range(len(buckets))]
    return Prediction(tuple(buckets), nbytes, sum(seconds.values()), replay(program))


def gradient_buckets(
    parameters: Shapes,
    comm: Comm,
    devices: Sequence[jax.Device],
    *,
    images: int,
    image_shape: Sequence[int],
    dtype: str,
    model: Model | None = None,
    frozen: Collection[str] = (),
) -> tuple[Bucket, ...]:
    """Return the groups of ``comm`` on these devices.

    Args:
      parameters: (path, shape), in the order of the forward pass.
      comm: scheme, size of buckets or ``auto``, number format on the wire.
      devices: all devices.
      images: images that a device computes at a time.
      image_shape: height, width, channels.
      dtype: of convolutions.
      model: the network of the parameters; None is a ResNet.
      frozen: paths of parameters without gradients, which are in no bucket.

    Raises:
      ConfigError: ``comm.xla_options`` cannot be parsed.
    """
    elements = [(path, math.prod(shape)) for path, shape in parameters if path not in frozen]
    itemsize = comm.wire_bytes
    automatic = comm.bucket_mib == "auto" and SCHEMES[comm.allreduce].planned
    cluster = cluster_of(devices) if automatic else None
    if cluster is not None and cluster.hardware.name == "cpu":
        # The CPU's compiler merges all reductions; joining would cost 0.7 s of a ResNet-50 step.
        return parallel.plan_buckets(elements, scheme="leaf", least_bytes=0, itemsize=itemsize)
    fixed = 0.0
    if cluster is not None and cluster.nodes == 1:
        hardware = cluster.hardware
        fixed = hardware.bucket_mib if overlaps(hardware.name, comm.xla_options) else 0.0
    if cluster is None or cluster.devices == 1 or fixed:
        # One GPU has nothing to reduce. But joined gradients have the parameters' layout; otherwise
        # the update takes over the convolutions' layout, and copies every kernel back.
        least = (fixed or FALLBACK_MIB) if comm.bucket_mib == "auto" else comm.bucket_mib
        return parallel.plan_buckets(
            elements, scheme=comm.allreduce, least_bytes=least * 2**20, itemsize=itemsize
        )
    seconds = backward_seconds(
        parameters,
        cluster.hardware,
        images=images,
        image_shape=image_shape,
        dtype=dtype,
        model=model,
    )
    return plan(
        elements,
        without_frozen(seconds, frozen),
        lambda nbytes: all_reduce_s(cluster, nbytes),
        itemsize=itemsize,
    )
