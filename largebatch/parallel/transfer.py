"""Batches on their way to the devices, ahead of the step that needs them."""

from collections.abc import Generator, Iterator
from typing import NamedTuple

import jax
from jax.sharding import Mesh

from largebatch import data
from largebatch.fault_tolerance import Watchdog
from largebatch.parallel import from_local

# Batches on the devices that no step has been given: one is being sent while another waits.
AHEAD = 2
# With the one that a step has been given while the step before it still computes: what a microbatch
# must leave free.
WAITING = AHEAD + 1

Images = jax.Array | tuple[jax.Array, jax.Array]
"""uint8 (rows, H, W, C); or decoded pictures uint8 (rows, S, S, 3) and crops int32 (rows, 5)."""


class OnDevices(NamedTuple):
    """A global batch, split over the devices."""

    images: Images
    labels: jax.Array
    mask: jax.Array | None = None
    """float32 (rows,), 1 for an example, 0 for padding; of an evaluation batch."""
    shape: tuple[int, int] | None = None
    """Height and width at which an evaluation batch is seen."""


def on_devices(
    mesh: Mesh,
    batches: Iterator[data.Microbatch] | Iterator[data.EvaluationBatch],
    patience: float | None = None,
) -> Generator[OnDevices | None]:
    """This process's batches as parts of global ones, sent to its devices by a thread of its own.

    Args:
      mesh: the devices.
      batches: taken from up to ``AHEAD`` batches early; closed with the result.
      patience: seconds to wait for a batch before None is given in its place; None waits.
    """

    def sent() -> Generator[OnDevices]:
        try:
            for batch in batches:
                images, labels = (from_local(mesh, a) for a in (batch.images, batch.labels))
                if batch.crops is not None:
                    images = (images, from_local(mesh, batch.crops))
                if isinstance(batch, data.EvaluationBatch):
                    yield OnDevices(images, labels, from_local(mesh, batch.mask), batch.shape)
                else:
                    yield OnDevices(images, labels)
        finally:
            batches.close()

    return data.ahead(sent(), AHEAD, patience)


def patient(batches: Iterator[OnDevices | None], watchdog: Watchdog) -> Generator[OnDevices]:
    """The batches alone. The watchdog is polled after each, and whenever one is waited for.

    Raises:
      Interrupted: the run is to stop.
    """
    for batch in batches:
        if batch is not None:
            watchdog.alive()  # to wait is no progress
        watchdog.poll()
        if batch is not None:
            yield batch
