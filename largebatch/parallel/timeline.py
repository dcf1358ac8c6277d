"""Time of backward, gradient by gradient, and the overlap of transfers with it.

Backward's time is the roofline of each layer: the larger of its FLOPs at the device's peak and its
bytes at the memory's bandwidth, over the share of both that ResNet-50 training sustains. It places
the cuts between buckets, for which the *shape* of the times matters: late stages have most bytes
and early stages take most time.
"""

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence

import jax

from largebatch.models import Model
from largebatch.models.tracing import backward_work, shapes_of
from largebatch.parallel.clusters import Hardware


def backward_seconds(
    model: Model, hardware: Hardware, *, images: int, image_shape: Sequence[int]
) -> dict[str, float]:
    """Return the seconds from each parameter's gradient to the next, in the order of completion.

    Args:
      model: the network; its dtype is that of convolutions and activations.
      hardware: peaks and the sustained share.
      images: images that a device computes at a time.
      image_shape: height, width, channels.
    """
    work = backward_work(model, tuple(image_shape))
    itemsize = jax.numpy.dtype(model.dtype).itemsize

    def seconds(path: str, shape: tuple[int, ...]) -> float:
        moved = (images * work[path].elements + 2 * math.prod(shape)) * itemsize
        at_peak = images * work[path].flops / hardware.flops[model.dtype]
        return max(at_peak, moved / hardware.bandwidth) / hardware.sustained

    return {path: seconds(path, shape) for path, shape in reversed(shapes_of(model, image_shape))}


def without_frozen(seconds: Mapping[str, float], frozen: Collection[str]) -> dict[str, float]:
    """Return the seconds of a pass that computes no gradients of some parameters.

    Backward still passes through a frozen layer whose input depends on a parameter. Its time, an
    upper limit, is added to that of the next gradient. After the last gradient it ends.
    """
    found, passed = {}, 0.0
    for path, own in seconds.items():
        passed += own
        if path not in frozen:
            found[path], passed = passed, 0.0
    return found


# ---- replay of one compute and one network stream


@dataclasses.dataclass(frozen=True)
class Compute:
    """Work of the compute stream."""

    name: str
    seconds: float


@dataclasses.dataclass(frozen=True)
class Start:
    """The start of a transfer on the network stream; the compute stream continues."""

    name: str
    nbytes: float
    seconds: float


@dataclasses.dataclass(frozen=True)
class Done:
    """The compute stream waits for the transfer of that name."""

    name: str


@dataclasses.dataclass(frozen=True)
class Transfer:
    """A replayed transfer."""

    name: str
    nbytes: float
    begin_s: float
    end_s: float
    hidden_s: float
    """Seconds under computation."""

    @property
    def hidden_share(self) -> float:
        """Share of its seconds under computation; 1 if it takes none."""
        length = self.end_s - self.begin_s
        return self.hidden_s / length if length > 0 else 1.0


@dataclasses.dataclass(frozen=True)
class Timeline:
    """The result of a replay; seconds."""

    total_s: float
    """Until both streams have ended."""
    compute_s: float
    """Work of the compute stream."""
    network_s: float
    """Work of the network stream: hidden or exposed."""
    exposed_s: float
    """The compute stream is idle."""
    transfers: tuple[Transfer, ...]


def replay(operations: Sequence[Compute | Start | Done]) -> Timeline:
    """Run a program on one compute and one network stream, each in program order.

    A transfer begins after its start and after the end of the one before. The replay ends after all
    transfers.

    Raises:
      ValueError: two transfers of one name, or a wait for one that was not started.
    """
    now = free = 0.0
    busy: list[tuple[float, float]] = []
    spans: dict[str, tuple[Start, float, float]] = {}
    for operation in operations:
        match operation:
            case Compute(seconds=seconds):
                busy.append((now, now + seconds))
                now += seconds
            case Start(name=name, seconds=seconds):
                if name in spans:
                    raise ValueError(f"transfer {name!r} is started twice")
                begin = max(now, free)
                free = begin + seconds
                spans[name] = (operation, begin, free)
            case Done(name=name):
                if name not in spans:
                    raise ValueError(f"transfer {name!r} is waited for and not started before")
                now = max(now, spans[name][2])
    transfers = tuple(
        Transfer(start.name, start.nbytes, begin, end, _overlap(begin, end, busy))
        for start, begin, end in spans.values()
    )
    total, compute = max(now, free), sum(end - begin for begin, end in busy)
    return Timeline(
        total_s=total,
        compute_s=compute,
        network_s=sum(start.seconds for start, _, _ in spans.values()),
        exposed_s=total - compute,
        transfers=transfers,
    )


def _overlap(begin: float, end: float, intervals: Sequence[tuple[float, float]]) -> float:
    return sum(max(0.0, min(end, b) - max(begin, a)) for a, b in intervals)
