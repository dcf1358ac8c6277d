"""The processes of a run: joining, their devices and memory, and agreeing on a number."""

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable, Mapping
from typing import TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from largebatch.environment import COORDINATOR, PROCESS, PROCESSES, detect_cluster
from largebatch.errors import UserError, one_line
from largebatch.fault_tolerance.peers import distributed_state

T = TypeVar("T")

_NO_CLUSTER = "coordinator_address should be defined"  # JAX's words where it detects no cluster
_REMEDIES = {
    "Open MPI": "start it by scripts/launch/open_mpi.sh",
    "TPU VM": "start it on every host of the slice, or for this host alone add "
    "--coordinator=localhost:8476 --processes=1 --process=0",
}
_MOST = 2**61

# malloc.h of glibc
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
_HEAP_BYTES = 64 * 2**20  # largest piece of a thread's heap


def initialise(
    *, coordinator: str | None = None, processes: int | None = None, process: int | None = None
) -> str:
    """Join the other processes of the run, if there are any. Call before any use of a device.

    The arguments come first, then the environment (``JAX_COORDINATOR_ADDRESS``,
    ``JAX_NUM_PROCESSES``, ``JAX_PROCESS_ID``), then a cluster that JAX knows: SLURM, Open MPI, GKE,
    TPU pods.

    Returns:
      How the processes found each other, in words.

    Raises:
      UserError: addresses are incomplete, or the others cannot be reached.
    """
    given = {
        "coordinator": coordinator or os.environ.get(COORDINATOR),
        "processes": processes if processes is not None else _number(PROCESSES),
        "process": process if process is not None else _number(PROCESS),
    }
    missing = [name for name, value in given.items() if value is None]
    if not missing:
        how = f"coordinator {given['coordinator']}"
        arguments = {
            "coordinator_address": given["coordinator"],
            "num_processes": given["processes"],
            "process_id": given["process"],
        }
        if not 0 <= given["process"] < given["processes"]:
            raise UserError(
                f"--process={given['process']} is not below --processes={given['processes']}"
            )
    elif len(missing) < len(given):
        raise UserError(
            f"several processes need all of --coordinator, --processes and --process; "
            f"missing: {', '.join(f'--{name}' for name in missing)}"
        )
    else:
        how, arguments = detect_cluster(os.environ), {}
        if how is None:
            return "one process"
    # JAX's service would handle SIGTERM; the run has its own handlers.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(**arguments)
    except (RuntimeError, ValueError, OSError) as error:  # OSError: no metadata server answers
        if how == "TPU VM" and isinstance(error, ValueError) and _NO_CLUSTER in str(error):
            return "one process"  # chips, but JAX knows of no cluster around them
        # Under its version 5 JAX finds no coordinator, or only with mpi4py.
        remedy = _REMEDIES.get(how, "check the addresses")
        raise UserError(
            f"cannot join the other processes ({how}): {one_line(error)}; {remedy}"
        ) from error
    # Not by jax.process_count(), which starts the devices.
    return f"{distributed_state().num_processes} processes ({how})"


def prepare_devices() -> None:
    """Check that JAX finds devices of ``JAX_PLATFORMS``; for CPUs, keep freed memory.

    Raises:
      UserError: it finds none.
    """
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:  # the latter says nothing
        asked = jax.config.jax_platforms or "auto"
        why = f" ({one_line(error)})" if str(error) else ""
        raise UserError(
            f"JAX_PLATFORMS={asked}: JAX finds no such device{why}; unset it or use "
            "JAX_PLATFORMS=cpu, or install the extra for the device: pip install -e '.[gpu]' or "
            "'.[tpu]'"
        ) from error
    if jax.default_backend() == "cpu":
        keep_freed_memory()


def keep_freed_memory(environ: Mapping[str, str] = os.environ) -> bool:
    """Keep freed memory in this process for the next allocation, where glibc's malloc is used.

    A step on a CPU allocates and frees its buffers. By default, glibc returns large blocks to the
    kernel, which must clear every page again in the next step: a sixth of the time of a small
    network (docs/performance.md). Afterwards, the process stays at its largest use of memory.

    Args:
      environ: if it has a setting of glibc's allocator, nothing is changed.

    Returns:
      Whether the allocator was set.
    """
    own = any(name.startswith("MALLOC_") for name in environ)
    if sys.platform != "linux" or own or "glibc.malloc" in environ.get("GLIBC_TUNABLES", ""):
        return False
    with contextlib.suppress(OSError, AttributeError):  # another C library has no mallopt
        mallopt = ctypes.CDLL(None).mallopt
        # Never shrink the heap, keep the empty heaps of threads, and map no block by itself.
        return all(
            [mallopt(_TRIM_THRESHOLD, -1), mallopt(_TOP_PAD, _HEAP_BYTES), mallopt(_MMAP_MAX, 0)]
        )
    return False


def gather(array: np.ndarray) -> np.ndarray:
    """Return the arrays of all processes, (processes, *shape), of 32 bits or less; collective."""
    if jax.process_count() == 1:
        return array[None]
    return np.asarray(multihost_utils.process_allgather(array))


def agreed_minimum(value: int) -> int:
    """Return the minimum of the values (0 to 2⁶¹) of all processes; collective."""
    if jax.process_count() == 1:
        return value
    # Arrays on devices are 32 bits wide unless x64 is on: two halves.
    halves = gather(np.array(divmod(value, 2**31), np.int32))
    return min(int(high) * 2**31 + int(low) for high, low in halves)


def agreed_maximum(value: int) -> int:
    """Return the maximum of the values (0 to 2⁶¹) of all processes; collective."""
    return _MOST - agreed_minimum(_MOST - value)


def agree(value: int) -> bool:
    """Whether all processes pass the same value (0 to 2⁶¹); collective."""
    return agreed_minimum(value) == agreed_maximum(value)


def from_first_process(number: int | None) -> int | None:
    """Return the number (0 to 2⁶⁰) of process 0, or None if that is its value; collective."""
    own = 2**61 if jax.process_index() else 0 if number is None else 1 + number
    agreed = agreed_minimum(own)
    return agreed - 1 if agreed else None


def first_process_does(action: Callable[[], T]) -> T | None:
    """Run ``action`` on process 0 while the others wait; if it fails, all end.

    Returns:
      Its result on process 0; None on the others.

    Raises:
      UserError: it failed; process 0 reports the reason.
    """
    result, failure = None, None
    if jax.process_index() == 0:
        try:
            result = action()
        except Exception as error:
            failure = error
    if not agreed_minimum(int(failure is None)):
        raise failure or UserError("process 0 could not go on; its message says why")
    return result


def each_process_does(action: Callable[[], T]) -> T:
    """Run ``action`` on each process; if it fails on one, all end.

    Raises:
      UserError: it failed on another process, which reports the reason.
      Exception: that of ``action`` on this process.
    """
    result, failure = None, None
    try:
        result = action()
    except Exception as error:
        failure = error
        # The others may hang in a collective and never receive it.
        if jax.process_count() > 1:
            print(
                f"process {jax.process_index()}: {type(error).__name__}: {one_line(error)}",
                file=sys.stderr,
                flush=True,
            )
    if not agreed_minimum(int(failure is None)):
        raise failure or UserError("another process could not; its message says why")
    return result


def wait_for_all(where: str) -> None:
    """Return when every process has reached the point named ``where``."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(where)


def _number(name: str) -> int | None:
    text = os.environ.get(name)
    if text is None:
        return None
    if not text.isdigit():
        raise UserError(
            f"{name}={text!r} in the environment is not a whole number; mend or unset it"
        )
    return int(text)
