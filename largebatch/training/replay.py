"""Compute a step twice and compare the results bitwise, to find silent data corruption.

A wrong result without an error stays in the parameters, and nothing else detects it. The same
program on the same input gives the same bits, on GPUs with ``run.deterministic``. If it does not,
one of the two results is wrong.

Each device compares its own copies and parts, since copies may differ once a device miscalculates.
The faulty device is known only if the error happened after the all-reduce, which spreads an earlier
error to all devices.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from largebatch import parallel
from largebatch.checkpoint.file import by_path
from largebatch.parallel import REPLICATED, SPLIT
from largebatch.parallel.processes import agreed_minimum, gather
from largebatch.training.state import MEASURED, Metrics, TrainState
from largebatch.training.steps import Steps

Result = tuple[TrainState, Metrics]
PyTree = Any
_NAMED = 3  # arrays in the warning; the row has all


@dataclasses.dataclass(frozen=True)
class Difference:
    """An array whose two results differ, on the device with the most different values."""

    name: str
    """Path in the state, or the metric."""
    values: int
    """Number of different values."""
    largest: float
    """The largest absolute difference; NaN if one of the two values is NaN."""


@dataclasses.dataclass(frozen=True)
class Mismatch:
    """A step whose two results differ."""

    differences: tuple[Difference, ...]
    """Those of all processes, in the order of the state."""
    processes: tuple[int, ...]
    """The processes with differences."""
    hosts: tuple[str, ...]
    """The hosts of these processes."""
    of: int
    """Number of processes of the run."""
    may_be_harmless: bool
    """Whether nondeterministic kernels may have been in use."""

    @property
    def text(self) -> str:
        """One line: which arrays differ, and on which processes."""
        named = [
            f"{d.name} ({d.values} of its values, by up to {d.largest:.3g})"
            for d in self.differences[:_NAMED]
        ]
        if len(self.differences) > _NAMED:
            named.append(f"{len(self.differences) - _NAMED} more arrays")
        if len(self.processes) == self.of:
            where = "on all processes" if self.of > 1 else "on the only process"
        else:
            pairs = zip(self.processes, self.hosts, strict=True)
            where = "on process " + ", ".join(f"{process} ({host})" for process, host in pairs)
        hint = "; kernels of GPUs may be nondeterministic without run.deterministic=true"
        return (
            f"a step computed twice gave two results: {', '.join(named)}; {where}"
            + hint * self.may_be_harmless
        )

    def row(self) -> dict[str, Any]:
        """Return the columns of the log; lists of the arrays that differ."""
        return {
            "processes": list(self.processes),
            "hosts": list(self.hosts),
            "names": [d.name for d in self.differences],
            "values": [d.values for d in self.differences],
            "largest": [d.largest for d in self.differences],
        }


class Replay:
    """Copies and compares the states of some step functions."""

    def __init__(self, steps: Steps, hosts: Sequence[str]) -> None:
        """Compile nothing yet.

        Args:
          steps: the step functions whose states are compared.
          hosts: host name of each process.
        """
        self._steps = steps
        self._hosts = tuple(hosts)

    @functools.cached_property
    def copied(self) -> Callable[[TrainState], TrainState]:
        """State → a copy on the devices, since ``finish`` donates its argument."""
        shardings = parallel.placed(self._steps.mesh, self._steps.specs)
        return jax.jit(
            lambda state: jax.tree.map(jnp.copy, state),
            out_shardings=shardings,
            compiler_options=self._steps.fast_compile_options,
        )

    def compared(self, first: Result, second: Result) -> Mismatch | None:
        """Compare two results of a step bitwise; every process must call it.

        Args:
          first: state and metrics.
          second: the same, computed a second time.

        Returns:
          The differences of all processes, the same on each process; None if there are none.
        """
        rows = self._compare(_tree(first), _tree(second))
        # (values that differ, largest distance) of each array, on each of this process's devices.
        own = np.stack([np.asarray(shard.data)[0] for shard in rows.addressable_shards])
        if agreed_minimum(int(not own[:, 0].any())):
            return None
        every = gather(own.max(axis=0).ravel()).reshape(-1, *own.shape[1:])
        counts, distances = every.max(axis=0)
        found = [
            Difference(name, int(counts[i]), float(distances[i]))
            for i, name in enumerate(by_path(_tree(first)))
            if counts[i]
        ]
        processes = tuple(np.flatnonzero(every[:, 0].any(axis=1)).tolist())
        config = self._steps.plan.config
        on_gpu = self._steps.mesh.devices.flat[0].platform == "gpu"
        return Mismatch(
            tuple(found),
            processes,
            tuple(self._hosts[process] for process in processes),
            len(every),
            may_be_harmless=on_gpu and not config.run.deterministic,
        )

    @functools.cached_property
    def _compare(self) -> Callable[[PyTree, PyTree], jax.Array]:
        """Two trees → (devices, 2, arrays) float32: differing values, largest distance."""

        def compare(first: PyTree, second: PyTree) -> jax.Array:
            pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
            counts, distances = zip(*(_difference(a, b) for a, b in pairs), strict=True)
            return jnp.stack([jnp.stack(counts).astype(jnp.float32), jnp.stack(distances)])[None]

        specs = {**self._steps.specs._asdict(), "metrics": REPLICATED}
        mapped = parallel.map_over(self._steps.mesh, compare, (specs, specs), SPLIT)
        return jax.jit(mapped, compiler_options=self._steps.fast_compile_options)


def _tree(result: Result) -> PyTree:
    state, metrics = result
    compared = {name: getattr(metrics, name) for name in MEASURED}
    return {**state._asdict(), "metrics": compared}


def _difference(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the number of values with different bits, and their largest absolute difference."""
    differs = _bits(a) != _bits(b)
    # Values with the same bits may be NaN, so only those that differ enter the distance.
    distance = jnp.where(differs, jnp.abs(a.astype(jnp.float32) - b.astype(jnp.float32)), 0)
    return jnp.sum(differs), jnp.max(distance, initial=0)


def _bits(x: jax.Array) -> jax.Array:
    """Return the bits as integers, so that NaN equals NaN and −0 differs from 0."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x
    return jax.lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}")
