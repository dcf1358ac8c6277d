"""Private interfaces of JAX and Orbax that the package uses; each test names its user.

A new version may drop any of them. Then change that one function, or the bound in pyproject.toml.
"""

import inspect

from orbax import checkpoint as ocp

from largebatch.fault_tolerance.peers import distributed_state


def test_jax_records_the_processes_it_has_joined():
    state = distributed_state()
    for name in ("client", "process_id", "num_processes", "coordinator_address"):
        assert hasattr(state, name), f"fault_tolerance/peers.py needs jax's global_state.{name}"


def test_orbax_writes_arrays_through_one_method():
    write = getattr(ocp.type_handlers.NumpyHandler, "_open_and_write", None)
    assert inspect.iscoroutinefunction(write), "checkpoint/arrays.py wraps _open_and_write"
