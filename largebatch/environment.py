"""Provenance of results: devices, processor, package versions and commit."""

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
IS_CHECKOUT = (ROOT / "train.py").is_file()
"""Whether train.py and scripts/ are there; an installed package has none."""
_RUN = ("largebatch", "jax", "jaxlib", "flax", "optax", "grain", "orbax-checkpoint", "numpy")


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
