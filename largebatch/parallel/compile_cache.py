"""The persistent cache of compiled programs."""

import contextlib
import glob
import hashlib
import os
import platform
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax

from largebatch.errors import ConfigError
from largebatch.files import user_cache
from largebatch.object_store import Bucket, StorageError
from largebatch.parallel import compile_store
from largebatch.store_urls import url_of
from largebatch.tracking import Console

_UNREADABLE = re.compile(r"Error reading persistent compilation cache entry for '([^']+)'")
_CHANGED = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_enable_xla_caches",
    "jax_persistent_cache_min_compile_time_secs",
)
"""What `use` changes of JAX's configuration."""
LEAST_S = 0.2
"""Seconds of compilation from which a program is kept."""
_REQUEST_S, _RETRY_S = 20, 15
"""Limits for an object store: without an answer, compiling is better than waiting."""


def place(option: str, kind: str) -> Path | None:
    """Return the local folder of ``run.compile_cache``; that of ``auto`` for an object store.

    A program for CPUs uses the instructions of the machine that compiled it. The cache therefore
    has a folder for each kind of CPU; other devices are part of a program's key.

    Args:
      option: ``auto``, ``off``, a folder or a URL of an object store.
      kind: platform of the devices: ``cpu``, ``gpu`` or ``tpu``.

    Returns:
      The folder, which may not exist yet; None for ``off``.
    """
    if option == "off":
        return None
    chosen = "" if option == "auto" or url_of(option) else option
    chosen = chosen or os.environ.get("JAX_COMPILATION_CACHE_DIR", "")
    folder = Path(chosen).expanduser() if chosen else user_cache() / "compile"
    return folder / f"cpu-{_instructions()}" if kind == "cpu" else folder


def use(option: str) -> Path | None:
    """Switch JAX's persistent cache on or off.

    With an object store, missing entries are downloaded when they are needed, and new ones are
    uploaded in a thread. An error of the store is a warning.

    A damaged entry of a process that was killed while it wrote is compiled and written again. In a
    folder that several processes share each program is written by one of them.

    Args:
      option: ``auto``, ``off``, a folder or a URL of an object store.

    Returns:
      The local folder; None if the cache is off.

    Raises:
      ConfigError: the folder cannot be written, or the URL is malformed.
    """
    folder = place(option, jax.default_backend())
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            usable = os.access(folder, os.W_OK)
        except OSError:
            usable = False
        if not usable and option != "auto":
            raise ConfigError(
                f"run.compile_cache={option}: {folder} cannot be written; use another folder or off"
            )
        folder = folder if usable else None
    programs = None if folder is None else _stored(option, folder)
    if folder is not None:
        # In place of an earlier call's, which was for its own folder.
        show = getattr(warnings.showwarning, "shows_others", warnings.showwarning)
        warnings.showwarning = _removing(folder, programs, show)
    kept = compile_store.register(programs) if programs else folder and str(folder)
    jax.config.update("jax_compilation_cache_dir", kept)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", LEAST_S)
    return folder


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


def described() -> str:
    """Return where programs are kept, for display; '' if nowhere."""
    cache = jax.config.values["jax_compilation_cache_dir"]
    if not cache or (url := compile_store.url_behind(cache)):
        return url if cache else ""
    kept, home = Path(cache), Path.home()
    return f"~/{kept.relative_to(home)}" if kept.is_relative_to(home) else str(kept)


def _stored(option: str, folder: Path) -> compile_store.StoredPrograms | None:
    """Open the object store of ``run.compile_cache``; None for a folder."""
    url = url_of(option)
    if not url:
        return None
    warn = Console(quiet=jax.process_index() != 0).warn
    # Programs for CPUs are in a folder of their own.
    place = f"{url.rstrip('/')}/{folder.name}" if jax.default_backend() == "cpu" else url
    try:
        bucket = Bucket(place, request_s=_REQUEST_S, retry_s=_RETRY_S)
        return compile_store.StoredPrograms(bucket, folder, warn)
    except StorageError as error:
        warn(f"run.compile_cache: {error}; programs are kept in {folder} only")
        return None


def _removing(
    folder: Path, programs: compile_store.StoredPrograms | None, show: Callable[..., None]
) -> Callable[..., None]:
    """Return a ``warnings.showwarning`` that removes the entries JAX warns that it cannot read.

    JAX compiles the program again but never replaces a file, so it would warn at every start. It
    names the program and not the file: all kept programs of that name are removed.
    """

    def shown(message: Warning | str, *others: Any, **named: Any) -> None:
        found = _UNREADABLE.match(str(message))
        if found is None:
            show(message, *others, **named)
            return
        for entry in folder.glob(f"{glob.escape(found[1])}-*"):
            if programs:
                programs.remove(entry.name)
            else:
                entry.unlink(missing_ok=True)

    shown.shows_others = show
    return shown


def _instructions() -> str:
    """Return a short hash of the processor's instruction set."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = platform.processor()
    flags = next((line for line in text.splitlines() if line.startswith(("flags", "Features"))), "")
    return hashlib.sha256(f"{platform.machine()} {flags or text}".encode()).hexdigest()[:8]
