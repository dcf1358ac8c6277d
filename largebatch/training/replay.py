"""A step computed twice and compared to the bit, against silent data corruption.

What a processor computes wrongly without an error stays in the parameters and is found nowhere
else. The same program on the same input gives the same bits, on GPUs with ``run.deterministic``;
where it did not, one of the two results is wrong.

Each device compares its own copies and parts: what should be equal on all need not be, once a
device miscalculates. Which device it was can be told only if it erred after the all-reduce, which
carries an error made before it to all.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from largebatch import parallel
from largebatch.checkpoint.arrays import by_path
from largebatch.parallel import REPLICATED, SPLIT
from largebatch.parallel.processes import agreed_minimum, gather
from largebatch.training.state import MEASURED, Metrics, TrainState
from largebatch.training.steps import Steps

Result = tuple[TrainState, Metrics]
PyTree = Any
_NAMED = 3  # in the text for people; the row has all


@dataclasses.dataclass(frozen=True)
class Difference:
    """An array that came out differently; on the device where most of it did."""

    name: str
    """Path in the state, or the metric."""
    values: int
    """How many are different."""
    largest: float
    """The greatest distance, NaN if one of the two is."""


@dataclasses.dataclass(frozen=True)
class Mismatch:
    """A step whose two results differ."""

    differences: tuple[Difference, ...]
    """Of all processes together, in the order of the state."""
    processes: tuple[int, ...]
    """On which processes there are any."""
    hosts: tuple[str, ...]
    """Of these."""
    of: int
    """Processes of the run."""
    may_be_harmless: bool
    """Whether kernels that differ by themselves may have been in use."""

    @property
    def text(self) -> str:
        """What differs and where, in one line."""
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
        hint = "; GPUs may differ by themselves without run.deterministic=true"
        return (
            f"a step computed twice gave two results: {', '.join(named)}; {where}"
            + hint * self.may_be_harmless
        )

    def row(self) -> dict[str, Any]:
        """For a log; lists of the arrays that differ."""
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
        """Compiles nothing yet.

        Args:
          steps: whose states.
          hosts: the name of each process's.
        """
        self._steps = steps
        self._hosts = tuple(hosts)

    @functools.cached_property
    def copied(self) -> Callable[[TrainState], TrainState]:
        """State → a copy on the devices, for ``finish`` takes the one it is given."""
        shardings = parallel.placed(self._steps.mesh, self._steps.specs)
        return jax.jit(
            lambda state: jax.tree.map(jnp.copy, state),
            out_shardings=shardings,
            compiler_options=self._steps.fast_compile_options,
        )

    def compared(self, first: Result, second: Result) -> Mismatch | None:
        """Compare a step's results to the bit; every process must call it.

        Args:
          first: state and metrics.
          second: the same, computed again.

        Returns:
          What differs on any process, the same on all; None if nothing does.
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
    """How many values have other bits, and the largest distance between those."""
    differs = _bits(a) != _bits(b)
    # As numbers of the same bits may be NaN, only those that differ are looked at.
    distance = jnp.where(differs, jnp.abs(a.astype(jnp.float32) - b.astype(jnp.float32)), 0)
    return jnp.sum(differs), jnp.max(distance, initial=0)


def _bits(x: jax.Array) -> jax.Array:
    """As integers, of which NaN equals NaN and −0 is not 0."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x
    return jax.lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}")
