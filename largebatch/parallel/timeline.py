"""Replay of a device's compute and network streams: the overlap of transfers and computation."""

import dataclasses
from collections.abc import Sequence


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
    hidden_s: float
    transfers: tuple[Transfer, ...]

    @property
    def hidden_share(self) -> float:
        """Share of the seconds of all transfers that lies under computation; 1 without any."""
        return self.hidden_s / self.network_s if self.network_s > 0 else 1.0


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
        hidden_s=sum(transfer.hidden_s for transfer in transfers),
        transfers=transfers,
    )


def _overlap(begin: float, end: float, intervals: Sequence[tuple[float, float]]) -> float:
    return sum(max(0.0, min(end, b) - max(begin, a)) for a, b in intervals)
