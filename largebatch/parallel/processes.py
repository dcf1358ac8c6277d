"""Several processes as one run: finding each other, and agreeing on a number."""

import os
from collections.abc import Mapping

import jax
import numpy as np
from jax.experimental import multihost_utils

from largebatch.errors import UserError

# What a launcher sets where there is no cluster manager; the names are JAX's own.
COORDINATOR, PROCESSES, PROCESS = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"


def detect_cluster(environ: Mapping[str, str]) -> str | None:
    """The cluster manager that started this process as one of several, or None."""
    counts = {
        "SLURM": environ.get("SLURM_STEP_NUM_TASKS", environ.get("SLURM_NTASKS", "1")),
        "Open MPI": environ.get("OMPI_COMM_WORLD_SIZE", "1"),
        "TPU pod": str(1 + environ.get("TPU_WORKER_HOSTNAMES", "").count(",")),
        "GKE": "2" if environ.get("MEGASCALE_COORDINATOR_ADDRESS") else "1",
    }
    return next(
        (name for name, count in counts.items() if count.isdigit() and int(count) > 1), None
    )


def initialise(
    *, coordinator: str | None = None, processes: int | None = None, process: int | None = None
) -> str:
    """Join the other processes of the run, if there are any. Call before anything touches a device.

    Addresses that are given come first, then those of the environment
    (``JAX_COORDINATOR_ADDRESS``, ``JAX_NUM_PROCESSES``, ``JAX_PROCESS_ID``), then a cluster that
    JAX knows: SLURM, Open MPI, GKE, TPU pods.

    Returns:
      How the processes found each other, for people.

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
    try:
        jax.distributed.initialize(**arguments)
    except (RuntimeError, ValueError) as error:
        first = str(error).splitlines()[0]
        raise UserError(
            f"cannot join the other processes ({how}): {first}; check the addresses"
        ) from error
    return f"{jax.process_count()} processes ({how})"


def agreed_minimum(value: int) -> int:
    """The least of the values that the processes pass; each must call it."""
    if jax.process_count() == 1:
        return value
    return int(multihost_utils.process_allgather(np.int64(value)).min())


def wait_for_all(where: str) -> None:
    """Return when every process has come to the point named ``where``."""
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
