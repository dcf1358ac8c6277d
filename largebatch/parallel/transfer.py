"""Transfer of batches to the devices, ahead of their step."""

from collections.abc import Generator, Iterator
from typing import NamedTuple

import jax
from jax.sharding import Mesh

from largebatch import data
from largebatch.fault_tolerance import Watchdog
from largebatch.parallel import from_local

# Batches on the devices before their step: one is being sent while another waits.
AHEAD = 2
# Batches whose program has been dispatched: one is computed, the others wait, so that the device
# does not idle until the host has noticed the end of a program and dispatched the next one.
IN_FLIGHT = 3
# Batches that wait on the devices while another one is computed; memory must have room for them.
# The arguments of a program include its own batch. Its temporary arrays exist once: a device
# computes one program at a time.
WAITING = AHEAD + IN_FLIGHT - 1


class Augmented(NamedTuple):
    """Training images, and what the device erases and mixes."""

    images: jax.Array
    """uint8 (rows, H, W, C)."""
    erased: jax.Array | None = None
    """int32 (rows, 4), boxes of `data.mixing.erased_boxes`."""
    mixtures: jax.Array | None = None
    """float32 (rows, 6), of `data.mixing.mixtures`."""


Images = jax.Array | Augmented
"""uint8 (rows, H, W, C), or those with what the device alters."""


class OnDevices(NamedTuple):
    """A global batch, split over the devices."""

    images: Images
    labels: jax.Array
    mask: jax.Array | None = None
    """float32 (rows,) of an evaluation batch: 1 for an example, 0 for padding."""


def on_devices(
    mesh: Mesh,
    batches: Iterator[data.Microbatch] | Iterator[data.EvaluationBatch],
    patience: float | None = None,
) -> Generator[OnDevices | None]:
    """Send this process's batches to its devices, as parts of global ones, in a thread.

    Args:
      mesh: the devices.
      batches: taken from up to ``AHEAD`` batches early; closed with the result.
      patience: seconds to wait for a batch before None is yielded instead; None waits.
    """

    def sent() -> Generator[OnDevices]:
        try:
            for batch in batches:
                images: Images
                images, labels = (from_local(mesh, a) for a in (batch.images, batch.labels))
                if isinstance(batch, data.EvaluationBatch):
                    yield OnDevices(images, labels, from_local(mesh, batch.mask))
                else:
                    altered = batch.erased, batch.mixtures
                    if any(array is not None for array in altered):
                        images = Augmented(
                            images, *(a if a is None else from_local(mesh, a) for a in altered)
                        )
                    yield OnDevices(images, labels)
        finally:
            batches.close()

    return data.ahead(sent(), AHEAD, patience)


def patient(batches: Iterator[OnDevices | None], watchdog: Watchdog) -> Generator[OnDevices]:
    """Yield the batches; poll the watchdog after each, and while waiting for one.

    Raises:
      Interrupted: the run must stop.
    """
    for batch in batches:
        if batch is not None:
            watchdog.alive()  # waiting is no progress
        watchdog.poll()
        if batch is not None:
            yield batch
