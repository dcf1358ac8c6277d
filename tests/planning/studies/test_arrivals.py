"""Who is counted and how stale: against the straggler model's own simulation, and by hand."""

import numpy as np
import pytest

from largebatch.errors import ConfigError
from largebatch.planning import stragglers
from largebatch.planning.stragglers import Policy
from largebatch.planning.studies.arrivals import asynchronous, barrier, draws
from largebatch.planning.studies.synchrony import MEDIAN_S, TIMES
from tests.planning.drawn import Drawn

W, K, STEPS, SEED = 6, 4, 200, 3
POLICIES = {
    "wait": Policy(),
    "drop": Policy(ignored=2),
    "backup": Policy(ignored=2, backup=True),
    "deadline": Policy(deadline=1.05 * MEDIAN_S, microbatches=K),
}


@pytest.mark.parametrize("name", POLICIES)
def test_steps_are_those_of_the_straggler_model(name):
    policy = POLICIES[name]
    seconds, used = stragglers.simulate(TIMES, W, policy, steps=STEPS, seed=SEED)
    found = barrier(draws(TIMES, policy.machines(W), STEPS, SEED), policy, K)
    np.testing.assert_array_equal(found.seconds, seconds)
    np.testing.assert_allclose(found.done.sum(1) / K, used, rtol=1e-12)
    np.testing.assert_allclose(found.ends[-1], seconds.sum(), rtol=1e-12)


def test_the_slowest_are_the_ones_that_are_left_out():
    times = np.array([[3.0, 1.0, 2.0, 9.0]])
    np.testing.assert_array_equal(barrier(times, Policy(ignored=2), 2).done, [[0, 2, 2, 0]])
    late = Policy(deadline=2.0, microbatches=2)
    np.testing.assert_array_equal(barrier(times, late, 2).done, [[1, 2, 2, 0]])
    never = Policy(deadline=10.0, microbatches=2)
    found = barrier(times, never, 2)
    np.testing.assert_array_equal(found.done, [[2, 2, 2, 2]])
    np.testing.assert_array_equal(found.seconds, [9.0])


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (Policy(deadline=0.1, microbatches=2), r"^step 1: no worker .* later deadline"),
        (Policy(deadline=2.0, microbatches=3), r"counts 3 microbatches of a worker's 2"),
        (Policy(ignored=2), r"2 of 2 workers cannot be ignored"),
    ],
)
def test_a_policy_that_cannot_be_run_is_refused(policy, message):
    with pytest.raises(ConfigError, match=message):
        barrier(np.array([[1.0, 2.0]]), policy, 2)


def test_arrivals_by_hand():
    """Workers of 2 s and 3 s, nearly: updates at 2, 3, 4, 6 (the first one first), 6, 8."""

    class Fixed:
        def draw(self, generator, shape):
            return np.broadcast_to(np.array([2.0, 3.0 + 1e-9]), shape)

    found = asynchronous(Fixed(), 2, 6, seed=0)
    np.testing.assert_allclose(found.ends, [2, 3, 4, 6, 6, 8], rtol=1e-8)
    np.testing.assert_array_equal(found.worker, [0, 1, 0, 0, 1, 0])
    np.testing.assert_array_equal(found.part, [0, 1, 2, 4, 3, 5])
    np.testing.assert_array_equal(found.staleness, [0, 1, 1, 0, 2, 1])


@pytest.mark.parametrize("machines", [1, 2, 16])
def test_staleness_is_about_the_other_workers(machines):
    updates = 800
    found = asynchronous(TIMES, machines, updates, SEED)
    assert (np.diff(found.ends) >= 0).all()
    assert len(set(found.part)) == updates
    assert set(found.part) <= set(range(updates + machines))
    # A worker's updates lie as far apart as there are workers, but for the first round.
    assert abs(found.staleness.mean() - (machines - 1)) < 0.05 * machines
    assert (found.staleness >= 0).all()
    if machines == 1:
        assert not found.staleness.any()


def test_arrivals_go_on_where_one_worker_is_much_slower():
    """Rows of draws are added until the slow one is past the end."""
    rare = Drawn((1.0, 1.000001, 400.0))
    few, many = (asynchronous(rare, 3, updates, seed=1) for updates in (50, 400))
    assert len(many.ends) == 400
    assert (np.diff(many.ends) >= 0).all()
    counts = np.bincount(many.worker, minlength=3)
    assert counts.sum() == 400
    assert len(few.ends) == 50
