"""Eight fake CPU devices for every test, programs that compile quickly, and no process left behind.

Programs are compiled without optimizations: they compute the same sums, and compiling takes most of
the time of these tests. What is compiled is kept in ``.pytest_cache`` for all processes and later
runs; an entry's name contains a hash of the program, so a changed program is compiled again.
"""

import contextlib
import gc
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import jax
import jaxlib
import pytest

from tests import reaper
from tests.object_servers import moto, served  # noqa: F401 fixtures

QUICK = (
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_parallel_codegen_split_count=1",
    "--xla_cpu_use_fusion_emitters=false",
)
"""Options of XLA that shorten compilation; some versions lack some of them."""
PATIENT = "--xla_cpu_collective_call_terminate_timeout_seconds=600"
"""XLA ends a process whose devices wait 40 s for each other, as they do on a busy machine."""
KEPT_DAYS = 7

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)


def pytest_configure(config):
    """Set up the environment that workers and the processes of tests inherit."""
    if hasattr(config, "workerinput"):
        return
    os.environ[reaper.MARK] = uuid.uuid4().hex
    reaper.start()
    cache = config.cache.mkdir("jax")
    for entry in cache.rglob("*"):
        with contextlib.suppress(OSError):
            if entry.is_file() and time.time() - entry.stat().st_mtime > KEPT_DAYS * 86400:
                entry.unlink()
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(cache)
    # Whole trainings compute longer than they compile.
    quick = [] if config.option.markexpr == "accuracy" else _known(config.cache)
    flags = [os.environ.get("XLA_FLAGS", ""), PATIENT, *quick]
    os.environ["XLA_FLAGS"] = " ".join(flags).strip()


def pytest_collection_finish():
    """Spend less on garbage collection: JAX makes millions of objects when it traces a program."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


@pytest.hookimpl(wrapper=True)
def pytest_xdist_auto_num_workers():
    """One more than the cores, because many tests wait for other processes."""
    return (yield) + 1


def _known(cache):
    """Those of ``QUICK`` that this version of XLA takes: an unknown one ends the process."""
    key = f"xla_flags/{jaxlib.__version__}"
    known = cache.get(key, None)
    if known is None or not set(known) <= set(QUICK):
        known = [flag for flag in QUICK if _starts(flag)]
        cache.set(key, known)
    return known


def _starts(flag):
    command = [sys.executable, "-c", "import jax; jax.devices()"]
    environment = os.environ | {"XLA_FLAGS": flag, "JAX_PLATFORMS": "cpu"}
    return subprocess.run(command, env=environment, capture_output=True).returncode == 0


@pytest.fixture(autouse=True, scope="module")
def _compiled_programs():
    """Keep what each module compiles on disk, and not in memory."""
    jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.05)
    yield
    if _resident_gib() > 2:
        jax.clear_caches()
        gc.collect()


def _resident_gib():
    """Memory of this process; where it is not known, too much."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return float("inf")
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**30
