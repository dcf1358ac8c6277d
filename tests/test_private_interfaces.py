"""Private interfaces of JAX that the package uses; each test names its user.

A new version may drop any of them. Then change that one function, or the bound in pyproject.toml.
"""

from largebatch.fault_tolerance.peers import distributed_state


def test_jax_records_the_processes_it_has_joined():
    state = distributed_state()
    for name in ("client", "process_id", "num_processes", "coordinator_address"):
        assert hasattr(state, name), f"fault_tolerance/peers.py needs jax's global_state.{name}"
