"""Order statistics and policies: closed forms against drawn steps and against known integrals."""

import dataclasses
import math

import numpy as np
import pytest

from largebatch.errors import ConfigError
from largebatch.planning import simulation
from largebatch.planning.arrivals import (
    LogNormal,
    Tailed,
    arrival_cdf,
    expected_arrival,
    expected_slowest,
    fit_arrivals,
)
from largebatch.planning.stragglers import (
    Policy,
    asynchronous,
    barrier,
    draws,
    outcome,
)


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A distribution with corners: ascending times, linear between two of them."""

    seconds: tuple

    def cdf(self, seconds):
        return np.interp(seconds, self.seconds, np.linspace(0, 1, len(self.seconds)))

    def quantile(self, share):
        return np.interp(share, np.linspace(0, 1, len(self.seconds)), self.seconds)

    def draw(self, generator, shape):
        return self.quantile(generator.random(shape))


SURVEY = LogNormal(3.0, 0.1)
TAILED = Tailed(LogNormal(math.log(1.5), 0.1), 0.02, 1.5)
UNIFORM = Drawn((1.0, 2.0))
SKEWED = Drawn((1.0, 1.1, 1.2, 4.0))
STEPS = 4000
each_distribution = pytest.mark.parametrize("workers", [SURVEY, TAILED, UNIFORM, SKEWED])


def standard_error(values):
    return float(np.std(values) / math.sqrt(len(values)))


def sampled(workers, count, policy, seed=0, common=0.0):
    """Seconds and used gradients of drawn steps."""
    times = draws(workers, policy.machines(count), STEPS, seed, common=common)
    found = barrier(times, policy, policy.microbatches)
    return found.seconds, found.done.sum(1) / policy.microbatches


@each_distribution
def test_drawn_times_follow_the_distribution(workers):
    drawn = np.sort(workers.draw(np.random.default_rng(0), (STEPS,)))
    distance = np.abs(workers.cdf(drawn) - np.arange(1, STEPS + 1) / STEPS).max()
    assert distance < 1.63 / math.sqrt(STEPS)  # Kolmogorov-Smirnov at 1 %


@pytest.mark.parametrize(("rank", "count"), [(1, 1), (98, 100), (1000, 1000)])
def test_order_statistics_of_uniform_workers_are_known(rank, count):
    # Beta(k, N−k+1): mean k/(N+1).
    found = expected_arrival(UNIFORM, rank, count)
    assert found == pytest.approx(1 + rank / (count + 1), rel=1e-5)


@pytest.mark.parametrize(("count", "sigma"), [(2, 0.5), (2048, 0.02)])
def test_the_slowest_has_its_own_form(count, sigma):
    one = LogNormal(0.0, sigma)
    expected = expected_arrival(one, count, count) / expected_arrival(one, 1, 1)
    assert expected_slowest(sigma, count) == pytest.approx(expected, rel=1e-9)
    assert expected_slowest(0.0, count) == expected_slowest(sigma, 1) == 1


@pytest.mark.parametrize("common", [0.0, 0.1])
def test_arrivals_are_as_often_as_drawn(common):
    drawn, _ = sampled(TAILED, 98, Policy(ignored=2, backup=True), common=common)
    share = float(arrival_cdf(TAILED, 98, 100, 2.0, common=common))
    found = float(np.mean(drawn <= 2.0))
    assert found == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / STEPS))
    mean = expected_arrival(TAILED, 98, 100, common=common)
    assert drawn.mean() == pytest.approx(mean, abs=4 * standard_error(drawn))


def test_the_survey_figure():
    found = simulation.survey(counts=(10, 100))
    assert [row["mean"] for row in found["rows"]] == pytest.approx((23.47, 25.83), abs=0.01)
    for row in found["rows"]:
        error = 4 * row["drawn_deviation"] / math.sqrt(found["draws"])
        assert row["drawn_mean"] == pytest.approx(row["mean"], abs=error)
        # Blom's z is that of the mean of ln X, not of its median: they differ by 0.4 % here.
        assert row["drawn_median"] == pytest.approx(row["blom"], rel=0.01)


@pytest.mark.parametrize(
    "policy",
    [
        Policy(),
        Policy(ignored=3),
        Policy(ignored=3, backup=True),
        Policy(deadline=1.7),
        Policy(deadline=1.7, microbatches=8),
    ],
)
@pytest.mark.parametrize("workers", [TAILED, SKEWED])
def test_policies_are_as_good_as_drawn(workers, policy):
    exact = outcome(workers, 20, policy)
    drawn, used = sampled(workers, 20, policy, seed=1)
    assert drawn.mean() == pytest.approx(exact.step_s, abs=4 * standard_error(drawn) + 1e-4)
    assert used.mean() == pytest.approx(exact.gradients, abs=4 * standard_error(used) + 1e-9)
    assert exact.machines == (23 if policy.backup else 20)


def test_the_98_of_100_statement():
    body = LogNormal(math.log(1.5), 0.1)
    workers, common = fit_arrivals(body, 1.5, simulation.ARRIVALS, common=True)
    shares = [
        float(arrival_cdf(workers, a.rank, 100, a.seconds, common=common))
        for a in simulation.ARRIVALS
    ]
    assert shares == pytest.approx([0.80, 0.30], abs=1e-6)
    drawn, _ = sampled(workers, 100, Policy(), common=common)
    assert np.mean(drawn < 2.0) == pytest.approx(0.30, abs=4 * math.sqrt(0.21 / STEPS))
    # Independent workers: the share late by 2 s decides both, so the two cannot hold together.
    alone, none = fit_arrivals(body, 1.5, simulation.ARRIVALS, common=False)
    late = float(alone.cdf(np.asarray(2.0)))
    found = [float(arrival_cdf(alone, a.rank, 100, 2.0)) for a in simulation.ARRIVALS]
    assert none == 0
    assert found[1] == pytest.approx(late**100, rel=1e-9)
    assert found[0] > 0.82
    assert found[1] < 0.28
    # The best number of backups lies near the published 4, which costs less than 1 % of the best.
    rate = {
        b: outcome(workers, 100 - b, Policy(b, backup=True), common=common).efficiency
        for b in range(13)
    }
    best = max(rate, key=rate.get)
    assert 3 <= best <= 6
    assert 0.99 * rate[best] < rate[4] <= rate[best]
    assert rate[0] < 0.7 * rate[4]


def test_the_slowest_are_left_out():
    times = np.array([[3.0, 1.0, 2.0, 9.0]])
    np.testing.assert_array_equal(barrier(times, Policy(ignored=2), 2).done, [[0, 2, 2, 0]])
    late = Policy(deadline=2.0, microbatches=2)
    np.testing.assert_array_equal(barrier(times, late, 2).done, [[1, 2, 2, 0]])
    found = barrier(times, Policy(deadline=10.0, microbatches=2), 2)
    np.testing.assert_array_equal(found.done, [[2, 2, 2, 2]])
    np.testing.assert_array_equal(found.ends, [9.0])


def test_impossible_policies_are_refused():
    two = np.array([[1.0, 2.0]])
    for make in (
        lambda: Policy(ignored=-1),
        lambda: Policy(microbatches=0),
        lambda: Policy(deadline=0.0),
        lambda: Policy(ignored=1, deadline=1.0),
        lambda: Policy(ignored=4).used(4),
        lambda: barrier(two, Policy(deadline=0.1, microbatches=2), 2),
        lambda: barrier(two, Policy(deadline=2.0, microbatches=3), 2),
    ):
        with pytest.raises(ConfigError, match="policy"):
            make()


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
