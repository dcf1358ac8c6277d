"""JAX's persistent cache of compiled programs."""

import contextlib
import hashlib
import importlib.util
import os
import platform
from collections.abc import Iterator
from pathlib import Path

import jax

from largebatch.errors import ConfigError
from largebatch.files import user_cache
from largebatch.store_urls import url_of

_CHANGED = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
"""What `use` changes of JAX's configuration."""
LEAST_S = 0.2
"""Seconds of compilation from which a program is kept."""


def place(option: str, kind: str) -> str:
    """Return the folder of ``run.compile_cache``, which may not exist yet; '' for ``off``.

    A program for CPUs uses the instructions of the machine that compiled it. The cache therefore
    has a folder for each kind of CPU; other devices are part of a program's key.

    Args:
      option: ``auto``, ``off``, a folder or a URL.
      kind: platform of the devices: ``cpu``, ``gpu`` or ``tpu``.
    """
    if option == "off":
        return ""
    chosen = "" if option == "auto" else option
    chosen = chosen or os.environ.get("JAX_COMPILATION_CACHE_DIR", "")
    folder = chosen or str(user_cache() / "compile")
    if not url_of(folder):
        folder = str(Path(folder).expanduser())
    return f"{folder.rstrip('/')}/cpu-{_instructions()}" if kind == "cpu" else folder


def use(option: str) -> None:
    """Switch JAX's persistent cache on or off.

    In a folder that several processes share each program is written by one of them.

    Args:
      option: ``auto``, ``off``, a folder, or a ``gs://`` URL, for which JAX needs gcsfs.

    Raises:
      ConfigError: the folder cannot be written, or JAX cannot open the URL; ``auto`` then keeps
        nothing.
    """
    folder = place(option, jax.default_backend())
    if folder and (problem := _problem(folder)):
        if option != "auto":
            raise ConfigError(f"run.compile_cache={option}: {problem}")
        folder = ""
    jax.config.update("jax_compilation_cache_dir", folder or None)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", LEAST_S)


@contextlib.contextmanager
def used(option: str) -> Iterator[None]:
    """Apply `use` while the body runs, and leave JAX's cache as it was before."""
    # JAX chooses its cache at the first compilation, and again only after a reset.
    from jax.experimental.compilation_cache.compilation_cache import reset_cache

    before = {name: jax.config.values[name] for name in _CHANGED}
    try:
        use(option)
        reset_cache()
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        reset_cache()


def _problem(folder: str) -> str:
    """Return why JAX cannot keep programs in a folder or URL, and the remedy; '' if it can."""
    if folder.startswith("gs://"):
        known = importlib.util.find_spec("gcsfs")
        return "" if known else "JAX needs gcsfs for gs://; pip install gcsfs, or use a folder"
    if url_of(folder):
        return "expected a folder or a gs:// URL; use a folder that the hosts share, or auto"
    with contextlib.suppress(OSError):
        Path(folder).mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return ""
    return f"{folder} cannot be written; use another folder or off"


def _instructions() -> str:
    """Return a short hash of the processor's instruction set."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = platform.processor()
    flags = next((line for line in text.splitlines() if line.startswith(("flags", "Features"))), "")
    return hashlib.sha256(f"{platform.machine()} {flags or text}".encode()).hexdigest()[:8]
