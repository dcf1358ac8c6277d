"""Constraints on W workers, D devices, microbatches of m workers and spans of g workers.

A span is either part of one device's microbatch (g divides m), or consists of whole microbatches of
several devices (m divides g, and g/m divides D).
"""

from collections.abc import Sequence

from largebatch.errors import ConfigError, counted


def divisors(number: int) -> tuple[int, ...]:
    """Return the divisors of a positive number, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return tuple(small + [number // d for d in reversed(small) if d * d != number])


def span_fits(microbatch: int, devices: int, span: int) -> bool:
    """Return whether microbatches of ``microbatch`` workers can form spans of ``span`` workers."""
    if span <= microbatch:
        return microbatch % span == 0
    return span % microbatch == 0 and devices % (span // microbatch) == 0


def possible_spans(workers: int, devices: int) -> list[int]:
    """Return the values of ``norm.span`` that suit W and D, ascending."""
    microbatches = divisors(workers // devices)
    return [g for g in divisors(workers) if any(span_fits(m, devices, g) for m in microbatches)]


def check_workers(workers: int, devices: int) -> None:
    """Check that the number of workers is a multiple of the number of devices.

    Raises:
      ConfigError: it is not; the message has the nearest valid numbers of workers and devices.
    """
    if workers % devices == 0:
        return
    below, above = workers // devices * devices, (workers // devices + 1) * devices
    fewer = max(d for d in divisors(workers) if d <= devices)
    raise ConfigError(
        f"batch.workers={workers} cannot be shared evenly by {counted(devices, 'device')}; use "
        f"{f'{below} or ' if below else ''}{above} workers, or {fewer} of the devices"
    )


def microbatch_choices(workers: int, devices: int, span: int) -> tuple[int, ...]:
    """Return the microbatch sizes (m, in workers) that suit W, D and the span, ascending.

    Raises:
      ConfigError: no size suits the span; the message has the nearest valid spans.
    """
    fitting = tuple(m for m in divisors(workers // devices) if span_fits(m, devices, span))
    if workers % span == 0 and fitting:
        return fitting
    raise ConfigError(
        f"norm.span={span} is impossible with {workers} workers on {counted(devices, 'device')}; "
        f"use {_nearest(span, possible_spans(workers, devices))}"
    )


def check_microbatch(
    chosen: int, workers: int, devices: int, span: int, fitting: Sequence[int]
) -> None:
    """Check that ``batch.microbatch`` is one of the valid sizes.

    Raises:
      ConfigError: it is not; the message has the nearest valid values.
    """
    if chosen not in fitting:
        raise ConfigError(
            f"batch.microbatch={chosen} is impossible with {workers} workers on "
            f"{counted(devices, 'device')} and norm.span={span}; use {_nearest(chosen, fitting)}",
            unused=("batch.microbatch",),
        )


def _nearest(value: int, valid: Sequence[int]) -> str:
    """Return the valid values next to an invalid one, the smaller and the larger."""
    below, above = [v for v in valid if v < value][-1:], [v for v in valid if v > value][:1]
    return " or ".join(map(str, below + above))
