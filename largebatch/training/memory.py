"""Device memory: what a compiled program needs, and the largest microbatch that fits.

Both follow from the compiler's memory analysis before the run, not from running out of memory.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import jax

from largebatch.config import StagePlan, microbatch_candidates
from largebatch.errors import ConfigError, UserError, counted

GIB = 2**30
TOO_LARGE = 2**61
"""Bytes of a program that could not be compiled for lack of memory; more than any device has."""
# A program predicted to need up to this factor of the available memory may still fit.
_DOUBT = 1.25


def program_bytes(compiled: jax.stages.Compiled) -> int:
    """Return the peak bytes on a device while a program runs: arguments, results, temporaries."""
    analysis = compiled.memory_analysis()
    return (
        analysis.argument_size_in_bytes
        + analysis.output_size_in_bytes
        - analysis.alias_size_in_bytes
        + analysis.temp_size_in_bytes
        + analysis.generated_code_size_in_bytes
    )


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


def device_bytes(device: jax.Device, memory_gib: float, neighbours: int) -> int:
    """Return the bytes of memory that a run may use on ``device``.

    Args:
      device: the device.
      memory_gib: the configured amount; 0 asks the device.
      neighbours: number of devices of this process. CPU devices share half of the host's memory;
        the other half is left to the input pipeline and other programs.
    """
    if memory_gib:
        return int(memory_gib * GIB)
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


def largest_that_fits(
    candidates: Sequence[int],
    needed: Callable[[int], int],
    available: int,
    *,
    surely_small: bool = False,
) -> int:
    """Return the largest candidate for ``batch.microbatch`` whose program fits.

    The memory of a program is roughly affine in the microbatch. Each compilation is therefore spent
    on the candidate at which the line through the programs seen so far meets the limit. The search
    starts with the smallest candidate, since a program far too large may be slow or impossible to
    compile. The line may be off by a fifth (ResNet-50 on an H100: 2.0, 3.7, 8.0 and 14.0 GiB for
    40 to 320 images), so the candidate above the largest that fits is compiled too, unless it
    exceeds the limit by more than that.

    Args:
      candidates: numbers of workers at a time, ascending.
      needed: compiles the program for one candidate and returns its bytes; grows with it.
      available: bytes that may be used.
      surely_small: start with the largest candidate, which is expected to fit; it is compiled and
        measured like the others.

    Raises:
      ConfigError: not even the smallest fits.
    """
    seen: dict[int, int] = {}
    if surely_small:
        seen[candidates[-1]] = needed(candidates[-1])
        if seen[candidates[-1]] <= available:
            return candidates[-1]
    if candidates[0] not in seen:
        seen[candidates[0]] = needed(candidates[0])
    if seen[candidates[0]] > available:
        raise _nothing_fits(candidates[0], seen[candidates[0]], available)
    while True:
        fitting = max(m for m in seen if seen[m] <= available)
        too_large = min((m for m in seen if seen[m] > available), default=float("inf"))
        open_ = [m for m in candidates if fitting < m < too_large]
        if not open_:
            return fitting
        hopeful = [m for m in open_ if _predict(seen, m) <= available]
        # The first line, from one program, is proportional and too steep: always try beyond it.
        doubtful = len(seen) == 1 or _predict(seen, open_[0]) <= available * _DOUBT
        if not hopeful and not doubtful:
            return fitting
        following = hopeful[-1] if hopeful else open_[0]
        seen[following] = needed(following)


def large_that_fits(
    candidates: Sequence[int], needed: Callable[[int], int], available: int, fixed: int
) -> int:
    """Return a large candidate that fits, found with two compilations at most where possible.

    For compilers that measure kernels, which takes minutes. The largest candidate comes first. If
    it does not fit, the next one is the largest that fits even if it needs a quarter more than the
    line from ``fixed`` through the bytes seen says (`largest_that_fits`), so that a third one is
    rare. The result may be one candidate below the largest that fits.

    Args:
      candidates: numbers of workers at a time, ascending.
      needed: as of `largest_that_fits`.
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
            raise _nothing_fits(tried, found, available)
        # How much more than there is a program needs that could not be compiled is not known.
        each = ((found if found < TOO_LARGE else 2 * available) - fixed) / tried
        safe = [m for m in left if fixed + _DOUBT * m * each <= available]
        left = safe or left[:1]


def _nothing_fits(candidate: int, needed: int, available: int) -> ConfigError:
    return ConfigError(
        f"batch.microbatch=auto: even {counted(candidate, 'worker')} at a time need "
        f"{needed / GIB:.2f} GiB of the {available / GIB:.2f} GiB that may be "
        "used on a device; use fewer batch.images_per_worker or smaller images"
    )


def _predict(seen: dict[int, int], microbatch: int) -> float:
    """Return the bytes on the line through the two largest programs seen, or one and the origin."""
    points = sorted(seen.items())[-2:]
    if len(points) == 1:
        return points[0][1] * microbatch / points[0][0]
    (m0, b0), (m1, b1) = points
    return b0 + (b1 - b0) * (microbatch - m0) / (m1 - m0)
