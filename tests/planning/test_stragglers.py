"""Order statistics and policies: closed forms against drawn steps and against known integrals."""

import math

import numpy as np
import pytest

from largebatch.errors import ConfigError
from largebatch.planning import lateness, stragglers
from largebatch.planning.arrival_models import LogNormal, Tailed
from largebatch.planning.stragglers import (
    Policy,
    arrival_cdf,
    best_ignored,
    blom_arrival,
    expected_arrival,
    expected_slowest,
    fit_arrivals,
    mean_s,
    outcome,
    simulate,
)
from tests.planning.drawn import Drawn

SURVEY = LogNormal(3.0, 0.1)
TAILED = Tailed(LogNormal(math.log(1.5), 0.1), 0.02, 1.5)
UNIFORM = Drawn((1.0, 2.0))
SKEWED = Drawn((1.0, 1.1, 1.2, 4.0))
STEPS = 4000


def standard_error(values):
    return float(np.std(values) / math.sqrt(len(values)))


@pytest.mark.parametrize("workers", [SURVEY, TAILED, UNIFORM, SKEWED])
def test_quantiles_invert_the_distribution(workers):
    shares = np.linspace(0.001, 0.999, 41)
    assert workers.cdf(workers.quantile(shares)) == pytest.approx(shares, abs=1e-12)


@pytest.mark.parametrize("workers", [SURVEY, TAILED, UNIFORM, SKEWED])
def test_drawn_times_follow_the_distribution(workers):
    drawn = np.sort(workers.draw(np.random.default_rng(0), (STEPS,)))
    distance = np.abs(workers.cdf(drawn) - np.arange(1, STEPS + 1) / STEPS).max()
    assert distance < 1.63 / math.sqrt(STEPS)  # Kolmogorov-Smirnov at 1 %


def test_means_are_those_of_the_distributions():
    assert mean_s(SURVEY) == pytest.approx(math.exp(3.005), rel=1e-12)
    assert mean_s(SKEWED) == pytest.approx((1.05 + 1.15 + 2.6) / 3, rel=1e-4)
    body = math.exp(TAILED.body.mu)
    expected = 0.98 * body * math.exp(0.005) + 0.02 * (body + 1.5)
    assert mean_s(TAILED) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("rank", "count"), [(1, 1), (1, 5), (3, 5), (98, 100), (1000, 1000)])
def test_order_statistics_of_uniform_workers_are_known(rank, count):
    # Beta(k, N−k+1): mean k/(N+1).
    found = expected_arrival(UNIFORM, rank, count)
    assert found == pytest.approx(1 + rank / (count + 1), rel=1e-5)


@pytest.mark.parametrize("count", [1, 2, 10, 2048])
@pytest.mark.parametrize("sigma", [0.0, 0.02, 0.5])
def test_the_slowest_has_a_form_of_its_own(count, sigma):
    found = expected_slowest(sigma, count)
    if sigma == 0 or count == 1:
        assert found == 1
    else:
        one = LogNormal(0.0, sigma)
        assert found == pytest.approx(expected_arrival(one, count, count) / mean_s(one), rel=1e-9)


def test_arrivals_are_powers_at_the_ends():
    times = np.asarray([15.0, 20.0, 25.0])
    share = SURVEY.cdf(times)
    assert arrival_cdf(SURVEY, 7, 7, times) == pytest.approx(share**7, rel=1e-12)
    assert arrival_cdf(SURVEY, 1, 7, times) == pytest.approx(1 - (1 - share) ** 7, rel=1e-9)
    assert arrival_cdf(SURVEY, 1, 1, times, common=1e-9) == pytest.approx(share, rel=1e-6)


@pytest.mark.parametrize("common", [0.0, 0.1])
def test_arrivals_are_as_often_as_drawn(common):
    policy = Policy(ignored=2, backup=True)
    drawn, _ = simulate(TAILED, 98, policy, steps=STEPS, common=common)
    share = float(arrival_cdf(TAILED, 98, 100, 2.0, common=common))
    found = float(np.mean(drawn <= 2.0))
    assert found == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / STEPS))
    mean = expected_arrival(TAILED, 98, 100, common=common)
    assert drawn.mean() == pytest.approx(mean, abs=4 * standard_error(drawn))


def test_the_survey_figure():
    # μ = 3, σ = 0.1: the mean of the slowest grows with the logarithm, its spread narrows.
    rows = []
    for count in (10, 100, 1000):
        drawn, used = simulate(SURVEY, count, Policy(), steps=STEPS, seed=count)
        mean = expected_arrival(SURVEY, count, count)
        assert drawn.mean() == pytest.approx(mean, abs=4 * standard_error(drawn))
        assert (used == count).all()
        # Blom's z is that of the mean of ln X, not of its median: they differ by 0.4 % here.
        assert np.median(drawn) == pytest.approx(blom_arrival(SURVEY, count, count), rel=0.01)
        rows.append((mean, drawn.std()))
    means, deviations = zip(*rows, strict=True)
    assert means == pytest.approx((23.47, 25.83, 27.79), abs=0.01)
    assert deviations[0] > deviations[1] > deviations[2]
    # ln of the mean against ln N: about as steep in both decades.
    steps = np.diff(np.log(means))
    assert 0 < steps[1] < steps[0] < 1.5 * steps[1]


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
    drawn, used = simulate(workers, 20, policy, steps=STEPS, seed=1)
    assert drawn.mean() == pytest.approx(exact.step_s, abs=4 * standard_error(drawn) + 1e-4)
    assert used.mean() == pytest.approx(exact.gradients, abs=4 * standard_error(used) + 1e-9)
    assert exact.machines == (23 if policy.backup else 20)


def test_equal_workers_make_backups_mere_cost():
    equal = LogNormal(0.0, 1e-9)
    spare = outcome(equal, 96, Policy(ignored=4, backup=True))
    assert spare.efficiency == pytest.approx(96 / 100, rel=1e-6)
    assert outcome(equal, 96, Policy(ignored=4)).efficiency == pytest.approx(92 / 96, rel=1e-6)
    assert outcome(equal, 96, Policy()).efficiency == pytest.approx(1, rel=1e-6)
    assert best_ignored(equal, 100, range(10)) == 0


def test_a_late_deadline_waits_for_all_and_an_early_one_for_nobody():
    waiting = outcome(SKEWED, 8, Policy())
    late = outcome(SKEWED, 8, Policy(deadline=4.0, microbatches=4))
    assert late.step_s == pytest.approx(waiting.step_s, rel=1e-3)
    assert late.gradients == pytest.approx(8, rel=1e-9)
    early = outcome(SKEWED, 8, Policy(deadline=0.5))
    assert (early.step_s, early.gradients) == (pytest.approx(0.5), 0)


def test_the_98_of_100_statement():
    body = LogNormal(math.log(1.5), 0.1)
    workers, common = fit_arrivals(body, 1.5, lateness.ARRIVALS, common=True)
    shares = [
        float(arrival_cdf(workers, a.rank, a.count, a.seconds, common=common))
        for a in lateness.ARRIVALS
    ]
    assert shares == pytest.approx([0.80, 0.30], abs=1e-6)
    drawn, _ = simulate(workers, 100, Policy(), steps=STEPS, common=common)
    assert np.mean(drawn < 2.0) == pytest.approx(0.30, abs=4 * math.sqrt(0.21 / STEPS))
    # Independent workers: the share late by 2 s decides both, so the two cannot hold together.
    alone, none = fit_arrivals(body, 1.5, lateness.ARRIVALS, common=False)
    late = float(alone.cdf(np.asarray(2.0)))
    found = [float(arrival_cdf(alone, a.rank, 100, 2.0)) for a in lateness.ARRIVALS]
    assert none == 0
    assert found[1] == pytest.approx(late**100, rel=1e-9)
    assert found[0] > 0.82
    assert found[1] < 0.28
    # The best number of backups lies near the published 4, which costs less than 1 % of the best.
    best = best_ignored(workers, 100, range(13), common=common)
    assert 3 <= best <= 6
    rate = {
        b: outcome(workers, 100 - b, Policy(b, backup=True), common=common).efficiency
        for b in (0, 4, best)
    }
    assert 0.99 * rate[best] < rate[4] <= rate[best]
    assert rate[0] < 0.7 * rate[4]


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Policy(ignored=-1), "ignores -1 workers"),
        (lambda: Policy(ignored=1, deadline=1.0), "a deadline or ignores workers, not both"),
        (lambda: outcome(SURVEY, 4, Policy(ignored=4)), "4 of 4 workers cannot be ignored"),
        (lambda: outcome(SURVEY, 4, Policy(deadline=1.0), common=0.1), "no closed form beside"),
        (lambda: stragglers.best_ignored(SURVEY, 4, [4]), "of 4 machines 0 to 3 can be backups"),
    ],
)
def test_what_cannot_be_run_is_told(make, told):
    with pytest.raises(ConfigError, match=told):
        make()
