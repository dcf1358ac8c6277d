"""Programs that are dispatched ahead of their results."""

import jax.numpy as jnp

from largebatch.parallel.transfer import IN_FLIGHT, computed


def test_results_come_in_order_and_few_programs_wait():
    dispatched = []

    def program(batch):
        dispatched.append(batch)
        return {"twice": 2 * jnp.asarray(batch)}

    for number, result in enumerate(computed(range(8), program)):
        assert result["twice"] == 2 * number
        assert len(dispatched) == min(number + IN_FLIGHT, 8)
    assert list(computed([], program)) == []
