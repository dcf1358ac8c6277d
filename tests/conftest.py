"""Eight fake CPU devices, so that meshes of 1, 2, 4 and 8 can be made in one process."""

import gc
import os
import shutil
import tempfile

import jax
import pytest

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)

CACHE = "JAX_COMPILATION_CACHE_DIR"


def pytest_configure(config):
    """Processes that tests start share what they compile, with each other and with no other run.

    The tests' own process keeps nothing: few of its programs come twice.
    """
    if not hasattr(config, "workerinput"):
        config.stash[_place] = os.environ[CACHE] = tempfile.mkdtemp(prefix="largebatch-tests-")
    jax.config.update("jax_compilation_cache_dir", None)


def pytest_unconfigure(config):
    if _place in config.stash:
        shutil.rmtree(config.stash[_place], ignore_errors=True)


_place = pytest.StashKey[str]()


@pytest.fixture(autouse=True, scope="module")
def _programs_are_dropped():
    """Compiled programs of one module are of no use to the next; they would fill the memory."""
    yield
    jax.config.update("jax_compilation_cache_dir", None)
    jax.clear_caches()
    gc.collect()
