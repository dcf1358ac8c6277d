"""Studies of stragglers: published statements on late workers, and what policies make of them.

Each returns plain numbers, for a record; ``scripts/simulate.py`` runs and draws them.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from largebatch.planning import stragglers
from largebatch.planning.arrival_models import LogNormal, Tailed
from largebatch.planning.stragglers import Arrival, Policy

Numbers = dict[str, Any]
DRAWS = 20_000
# Chen et al. 2016 by a survey article: 100 workers, Inception.
ARRIVALS = (Arrival(98, 100, 2.0, 0.80), Arrival(100, 100, 2.0, 0.30))
_BODY = LogNormal(math.log(1.5), 0.1)
"""Of the workers behind these: the survey's σ; its median, and as long a mean delay, assumed."""


def survey(counts: Sequence[int] = (10, 100, 1000)) -> Numbers:
    """The survey article's figure: the slowest of log-normal workers, μ = 3, σ = 0.1."""
    workers = LogNormal(3.0, 0.1)
    edges = np.linspace(18.0, 36.0, 73)
    rows = []
    for count in counts:
        drawn, _ = stragglers.simulate(workers, count, Policy(), steps=DRAWS, seed=count)
        below = stragglers.arrival_cdf(workers, count, count, edges)
        rows.append(
            {
                "workers": count,
                "mean": stragglers.expected_arrival(workers, count, count),
                "blom": stragglers.blom_arrival(workers, count, count),
                "drawn_mean": float(drawn.mean()),
                "drawn_median": float(np.median(drawn)),
                "drawn_deviation": float(drawn.std()),
                "density": (np.diff(below) / np.diff(edges)).tolist(),
                "drawn_density": np.histogram(drawn, edges, density=True)[0].tolist(),
            }
        )
    return {
        "mu": 3.0,
        "sigma": 0.1,
        "mean_worker": stragglers.mean_s(workers),
        "draws": DRAWS,
        "edges": edges.tolist(),
        "rows": rows,
    }


def arrivals() -> Numbers:
    """Chen et al.'s two statements, and how many of 100 machines should be backups."""
    found: Numbers = {
        "median": math.exp(_BODY.mu),
        "sigma": _BODY.sigma,
        "delay": math.exp(_BODY.mu),
        "statements": [
            {"rank": a.rank, "count": a.count, "seconds": a.seconds, "share": a.share}
            for a in ARRIVALS
        ],
        "fits": {},
    }
    for name, shared in (("independent", False), ("shared", True)):
        workers, common = stragglers.fit_arrivals(
            _BODY, math.exp(_BODY.mu), ARRIVALS, common=shared
        )
        found["fits"][name] = {
            "held_up": workers.share,
            "common": common,
            "shares": [
                float(stragglers.arrival_cdf(workers, a.rank, a.count, a.seconds, common=common))
                for a in ARRIVALS
            ],
        }
    # `workers` and `common` are now those of the better fit.
    candidates = range(21)
    rows = []
    for b in candidates:
        policy = Policy(ignored=b, backup=True)
        exact = stragglers.outcome(workers, 100 - b, policy, common=common)
        drawn, used = stragglers.simulate(
            workers, 100 - b, policy, steps=DRAWS // 2, seed=b, common=common
        )
        alone = stragglers.mean_s(workers) * math.exp(common**2 / 2)
        rows.append(
            {
                "ignored": b,
                "step_s": exact.step_s,
                "efficiency": exact.efficiency,
                "drawn_step_s": float(drawn.mean()),
                "drawn_efficiency": float(used.mean() * alone / (100 * drawn.mean())),
            }
        )
    best = max(row["efficiency"] for row in rows)
    near = [row["ignored"] for row in rows if row["efficiency"] >= 0.99 * best]
    found["backups"] = {
        "machines": 100,
        "draws": DRAWS // 2,
        "rows": rows,
        "best": stragglers.best_ignored(workers, 100, candidates, common=common),
        "within_1_percent": [near[0], near[-1]],
    }
    independent = Tailed(_BODY, workers.share, math.exp(_BODY.mu))
    found["policies"] = [
        {"policy": name, **vars(stragglers.outcome(independent, 96, policy))}
        for name, policy in (
            ("wait for all", Policy()),
            ("drop the slowest 4", Policy(ignored=4)),
            ("4 backups", Policy(ignored=4, backup=True)),
            ("deadline 1.8 s, 8 microbatches", Policy(deadline=1.8, microbatches=8)),
        )
    ]
    return found
