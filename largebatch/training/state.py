"""Arrays that a training step takes and returns."""

import dataclasses
from typing import Any, NamedTuple

import jax

PyTree = Any


class Averages(NamedTuple):
    """Exponential moving averages of a training's parameters and BatchNorm statistics."""

    params: PyTree
    stats: PyTree


class TrainState(NamedTuple):
    """The arrays that training changes; replicated, except for velocities in parts."""

    params: PyTree
    stats: PyTree
    optimizer: PyTree
    ema: Averages | None = None
    """None without ``schedule.ema``."""


class Carry(NamedTuple):
    """Sums of each device over the microbatches of a step; a row for each device."""

    gradients: tuple[jax.Array, ...]
    """One array (devices, elements) for each bucket."""
    totals: jax.Array
    """Sums of batch statistics and metrics, (devices, elements)."""


MEASURED = ("loss", "top1", "top5", "gradient_norm")
"""The first numbers of `Metrics.values`, in this order.

A checkpoint keeps them while its evaluation is due, each as a field of `Progress`."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Metrics:
    """Metrics over the global batch of a step; one array, so that the host copies only one."""

    values: Any
    """(5,): those of `MEASURED` and ``small_square``; (7,) with control flags: also ``stop`` and
    ``left_out``."""

    loss = property(lambda self: self.values[0])
    top1 = property(lambda self: self.values[1])
    top5 = property(lambda self: self.values[2])
    gradient_norm = property(lambda self: self.values[3])
    small_square = property(lambda self: self.values[4])
    """Mean over the microbatches of a step of ‖g‖², where g is the mean gradient of a microbatch;
    0 where it is not computed."""

    @property
    def stop(self) -> Any:
        """Number of devices whose process has a request to stop; None without control flags."""
        return self._flag(5)

    @property
    def left_out(self) -> Any:
        """Number of microbatches that devices have left out of this step; None without flags."""
        return self._flag(6)

    def _flag(self, index: int) -> Any:
        return self.values[index] if self.values.shape[0] > index else None
