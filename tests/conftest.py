"""Eight fake CPU devices, so that meshes of 1, 2, 4 and 8 can be made in one process."""

import gc

import jax
import pytest

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)


@pytest.fixture(autouse=True, scope="module")
def _programs_are_dropped():
    """Compiled programs of one module are of no use to the next; they would fill the memory."""
    yield
    jax.clear_caches()
    gc.collect()
