"""Straggler detection: the time from the start of a step to the all-reduce, by host.

The wall time of a step does not show which host is slow, because all wait for the slowest one at
the all-reduce. Each process therefore measures the time until its devices could begin the
all-reduce, including the wait for input, and the processes exchange these times at intervals.
"""

import dataclasses
import socket
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from largebatch import parallel
from largebatch.parallel import REPLICATED, SPLIT
from largebatch.parallel.processes import gather
from largebatch.parallel.transfer import Images
from largebatch.training.steps import Steps

PyTree = Any
_NAME_BYTES = 64
CONFIRMED = 3
"""Consecutive comparisons at which the same process must be slow to be called a straggler.

One comparison is one measured step, and noise alone makes some process slow in a share q of them.
Of two processes, both are equally likely then, and noise confirms one of them in at most q³/4 of
the comparisons; of n processes in q³/n²."""


@dataclasses.dataclass
class HostTimes:
    """Times of this process since the last exchange; seconds."""

    steps: int = 0
    step_s: float = 0.0
    """From the start of each step to the start of the next, including the all-reduce."""
    wait_s: float = 0.0
    """Wait for input."""
    measured: int = 0
    """Number of steps whose compute time was measured."""
    compute_s: float = 0.0
    """Compute time before the all-reduce could begin."""

    def add_compute(self, compute_s: float) -> None:
        """Add the compute time of a step, measured in its own microbatches or by ``probe``."""
        self.measured += 1
        self.compute_s += compute_s

    @property
    def means(self) -> tuple[float, float, float]:
        """Mean seconds of a step, of its wait and of its computing; 0 where none was measured."""
        steps, measured = max(1, self.steps), max(1, self.measured)
        return self.step_s / steps, self.wait_s / steps, self.compute_s / measured


@dataclasses.dataclass(frozen=True)
class Host:
    """Mean times of the steps of a process; seconds."""

    process: int
    name: str
    step_s: float
    wait_s: float
    compute_s: float

    @property
    def barrier_s(self) -> float:
        """From the start of a step until the all-reduce could begin."""
        return self.wait_s + self.compute_s


@dataclasses.dataclass(frozen=True)
class Report:
    """The times of all processes."""

    hosts: tuple[Host, ...]
    slow_factor: float
    """``health.slow_factor``."""

    @property
    def slowest(self) -> Host:
        """The process with the longest time to the barrier."""
        return max(self.hosts, key=lambda host: host.barrier_s)

    @property
    def factor(self) -> float:
        """Its time to the barrier over the median."""
        median = self._median("barrier_s")
        return self.slowest.barrier_s / median if median > 0 else 1.0

    @property
    def exceeds(self) -> bool:
        """Whether the slowest process exceeds ``health.slow_factor`` in this comparison."""
        return self.factor >= self.slow_factor

    @property
    def cause(self) -> str:
        """Where it loses more time: ``input`` or ``compute``."""
        host = self.slowest
        waits, computes = (
            value - self._median(name)
            for name, value in (("wait_s", host.wait_s), ("compute_s", host.compute_s))
        )
        return "input" if waits > computes else "compute"

    @property
    def text(self) -> str:
        """One line that names the slowest process and the cause."""
        host = self.slowest
        if self.cause == "input":
            why = f"input wait {_ms(host.wait_s)} ms against {_ms(self._median('wait_s'))}"
            rest = f"compute {_ms(host.compute_s)} ms"
        else:
            why = f"compute {_ms(host.compute_s)} ms against {_ms(self._median('compute_s'))}"
            rest = f"input wait {host.wait_s / max(host.step_s, 1e-9):.0%}".replace("%", " %")
        return (
            f"process {host.process} ({host.name}) is the slowest: {self.factor:.2f} times the "
            f"median to the barrier ({why}), {rest}"
        )

    def row(self) -> dict[str, Any]:
        """Return the columns of ``events.jsonl``; lists have a value for each process."""
        columns = {
            name: [getattr(host, name) for host in self.hosts]
            for name in ("barrier_s", "compute_s", "wait_s", "step_s")
        }
        return {
            "slowest": self.slowest.process,
            "factor": self.factor,
            "cause": self.cause,
            "median_s": self._median("barrier_s"),
            "host": [host.name for host in self.hosts],
            **columns,
        }

    def _median(self, name: str) -> float:
        """Return the lower median: with two processes the mean would hide half of the loss."""
        return statistics.median_low(getattr(host, name) for host in self.hosts)


class Suspicion:
    """The process that is slow in consecutive comparisons."""

    def __init__(self) -> None:
        self._process = -1
        self._times = 0

    def confirms(self, report: Report) -> bool:
        """Return whether the slowest process of a comparison is a straggler."""
        same = report.slowest.process == self._process
        self._process = report.slowest.process
        self._times = (self._times * same + 1) if report.exceeds else 0
        return self._times >= CONFIRMED


def gathered(times: HostTimes, names: Sequence[str], slow_factor: float) -> Report | None:
    """Return the times of all processes, each of which must call this; None if there is only one.

    Args:
      times: those of this process.
      names: from `host_names`.
      slow_factor: ``health.slow_factor``.
    """
    if jax.process_count() == 1:
        return None
    rows = gather(np.asarray(times.means, np.float32)).tolist()
    hosts = (Host(i, name, *row) for i, (name, row) in enumerate(zip(names, rows, strict=True)))
    return Report(tuple(hosts), slow_factor)


def host_names() -> tuple[str, ...]:
    """Return the host name of each process; each must call this."""
    name = socket.gethostname().encode()[:_NAME_BYTES]
    rows = gather(np.frombuffer(name.ljust(_NAME_BYTES, b"\0"), np.uint8))
    return tuple(row.tobytes().rstrip(b"\0").decode(errors="replace") for row in rows)


def probe(steps: Steps) -> Callable[[PyTree, PyTree, Images, jax.Array], jax.Array]:
    """(params, stats, images, labels) → (devices,) float32: a microbatch without collectives.

    Forward and backward as in a step, so that the time depends on this host alone. Where a span
    covers several devices, BatchNorm sees only this device's part. The result is the squared norm
    of the gradients of each device, which needs all of them and stores none.
    """
    # With one member a span needs no sum over devices.
    alone = dataclasses.replace(steps, plan=dataclasses.replace(steps.plan, members=1))

    def probe(params: PyTree, stats: PyTree, images: Images, labels: jax.Array) -> jax.Array:
        gradients, _ = alone.objective.gradients(params, stats, images, labels)
        total = sum(jnp.sum(jnp.square(g)) for g in jax.tree.leaves(gradients))
        return total.astype(jnp.float32)[None]

    return jax.jit(
        parallel.map_over(steps.mesh, probe, (REPLICATED, REPLICATED, SPLIT, SPLIT), SPLIT)
    )


def seconds(function: Callable[..., Any], *arguments: Any) -> float:
    """Return the seconds that a compiled function takes on idle devices of this process."""
    jax.block_until_ready(arguments)
    start = time.perf_counter()
    jax.block_until_ready(function(*arguments))
    return time.perf_counter() - start


def _ms(value: float) -> str:
    return f"{1e3 * value:.0f}" if value >= 0.01 else f"{1e3 * value:.1f}"
