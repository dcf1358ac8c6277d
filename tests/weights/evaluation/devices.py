"""The device on which tests run scripts."""

import contextlib

import jax
import pytest


@contextlib.contextmanager
def one_quick_device():
    """One device, and programs compiled without most optimizations."""
    one = jax.devices()[:1]
    jax.config.update("jax_disable_most_optimizations", True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jax.devices", lambda: one)
        patch.setattr("jax.local_devices", lambda: one)
        yield
    jax.config.update("jax_disable_most_optimizations", False)
