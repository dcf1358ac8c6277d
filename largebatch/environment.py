"""What surrounds a run: launcher, devices, processor, package versions and commit; its process."""

import contextlib
import importlib.metadata
import importlib.util
import logging
import os
import platform
import subprocess
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

# Set by a launcher without a cluster manager; the names are JAX's.
COORDINATOR, PROCESSES, PROCESS = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"
ROOT = Path(__file__).resolve().parents[1]
IS_CHECKOUT = (ROOT / "train.py").is_file()
"""Whether train.py and scripts/ are there; an installed package has none."""
_RUN = ("largebatch", "jax", "jaxlib", "flax", "optax", "safetensors", "numpy")


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """Restore the state of the process that the body and the libraries that it imports change.

    This is the import path, the environment, filters and display of warnings, and the handlers of
    the root logger. Like `warnings.catch_warnings`, it is for a body that no other thread shares.
    """
    path, variables, root = list(sys.path), dict(os.environ), logging.getLogger()
    handlers, level = list(root.handlers), root.level
    with warnings.catch_warnings():
        try:
            yield
        finally:
            sys.path[:] = path
            for name in os.environ.keys() - variables.keys():
                del os.environ[name]
            os.environ.update(variables)
            root.handlers[:] = handlers
            root.setLevel(level)


def discard(stream: TextIO) -> None:
    """Send nowhere what is written to a stream from now on: nothing reads it any more."""
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


def detect_cluster(environ: Mapping[str, str]) -> str | None:
    """Return the cluster manager that started this process as one of several, or None."""
    counts = {
        "SLURM": environ.get("SLURM_STEP_NUM_TASKS", "1"),  # what srun sets; sbatch alone does not
        "Open MPI": environ.get("OMPI_COMM_WORLD_SIZE", "1"),
        "TPU pod": str(1 + environ.get("TPU_WORKER_HOSTNAMES", "").count(",")),
        "GKE": "2" if environ.get("MEGASCALE_COORDINATOR_ADDRESS") else "1",
    }
    found = (name for name, count in counts.items() if count.isdigit() and int(count) > 1)
    return next(found, "TPU VM" if _on_tpu_vm() else None)


def is_one_of_several(environ: Mapping[str, str]) -> bool:
    """Return whether the environment says that this process is one of several of a run."""
    names = (COORDINATOR, PROCESSES, PROCESS)
    return any(name in environ for name in names) or detect_cluster(environ) is not None


def _on_tpu_vm() -> bool:
    """Whether chips are attached; the hosts of a pod find each other by their metadata server."""
    attached = any(Path("/dev").glob("accel[0-9]*")) or any(Path("/dev/vfio").glob("[0-9]*"))
    return attached and importlib.util.find_spec("libtpu") is not None


def command_path(name: str) -> str:
    """Return the path of a command of the checkout, such as train.py, for the working directory."""
    path = ROOT / name
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def versions(names: Iterable[str]) -> dict[str, str]:
    """Return the versions of those of the named distributions that are installed."""
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def environment() -> dict[str, Any]:
    """Return the devices and versions that a run's results depend on."""
    import jax  # callers that need only the host's data do not initialize devices

    return {
        "device": jax.devices()[0].device_kind,
        "devices": jax.device_count(),
        "processes": jax.process_count(),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "versions": versions(_RUN),
    }


def cpu_model() -> str:
    """Return the name of the processor, as far as the system reports one."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def commit() -> str | None:
    """Return the commit of largebatch's checkout, with the suffix ``-dirty`` if files differ.

    An installed package may lie inside the repository of another project. Therefore the top level
    of the repository must be the parent of the package, and the repository must track the package.
    Otherwise the result is None, and ``versions`` has the installed version.
    """
    top = command_output("git", "rev-parse", "--show-toplevel")
    if not top or Path(top).resolve() != ROOT:
        return None
    if not command_output("git", "ls-files", f"{Path(__file__).parent.name}/__init__.py"):
        return None
    return command_output("git", "describe", "--always", "--dirty", "--abbrev=12")


def code() -> str:
    """Return the commit of the checkout, or the version of the installed package, for display."""
    installed = versions(["largebatch"]).get("largebatch", "of unknown version")
    return commit() or f"largebatch {installed}, installed"


def gpu_driver() -> str | None:
    """Return the version of the NVIDIA driver, or None without one."""
    found = command_output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return found and found.splitlines()[0]


def command_output(*command: str, limit_s: float = 20.0) -> str | None:
    """Return the output of a command, or None if it fails, times out or does not exist."""
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=limit_s
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
