"""The policies of the synchrony study, and the record of its runs."""

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from largebatch.planning.arrivals import arrival_cdf
from largebatch.planning.stragglers import Policy, barrier, draws
from largebatch.planning.studies import percent, spread
from largebatch.planning.studies.synchrony import MEDIAN_S, Asynchronous, Curve, Setup, Study

Policies = Mapping[str, Policy | Asynchronous]
TARGET = 0.8
"""Top-1 whose time is recorded."""
_STEPS = 4000
"""Steps drawn for the distributions of arrivals and step times."""


def barriers(microbatches: int) -> Policies:
    """Return waiting for all, dropping, backup workers and deadlines of 1 to 1.25 median steps."""
    found: dict[str, Policy] = {"wait for all": Policy()}
    found |= {f"drop {b}": Policy(ignored=b) for b in (1, 2, 4)}
    found |= {f"{b} backup": Policy(ignored=b, backup=True) for b in (1, 2, 4)}
    for share in (1.0, 1.1, 1.25):
        deadline = Policy(deadline=share * MEDIAN_S, microbatches=microbatches)
        found[f"deadline {1000 * deadline.deadline:.0f} ms"] = deadline
    return found


def asynchronous(workers: Sequence[int]) -> Policies:
    """Return asynchronous training with these numbers of workers, with and without momentum."""
    named = {0.9: "asynchronous {}", 0.0: "asynchronous {}, no momentum"}
    return {
        name.format(count): Asynchronous(count, momentum)
        for momentum, name in named.items()
        for count in workers
    }


def full() -> tuple[Setup, Policies]:
    """Return the setup and the policies of the record."""
    setup = Setup()
    return setup, barriers(setup.microbatches) | asynchronous((1, 2, 4, 8, 16, 32))


def quick() -> tuple[Setup, Policies]:
    """Return every kind of policy once, with a few steps each, to see that it runs."""
    setup = Setup(workers=4, microbatches=2, steps=3, evaluations=3)
    chosen = barriers(setup.microbatches)
    names = ("wait for all", "drop 1", "1 backup", "deadline 25 ms")
    return setup, {name: chosen[name] for name in names} | asynchronous((1, 4))


def measure(
    study: Study, policies: Policies, seeds: Sequence[int], report: Callable[[str], None]
) -> dict[str, Any]:
    """Train every policy with every seed.

    Args:
      study: the data and programs.
      policies: by name.
      seeds: of parameters, data order and worker times.
      report: called with a line for each result.

    Returns:
      The record without date, command and environment.
    """
    kept = []
    for name, policy in policies.items():
        curves = [study.trained(policy, seed)[1] for seed in seeds]
        kept.append({"name": name} | _entry(study.setup, policy, curves))
        report(
            f"{name:28s} top-1 {percent(kept[-1]['top1'])} %  {kept[-1]['seconds']['mean']:.2f} s"
        )
    return {
        "setup": dataclasses.asdict(study.setup),
        "seeds": list(seeds),
        "target": TARGET,
        "policies": kept,
        "arrivals": arrivals(study.setup),
        "steps": {
            name: step_times(study.setup, policy)
            for name, policy in policies.items()
            if isinstance(policy, Policy)
        },
    }


def _entry(setup: Setup, policy: Policy | Asynchronous, curves: Sequence[Curve]) -> dict[str, Any]:
    waits = isinstance(policy, Policy)
    stale = np.concatenate([curve.staleness for curve in curves])
    reached = [_reached(curve) for curve in curves]
    everywhere = None not in reached
    top1 = np.stack([curve.top1 for curve in curves])
    return {
        "kind": "barrier" if waits else "asynchronous",
        "machines": policy.machines(setup.workers) if waits else policy.workers,
        "momentum": setup.momentum if waits else policy.momentum,
        "top1": spread([float(curve.top1[-1]) for curve in curves]),
        "loss": spread([float(curve.loss[-1]) for curve in curves]),
        "seconds": spread([float(curve.seconds[-1]) for curve in curves]),
        "images": spread([float(curve.images[-1]) for curve in curves]),
        "computed": spread([float(curve.computed[-1]) for curve in curves]),
        "updates": int(curves[0].updates[-1]),
        "to_target_s": spread(reached) if everywhere else None,
        "reached_target": sum(time is not None for time in reached),
        "staleness": None
        if waits
        else {
            "mean": float(stale.mean()),
            "deviation": float(stale.std()),
            "most": int(stale.max()),
        },
        "curve": {
            "updates": curves[0].updates.tolist(),
            "images": np.mean([curve.images for curve in curves], axis=0).tolist(),
            "seconds": np.mean([curve.seconds for curve in curves], axis=0).tolist(),
            "top1": top1.mean(0).tolist(),
            "top1_deviation": top1.std(0, ddof=1).tolist() if len(curves) > 1 else None,
        },
    }


def _reached(curve: Curve) -> float | None:
    """Return the time of reaching the target, linear between two evaluations; None if never."""
    above = np.flatnonzero(curve.top1 >= TARGET)
    if not above.size:
        return None
    around = slice(max(0, above[0] - 1), above[0] + 1)
    return float(np.interp(TARGET, curve.top1[around], curve.seconds[around]))


def arrivals(setup: Setup) -> dict[str, Any]:
    """Return the distribution of the arrivals of a step's gradients: drawn, and in closed form."""
    times = np.sort(draws(setup.times, setup.workers, _STEPS, seed=0), axis=1)
    ranks = sorted({1, *(setup.workers - b for b in (0, 1, 2, 4) if setup.workers > b)})
    seconds = np.linspace(0.75 * MEDIAN_S, 4 * MEDIAN_S, 80)
    return {
        "drawn_steps": _STEPS,
        "seconds": seconds.tolist(),
        "ranks": [
            {
                "rank": rank,
                "drawn": (times[:, rank - 1, None] <= seconds).mean(0).tolist(),
                "closed_form": arrival_cdf(setup.times, rank, setup.workers, seconds).tolist(),
                "mean_s": float(times[:, rank - 1].mean()),
            }
            for rank in ranks
        ],
    }


def step_times(setup: Setup, policy: Policy) -> dict[str, Any]:
    """Return the drawn distribution of a policy's step time."""
    times = draws(setup.times, policy.machines(setup.workers), _STEPS, seed=0)
    found = barrier(times, policy, setup.microbatches)
    edges = np.linspace(0.8 * MEDIAN_S, 5 * MEDIAN_S, 106)
    inside = np.clip(found.seconds, edges[0], edges[-1])
    counted = found.done.sum(1) / (setup.microbatches * setup.workers)
    return {
        "edges": edges.tolist(),
        "share": (np.histogram(inside, edges)[0] / _STEPS).tolist(),
        "mean_s": float(found.seconds.mean()),
        "median_s": statistics.median(found.seconds.tolist()),
        "p99_s": float(np.quantile(found.seconds, 0.99)),
        "counted": float(counted.mean()),
    }
