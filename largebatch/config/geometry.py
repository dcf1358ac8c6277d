"""Constraints on W workers, D devices, microbatches of m workers and spans of g workers.

A span is either part of one device's microbatch (g divides m), or consists of whole microbatches of
several devices (m divides g, and g/m divides D).
"""

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


def check_workers(workers: int, devices: int) -> None:
    """Check that the number of workers is a multiple of the number of devices.

    Raises:
      ConfigError: it is not; the message has the nearest valid numbers of workers and devices.
    """
    if workers % devices == 0:
        return
    on = counted(devices, "device")
    below, above = workers // devices * devices, (workers // devices + 1) * devices
    near = max(d for d in divisors(workers) if d <= devices)
    raise ConfigError(
        f"batch.workers={workers} cannot be shared evenly by {on}; use "
        f"{f'{below} or ' if below else ''}{above} workers, or {near} of the devices "
        f"({_fewer_devices(near)})"
    )


def _fewer_devices(devices: int) -> str:
    """Return how to restrict a process to a smaller number of devices."""
    gpus = ",".join(map(str, range(devices)))
    on_gpus = f"CUDA_VISIBLE_DEVICES={gpus}" if devices <= 8 else "fewer GPU processes"
    return f"JAX_NUM_CPU_DEVICES={devices} on CPUs, {on_gpus}"


def microbatch_choices(workers: int, devices: int, span: int) -> tuple[int, ...]:
    """Return the microbatch sizes (m, in workers) that suit W, D and the span, ascending.

    Raises:
      ConfigError: no size suits the span; the message has the nearest valid spans.
    """
    choices = tuple(
        m
        for m in divisors(workers // devices)
        if workers % span == 0 and span_fits(m, devices, span)
    )
    if choices:
        return choices
    fitting = possible_spans(workers, devices)
    below = [g for g in fitting if g <= span][-1:]
    above = [g for g in fitting if g > span][:1]
    on = counted(devices, "device")
    raise ConfigError(
        f"norm.span={span} is impossible with {workers} workers on {on}; use "
        f"{' or '.join(str(g) for g in below + above)}"
    )


def check_microbatch(
    chosen: int, workers: int, devices: int, span: int, fitting: tuple[int, ...]
) -> None:
    """Check that ``batch.microbatch`` is one of the valid sizes.

    Raises:
      ConfigError: it is not; the message has the reason and the nearest valid values.
    """
    if chosen in fitting:
        return
    near = " or ".join(
        str(m)
        for m in [m for m in fitting if m < chosen][-1:] + [m for m in fitting if m > chosen][:1]
    )
    share, on = workers // devices, counted(devices, "device")
    if share % chosen:
        why = f"does not divide the {share} workers of each device ({workers} on {on})"
    elif span > chosen * devices:
        why = f"gives {chosen * devices} workers at a time on {on}, fewer than norm.span={span}"
    else:
        why = f"does not suit norm.span={span} on {on}"
    raise ConfigError(f"batch.microbatch={chosen} {why}; use {near}", unused=("batch.microbatch",))


def possible_spans(workers: int, devices: int) -> list[int]:
    """Return the values of ``norm.span`` that suit W and D, ascending."""
    microbatches = divisors(workers // devices)
    return [g for g in divisors(workers) if any(span_fits(m, devices, g) for m in microbatches)]
