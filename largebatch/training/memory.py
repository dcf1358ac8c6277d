"""Device memory: the largest microbatch whose programs fit.

It follows from the compiler's memory analysis before the run, not from running out of memory.
"""

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import jax

from largebatch.config.plan import StagePlan, microbatch_candidates
from largebatch.errors import ConfigError, UserError, counted
from largebatch.parallel.processes import agreed_maximum, agreed_minimum
from largebatch.parallel.transfer import WAITING
from largebatch.training.stage import Stage, program_bytes

GIB = 2**30
TOO_LARGE = 2**61
"""Bytes of a program that could not be compiled for lack of memory; more than any device has."""
USABLE = 0.9
"""Share of a device's memory that programs may use; collectives need some of the rest."""
# A program predicted to need up to this factor of the available memory may still fit.
_DOUBT = 1.25
# More pixels at a time do not make a GPU or a CPU faster (docs/performance.md, Memory).
_MOST_PIXELS = {"gpu": 320 * 224 * 224, "cpu": 64 * 64 * 64}


def largest_microbatch(
    plan: StagePlan,
    candidates: Sequence[int],
    stage_of: Callable[[int], Stage],
    *,
    for_evaluation: bool = False,
) -> int:
    """Return a large microbatch whose largest program fits every process's devices.

    Args:
      plan: of the stage, with any microbatch.
      candidates: numbers of workers at a time on each device, ascending.
      stage_of: returns the stage with a microbatch, always the same object.
      for_evaluation: fit the evaluation program instead of the train step, which is not compiled.

    Raises:
      ConfigError: not even the smallest fits.
    """
    config, facts = plan.config, plan.facts
    local = jax.local_devices()
    usable = agreed_minimum(int(device_bytes(local[0], len(local)) * USABLE))
    side = config.data.evaluation_size
    seen = (side, side) if side else facts.image_shape[:2]

    def needed(microbatch: int) -> int:
        stage = stage_of(microbatch)
        # Images that wait on the device while a step computes.
        waiting = WAITING * stage.plan.local_images * math.prod(facts.image_shape)
        try:
            if for_evaluation:
                # Rectangular images are up to twice as large as the square ones.
                factor = 2 if config.data.rectangular else 1
                found = factor * program_bytes(stage.evaluate(seen)) + waiting
            else:
                found = program_bytes(stage.finish) + waiting
        except jax.errors.JaxRuntimeError as error:
            # Autotuning allocates too: a program that cannot be tuned does not fit.
            if not is_exhausted(error):
                raise
            found = TOO_LARGE
        # Processes that disagree would compile different candidates and wait for each other.
        return agreed_maximum(found)

    pixels = config.batch.images_per_worker * math.prod(facts.image_shape[:2])
    most = _MOST_PIXELS.get(local[0].platform, math.inf)
    useful = [m for m in candidates if m * pixels <= most] or candidates[:1]
    state = stage_of(useful[-1]).state  # of the program that is compiled first
    # An evaluation needs parameters and statistics; a step the rest and gradients too.
    held = (state.params, state.stats) if for_evaluation else (state, state.params)
    fixed = sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(held)
    )
    return large_that_fits(useful, needed, usable, fixed)


def large_that_fits(
    candidates: Sequence[int], needed: Callable[[int], int], available: int, fixed: int
) -> int:
    """Return a large candidate that fits, found with two compilations at most where possible.

    A compilation for ImageNet takes minutes. The memory of a program is roughly affine in the
    microbatch, but the line may be off by a fifth (ResNet-50 on an H100: 2.0, 3.7, 8.0 and 14.0 GiB
    for 40 to 320 images). The largest candidate comes first. If it does not fit, the next one is
    the largest that fits even if it needs a quarter more than the line from ``fixed`` through the
    bytes seen says, so that a third one is rare. The result may be one candidate below the largest
    that fits.

    Args:
      candidates: numbers of workers at a time, ascending.
      needed: compiles the program for one candidate and returns its bytes; grows with it.
      available: bytes that may be used.
      fixed: bytes that do not depend on the candidate.

    Raises:
      ConfigError: not even the smallest fits.
    """
    left = list(candidates)
    while True:
        tried = left.pop()
        found = needed(tried)
        if found <= available:
            return tried
        if not left:
            raise ConfigError(
                f"batch.microbatch=auto: even {counted(tried, 'worker')} at a time need "
                f"{found / GIB:.2f} GiB of the {available / GIB:.2f} GiB that may be used on a "
                "device; use fewer batch.images_per_worker or smaller images"
            )
        # How much more than there is a program needs that could not be compiled is not known.
        each = ((found if found < TOO_LARGE else 2 * available) - fixed) / tried
        safe = [m for m in left if fixed + _DOUBT * m * each <= available]
        left = safe or left[:1]


def is_exhausted(error: jax.errors.JaxRuntimeError) -> bool:
    """Return whether a device ran out of memory; only the message shows it."""
    return "RESOURCE_EXHAUSTED" in str(error)


@contextlib.contextmanager
def reporting_out_of_memory(stage: StagePlan) -> Iterator[None]:
    """Replace an out-of-memory error of a device by the microbatch to use.

    Args:
      stage: whose programs run.

    Raises:
      UserError: names the microbatch.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if not is_exhausted(error):
            raise
        fitting = microbatch_candidates(stage.config, stage.facts)
        smaller = [m for m in fitting if m < stage.microbatch]
        remedy = (
            f"use --config.batch.microbatch={smaller[-1]}"
            if smaller
            else "use fewer batch.images_per_worker or smaller images"
        )
        raise UserError(
            f"a device ran out of memory with batch.microbatch={stage.microbatch} "
            f"({stage.local_images} images at a time); {remedy}"
        ) from error


def device_bytes(device: jax.Device, neighbours: int) -> int:
    """Return the bytes of memory that a run may use on ``device``.

    Args:
      device: the device.
      neighbours: number of devices of this process. CPU devices share half of the host's memory;
        the other half is left to the input pipeline and other programs.
    """
    stats = device.memory_stats() or {}
    if "bytes_limit" in stats:
        return stats["bytes_limit"]
    return host_bytes() // 2 // neighbours


def host_bytes() -> int:
    """Return the bytes of memory of this host, or of the container or job that limits it."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        limit = Path("/sys/fs/cgroup", name)
        if limit.is_file() and (text := limit.read_text().strip()).isdigit():
            found.append(int(text))
    return min(found)
