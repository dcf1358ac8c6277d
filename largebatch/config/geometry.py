"""How workers, spans and devices fit together: W workers on D devices, m at a time, spans of g.

A span lies either inside one device's microbatch (g divides m) or on whole microbatches of several
devices at once (m divides g, and g/m divides D).
"""

from largebatch.errors import ConfigError


def divisors(number: int) -> tuple[int, ...]:
    """The divisors of a positive number, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return tuple(small + [number // d for d in reversed(small) if d * d != number])


def span_fits(microbatch: int, devices: int, span: int) -> bool:
    """Whether spans of ``span`` workers can be formed with ``microbatch`` workers at a time."""
    if span <= microbatch:
        return microbatch % span == 0
    return span % microbatch == 0 and devices % (span // microbatch) == 0


def check_workers(workers: int, devices: int) -> None:
    """Refuse workers that the devices cannot share evenly.

    Raises:
      ConfigError: with the nearest numbers of workers and devices that work.
    """
    if workers % devices == 0:
        return
    below, above = workers // devices * devices, (workers // devices + 1) * devices
    near = max(d for d in divisors(workers) if d <= devices)
    raise ConfigError(
        f"batch.workers={workers} cannot be shared evenly by {devices} devices; nearest that can: "
        f"{f'{below} or ' if below else ''}{above} workers, or {near} of the devices "
        f"({_fewer_devices(near)})"
    )


def _fewer_devices(devices: int) -> str:
    """How a process is restricted to some of its devices."""
    gpus = ",".join(map(str, range(devices)))
    on_gpus = f"CUDA_VISIBLE_DEVICES={gpus}" if devices <= 8 else "fewer GPU processes"
    return f"JAX_NUM_CPU_DEVICES={devices} on CPUs, {on_gpus}"


def microbatch_choices(workers: int, devices: int, span: int) -> tuple[int, ...]:
    """The numbers of workers at a time (m) that suit W, D and the span, ascending; never empty.

    Raises:
      ConfigError: no choice suits the span; the message gives the nearest spans that work.
    """
    choices = tuple(
        m
        for m in divisors(workers // devices)
        if workers % span == 0 and span_fits(m, devices, span)
    )
    if choices:
        return choices
    fitting = [g for g in divisors(workers) if _span_possible(g, workers, devices)]
    below = [g for g in fitting if g <= span][-1:]
    above = [g for g in fitting if g > span][:1]
    raise ConfigError(
        f"norm.span={span} cannot be formed from {workers} workers on {devices} devices; nearest "
        f"that can: {' or '.join(str(g) for g in below + above)}"
    )


def check_microbatch(
    chosen: int, workers: int, devices: int, span: int, fitting: tuple[int, ...]
) -> None:
    """Refuse a number of workers at a time that W, D or the span does not suit.

    Raises:
      ConfigError: with the numbers and the nearest values that work.
    """
    if chosen in fitting:
        return
    near = " or ".join(
        str(m)
        for m in [m for m in fitting if m < chosen][-1:] + [m for m in fitting if m > chosen][:1]
    )
    share = workers // devices
    if share % chosen:
        why = f"does not divide the {share} workers of each device ({workers} on {devices} devices)"
    elif span > chosen * devices:
        why = (
            f"computes {chosen * devices} workers together on {devices} devices, fewer than the "
            f"norm.span of {span}"
        )
    else:
        why = f"does not suit norm.span={span} on {devices} devices"
    raise ConfigError(f"batch.microbatch={chosen} {why}; nearest that works: {near}")


def _span_possible(span: int, workers: int, devices: int) -> bool:
    return any(span_fits(m, devices, span) for m in divisors(workers // devices))
