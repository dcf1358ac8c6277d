"""Transfer of batches to the devices, ahead of their step."""

import collections
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import NamedTuple, TypeVar

import jax
from jax.sharding import Mesh

from largebatch import data
from largebatch.fault_tolerance import IDLE, Watchdog
from largebatch.parallel import from_local

S, T = TypeVar("S"), TypeVar("T")

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
    watchdog: Watchdog = IDLE,
    waited: Callable[[float], None] = lambda seconds: None,
) -> Generator[OnDevices]:
    """Send this process's batches to its devices, as parts of global ones, in a thread.

    Args:
      mesh: the devices.
      batches: taken from up to ``AHEAD`` batches early; closed with the result.
      watchdog: polled after each batch, and while waiting for one.
      waited: called for each batch with the seconds of waiting for it.

    Yields:
      The batches; raises Interrupted where the run must stop.
    """

    def send(batch: data.Microbatch | data.EvaluationBatch) -> OnDevices:
        images, labels = (from_local(mesh, a) for a in (batch.images, batch.labels))
        if isinstance(batch, data.EvaluationBatch):
            return OnDevices(images, labels, from_local(mesh, batch.mask))
        altered = batch.erased, batch.mixtures
        if all(array is None for array in altered):
            return OnDevices(images, labels)
        altered = (a if a is None else from_local(mesh, a) for a in altered)
        return OnDevices(Augmented(images, *altered), labels)

    def poll(seconds: float, arrived: bool) -> None:
        if arrived:
            watchdog.alive()  # waiting is no progress
            waited(seconds)
        watchdog.poll()

    return data.ahead(batches, send, AHEAD, poll=poll, patience=watchdog.patience)


def computed(batches: Iterable[S], program: Callable[[S], T]) -> Generator[T]:
    """Yield the result of a program for each batch, on the host.

    Args:
      batches: on the devices.
      program: dispatched for at most ``IN_FLIGHT`` batches before the first result is awaited.
    """
    pending: collections.deque[T] = collections.deque()
    for batch in batches:
        pending.append(program(batch))
        if len(pending) >= IN_FLIGHT:
            yield jax.device_get(pending.popleft())
    while pending:
        yield jax.device_get(pending.popleft())
