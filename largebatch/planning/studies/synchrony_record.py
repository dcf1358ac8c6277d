"""Which policies the synchrony study compares, and the record of its runs."""

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from largebatch.planning.stragglers import Policy, arrival_cdf
from largebatch.planning.studies.arrivals import barrier, draws
from largebatch.planning.studies.spread import percent, spread
from largebatch.planning.studies.synchrony import MEDIAN_S, Asynchronous, Curve, Setup, Study

Policies = Mapping[str, Policy | Asynchronous]
TARGET = 0.8
"""Top-1 whose time is compared."""
_STEPS = 4000
"""Drawn for the distributions of arrivals and step times."""


def barriers(microbatches: int) -> Policies:
    """Wait for all, drop, backup workers and deadlines of 1, 1.1 and 1.25 median steps."""
    found: dict[str, Policy] = {"wait for all": Policy()}
    found |= {f"drop {b}": Policy(ignored=b) for b in (1, 2, 4)}
    found |= {f"{b} backup": Policy(ignored=b, backup=True) for b in (1, 2, 4)}
    for share in (1.0, 1.1, 1.25):
        deadline = Policy(deadline=share * MEDIAN_S, microbatches=microbatches)
        found[f"deadline {1000 * deadline.deadline:.0f} ms"] = deadline
    return found


def asynchronous(workers: Sequence[int]) -> Policies:
    """With momentum and without."""
    named = {0.9: "asynchronous {}", 0.0: "asynchronous {}, no momentum"}
    return {
        name.format(count): Asynchronous(count, momentum)
        for momentum, name in named.items()
        for count in workers
    }


def full() -> tuple[Setup, Policies]:
    """What is recorded."""
    setup = Setup()
    return setup, barriers(setup.microbatches) | asynchronous((1, 2, 4, 8, 16, 32))


def quick() -> tuple[Setup, Policies]:
    """Every kind of policy once, a few steps of each: whether it runs, not what it shows."""
    setup = Setup(workers=4, microbatches=2, steps=3, evaluations=3)
    chosen = barriers(setup.microbatches)
    names = ("wait for all", "drop 1", "1 backup", "deadline 25 ms")
    return setup, {name: chosen[name] for name in names} | asynchronous((1, 4))


def measure(
    study: Study, policies: Policies, seeds: Sequence[int], say: Callable[[str], None]
) -> dict[str, Any]:
    """Train every policy with every seed.

    Args:
      study: the data and programs.
      policies: by name.
      seeds: of parameters, data order and worker times.
      say: is told each result.

    Returns:
      The record, but for date, command and environment.
    """
    kept = []
    for name, policy in policies.items():
        curves = [study.run(policy, seed) for seed in seeds]
        kept.append({"name": name} | _entry(study.setup, policy, curves))
        say(f"{name:28s} top-1 {percent(kept[-1]['top1'])} %  {kept[-1]['seconds']['mean']:.2f} s")
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
    """When accuracy first crosses the target, as a straight line between two evaluations."""
    above = np.flatnonzero(curve.top1 >= TARGET)
    if not above.size:
        return None
    last = above[0]
    if last == 0:
        return float(curve.seconds[0])
    crossing = np.interp(
        TARGET, curve.top1[last - 1 : last + 1], curve.seconds[last - 1 : last + 1]
    )
    return float(crossing)


def arrivals(setup: Setup) -> dict[str, Any]:
    """How soon how many of a step's gradients are there: drawn, and in closed form."""
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
    """The distribution of a policy's step time, drawn."""
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


def table(kept: Mapping[str, Any]) -> str:
    """The results as a Markdown table."""
    lines = [
        "| policy | machines | top-1, % | simulated s | s to "
        f"{100 * kept['target']:.0f} % | images used, % | staleness τ |",
        "|---|---|---|---|---|---|---|",
    ]
    for each in kept["policies"]:
        reached, stale = each["to_target_s"], each["staleness"]
        used = each["images"]["mean"] / each["computed"]["mean"]
        cells = (
            each["name"],
            each["machines"],
            percent(each["top1"]),
            f"{each['seconds']['mean']:.2f}",
            f"{reached['mean']:.2f}"
            if reached
            else f"{each['reached_target']} of {len(kept['seeds'])} reach it",
            f"{100 * used:.1f}",
            f"{stale['mean']:.1f} (at most {stale['most']})" if stale else "0",
        )
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)
