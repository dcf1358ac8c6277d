"""Which host is slow. Wall-clock alone cannot tell: at the all-reduce all wait for the slowest.

Each process measures how long it takes until its devices could begin the all-reduce, waiting for
input included; now and then all tell each other.
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


@dataclasses.dataclass
class HostTimes:
    """What this process has measured since the times were last exchanged; seconds."""

    steps: int = 0
    step_s: float = 0.0
    """From the beginning of a step to that of the next, the all-reduce included."""
    wait_s: float = 0.0
    """Waiting for input."""
    measured: int = 0
    """Steps whose computing was measured."""
    compute_s: float = 0.0
    """Computing until the all-reduce could begin."""

    def add_compute(self, compute_s: float) -> None:
        """Count a step's computing, measured in its own microbatches or by ``probe``."""
        self.measured += 1
        self.compute_s += compute_s

    @property
    def means(self) -> tuple[float, float, float]:
        """Seconds of a step, waiting and computing, on average; 0 where nothing was measured."""
        steps, measured = max(1, self.steps), max(1, self.measured)
        return self.step_s / steps, self.wait_s / steps, self.compute_s / measured


@dataclasses.dataclass(frozen=True)
class Host:
    """One process's steps on average; seconds."""

    process: int
    name: str
    step_s: float
    wait_s: float
    compute_s: float

    @property
    def barrier_s(self) -> float:
        """From the beginning of a step until the all-reduce could begin."""
        return self.wait_s + self.compute_s


@dataclasses.dataclass(frozen=True)
class Report:
    """The times of all processes."""

    hosts: tuple[Host, ...]
    slow_factor: float
    """``health.slow_factor``."""

    @property
    def slowest(self) -> Host:
        """Who keeps the others waiting."""
        return max(self.hosts, key=lambda host: host.barrier_s)

    @property
    def factor(self) -> float:
        """The slowest one's time to the barrier over the median."""
        median = self._median("barrier_s")
        return self.slowest.barrier_s / median if median > 0 else 1.0

    @property
    def slow(self) -> bool:
        """Whether the slowest is worth a warning."""
        return self.factor >= self.slow_factor

    @property
    def cause(self) -> str:
        """Where the slowest loses more: ``input`` or ``compute``."""
        host = self.slowest
        waits, computes = (
            value - self._median(name)
            for name, value in (("wait_s", host.wait_s), ("compute_s", host.compute_s))
        )
        return "input" if waits > computes else "compute"

    @property
    def text(self) -> str:
        """Who is the slowest and why, in one line."""
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
        """For ``events.jsonl``; lists have a value for each process."""
        columns = {
            name: [getattr(host, name) for host in self.hosts]
            for name in ("barrier_s", "compute_s", "wait_s", "step_s")
        }
        return {
            "slowest": self.slowest.process,
            "factor": self.factor,
            "cause": self.cause,
            "slow": self.slow,
            "median_s": self._median("barrier_s"),
            "host": [host.name for host in self.hosts],
            **columns,
        }

    def _median(self, name: str) -> float:
        """The lower one of an even number: the mean of two would hide half of what is lost."""
        return statistics.median_low(getattr(host, name) for host in self.hosts)


def gathered(times: HostTimes, names: Sequence[str], slow_factor: float) -> Report | None:
    """The times of all processes, each of which must call it; None if there is only one.

    Args:
      times: this process's.
      names: as of ``host_names``.
      slow_factor: ``health.slow_factor``.
    """
    if jax.process_count() == 1:
        return None
    rows = gather(np.asarray(times.means, np.float32)).tolist()
    hosts = (Host(i, name, *row) for i, (name, row) in enumerate(zip(names, rows, strict=True)))
    return Report(tuple(hosts), slow_factor)


def host_names() -> tuple[str, ...]:
    """The host of each process, once at the start; each must call it."""
    name = socket.gethostname().encode()[:_NAME_BYTES]
    rows = gather(np.frombuffer(name.ljust(_NAME_BYTES, b"\0"), np.uint8))
    return tuple(row.tobytes().rstrip(b"\0").decode(errors="replace") for row in rows)


def probe(steps: Steps) -> Callable[[PyTree, PyTree, Images, jax.Array], jax.Array]:
    """(params, stats, images, labels) → (devices,) float32: a microbatch without the network.

    Forward and backward as in a step, without a collective, so that a host's time for it is its
    own. Where a span lies on several devices, BatchNorm sees this device's part alone. What comes
    out is the squared norm of the device's gradients: it takes all of them and keeps none.
    """
    # A span of a device's own needs no sum over its members.
    alone = dataclasses.replace(steps, plan=dataclasses.replace(steps.plan, members=1))

    def probe(params: PyTree, stats: PyTree, images: Images, labels: jax.Array) -> jax.Array:
        gradients, _ = jax.grad(alone.loss, has_aux=True)(params, stats, images, labels)
        total = sum(jnp.sum(jnp.square(g)) for g in jax.tree.leaves(gradients))
        return total.astype(jnp.float32)[None]

    return jax.jit(
        parallel.map_over(steps.mesh, probe, (REPLICATED, REPLICATED, SPLIT, SPLIT), SPLIT)
    )


def seconds(function: Callable[..., Any], *arguments: Any) -> float:
    """Seconds that a compiled function takes on this process's devices, once they are idle."""
    jax.block_until_ready(arguments)
    start = time.perf_counter()
    jax.block_until_ready(function(*arguments))
    return time.perf_counter() - start


def _ms(value: float) -> str:
    return f"{1e3 * value:.0f}" if value >= 0.01 else f"{1e3 * value:.1f}"
