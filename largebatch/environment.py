"""What figures depend on: devices, processor, versions, commit; each asked for in one place."""

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_RUN = ("largebatch", "jax", "jaxlib", "flax", "optax", "grain", "orbax-checkpoint", "numpy")


def versions(names: Iterable[str]) -> dict[str, str]:
    """Versions of the distributions that are installed; absent ones are left out."""
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def environment() -> dict[str, Any]:
    """Devices and versions that the numbers of a run depend on."""
    import jax  # programs that only look at this machine need no devices

    return {
        "device": jax.devices()[0].device_kind,
        "devices": jax.device_count(),
        "processes": jax.process_count(),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        # A benchmark of the step alone may run where input and checkpoints cannot.
        "versions": versions(_RUN),
    }


def cpu_model() -> str:
    """The processor's own name, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def commit() -> str | None:
    """The commit of largebatch's own checkout, marked if files differ from it.

    An installed package may lie in an environment inside somebody else's repository, whose commit
    says nothing of this code: only a repository that has its top level beside the package and
    tracks it counts. None otherwise; the installed version is in ``versions`` then.
    """
    top = said("git", "rev-parse", "--show-toplevel")
    if not top or Path(top).resolve() != ROOT:
        return None
    if not said("git", "ls-files", f"{Path(__file__).parent.name}/__init__.py"):
        return None
    return said("git", "describe", "--always", "--dirty", "--abbrev=12")


def code() -> str:
    """The commit of the checkout, or the version of the installed package, for people."""
    installed = versions(["largebatch"]).get("largebatch", "of unknown version")
    return commit() or f"largebatch {installed}, installed"


def gpu_driver() -> str | None:
    """The version of NVIDIA's driver; None where there is none."""
    found = said("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return found and found.splitlines()[0]


def said(*command: str, limit_s: float = 20.0) -> str | None:
    """What a command prints; None if it fails, hangs or is not there."""
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=limit_s
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
