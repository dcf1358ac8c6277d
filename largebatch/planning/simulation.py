"""The cost model's studies: published runs, other clusters, late workers, the network.

Each returns plain numbers for a record; ``scripts/simulate.py`` runs and draws them.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from largebatch import parallel
from largebatch.models.tracing import shapes_of
from largebatch.parallel.buckets import best_cuts, buckets_at, cubic_cuts, overlap, plan
from largebatch.parallel.clusters import HARDWARE, Cluster, cluster_in, machine
from largebatch.parallel.network import ALGORITHMS, all_reduce_s
from largebatch.parallel.timeline import Compute, backward_seconds, replay
from largebatch.planning import arrivals, calibration, stragglers
from largebatch.planning.arrivals import Arrival, LogNormal, Tailed
from largebatch.planning.prediction import Segment, Workload, predict
from largebatch.planning.step_time import PARAMETERS, SIZE, Load, Parameters, Site
from largebatch.planning.stragglers import Policy, barrier, draws

Numbers = dict[str, Any]
RECORD_DEVICES, RECORD_IMAGES = 2048, 40
GRADIENT_BYTES = 2 * PARAMETERS
_ALGORITHMS = tuple(name for name in ALGORITHMS if name != "torus")
RECORD_BATCH = 81_920
SISTER_S, RECORD_S = 70.41, 74.7
"""Fujitsu's clocks: MLPerf v0.6 at batch 86,016, and the paper at 81,920."""
ARRIVALS = (Arrival(98, 100, 2.0, 0.80), Arrival(100, 100, 2.0, 0.30))
"""Chen et al. 2016 by a survey article: 100 workers, Inception."""
_BODY = LogNormal(math.log(1.5), 0.1)
"""Times of these workers: σ of the survey; the median and an equal mean delay are assumed."""
_DRAWS = 20_000
_EPOCHS = 90
_EVALUATIONS = 23


def calibrate() -> tuple[Numbers, Parameters, Parameters]:
    """Fit, and hold out every row and every family.

    Returns:
      The numbers, the parameters, and those fitted without Fujitsu's row.
    """
    table = calibration.table()
    alone = calibration.held_out(table.rows, by="run")
    families = calibration.held_out(table.rows, by="family")
    of_family = {each.row.run: each.error for each in families}
    parameters = calibration.fit(table.rows)
    absolute = [abs(each.error) for each in alone]
    latest = max(table.rounds.values())
    boards = ("v100", "a100", "h100", "h200", "tpu:v3", "tpu:v4")
    numbers = {
        "rows": [
            {
                "run": each.row.run,
                "family": each.row.family,
                "devices": each.row.devices,
                "images": each.row.images,
                "published": each.row.images_per_s,
                "predicted": each.images_per_s,
                "error": each.error,
                "fitted_error": each.fitted_images_per_s / each.row.images_per_s - 1,
                "family_error": of_family[each.row.run],
            }
            for each in alone
        ],
        "median_error": float(np.median(absolute)),
        "worst_error": max(absolute),
        "error": calibration.quantile(alone, 0.9),
        "unseen_error": calibration.quantile(families, 0.9),
        "parameters": dataclasses.asdict(parameters),
        "half_batch": {
            name: Site(parameters, Cluster(HARDWARE[name], 1), latest).half_batch for name in boards
        },
    }
    others = calibration.fit([row for row in table.rows if row.cluster != "abci"])
    return numbers, parameters, others


def alternatives() -> list[Numbers]:
    """Predict Fujitsu's v0.6 run by models that would have been as good, fitted without it."""
    table = calibration.table()
    rows = [row for row in table.rows if row.cluster != "abci"]
    pipelined = [
        dataclasses.replace(row, algorithm="pipelined_ring") if row.algorithm == "ring" else row
        for row in rows
    ]
    looser = dataclasses.replace(table.priors["hidden_cost"], value=0.3, spread=0.5)
    fits = {
        "as chosen": calibration.fit(rows),
        "plain least squares": calibration.fit(rows, robust=False),
        "rings of v0.5 pipelined": calibration.fit(pipelined),
        "without the v0.5 row": calibration.fit([row for row in rows if row.round != "v0.5"]),
        "`hidden_cost` expected at 0.3, more loosely": calibration.fit(
            rows, priors={**table.priors, "hidden_cost": looser}
        ),
    }
    clocks = {name: fujitsu(parameters)["sister"]["clock_s"] for name, parameters in fits.items()}
    return [{"model": n, "clock_s": s, "error": s / SISTER_S - 1} for n, s in clocks.items()]


def fujitsu(others: Parameters) -> Numbers:
    """Predict both of Fujitsu's runs by parameters that were fitted without them."""

    def run(images: int, steps: int, on_clock: bool) -> Numbers:
        segment = Segment(steps, images, RECORD_DEVICES)
        found = predict(
            Workload((segment,), _EVALUATIONS, calibration.VALIDATION),
            "abci",
            parameters=others,
            round="v0.6",
            construction_on_clock=on_clock,
        )
        training = steps * found.step_s
        return {
            "images": images,
            "steps": steps,
            "step_s": found.step_s,
            "compute_s": found.compute_s,
            "exposed_s": found.exposed_s,
            "optimizer_s": found.optimizer_s,
            "straggler_s": found.straggler_s,
            "start_s": found.train_s - training,
            "steps_s": training,
            "evaluation_s": found.evaluation_s,
            "construction_s": found.clock_s - found.train_s - found.evaluation_s,
            "clock_s": found.clock_s,
        }

    sister = run(42, 15 * _EPOCHS, False)
    record = {str(epochs): run(RECORD_IMAGES, 16 * epochs, True) for epochs in (85, 86, _EPOCHS)}
    return {
        "published": {"sister": SISTER_S, "record": RECORD_S},
        "sister": sister,
        "sister_error": sister["clock_s"] / SISTER_S - 1,
        "record": record,
        "record_error": {n: each["clock_s"] / RECORD_S - 1 for n, each in record.items()},
        "parameters": dataclasses.asdict(others),
    }


def scaling(parameters: Parameters) -> Numbers:
    """Time to train at a fixed batch, and efficiency at a fixed share of it, against devices."""

    def clock(name: str, devices: int, images: int, steps: int) -> Numbers:
        segments = (Segment(steps, images, devices),)
        workload = Workload(segments, _EVALUATIONS, calibration.VALIDATION)
        found = predict(workload, name, parameters=parameters)
        return {
            "devices": devices,
            "images": images,
            "step_s": found.step_s,
            "clock_s": found.clock_s,
            "low_s": found.low_s,
            "high_s": found.high_s,
            "device_hours": found.device_hours,
        }

    strong, weak = {}, {}
    steps = math.ceil(_EPOCHS * calibration.IMAGES / RECORD_BATCH)
    for name in ("abci", "dgx-a100", "dgx-h100", "tpu-v4"):
        counts = [2**k for k in range(7, 13)]
        strong[name] = [clock(name, count, RECORD_BATCH // count, steps) for count in counts]
        first = machine(name).devices_per_node or 64  # the least TPU whose axes close to rings
        counts = [first * 2**k for k in range(13) if first * 2**k <= 4096]
        weak[name] = [clock(name, count, RECORD_IMAGES, 1) for count in counts]
        for row in weak[name]:
            row["efficiency"] = weak[name][0]["step_s"] / row["step_s"]
    return {"strong": strong, "weak": weak, "epochs": _EPOCHS, "batch": RECORD_BATCH}


def initialization() -> list[Numbers]:
    """Cost of sending the weights from one process, beyond drawing them on all from one seed."""
    found = []
    for devices in (4 * 2**k for k in range(0, 11, 2)):
        workload = Workload((Segment(1, RECORD_IMAGES, devices),), 0, 0)
        same, sent = (
            predict(workload, "abci", initialization=way).start_up_s
            for way in ("same_seed", "broadcast")
        )
        found.append({"devices": devices, "more_s": sent - same})
    return found


def survey(counts: Sequence[int] = (10, 100, 1000)) -> Numbers:
    """The survey article's figure: the slowest of log-normal workers, μ = 3, σ = 0.1."""
    workers = LogNormal(3.0, 0.1)
    edges = np.linspace(18.0, 36.0, 73)
    rows = []
    for count in counts:
        drawn = draws(workers, count, _DRAWS, seed=count).max(1)
        below = arrivals.arrival_cdf(workers, count, count, edges)
        rows.append(
            {
                "workers": count,
                "mean": arrivals.expected_arrival(workers, count, count),
                "blom": arrivals.blom_arrival(workers, count, count),
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
        "mean_worker": arrivals.expected_arrival(workers, 1, 1),
        "draws": _DRAWS,
        "edges": edges.tolist(),
        "rows": rows,
    }


def late_workers() -> Numbers:
    """Chen et al.'s two statements, and the best number of backups among 100 machines."""
    delay = math.exp(_BODY.mu)
    fits = {
        name: arrivals.fit_arrivals(_BODY, delay, ARRIVALS, common=shared)
        for name, shared in (("independent", False), ("shared", True))
    }
    workers, common = fits["shared"]
    alone = arrivals.expected_arrival(workers, 1, 1) * math.exp(common**2 / 2)
    rows = []
    for b in range(21):
        policy = Policy(ignored=b, backup=True)
        exact = stragglers.outcome(workers, 100 - b, policy, common=common)
        step = barrier(draws(workers, 100, _DRAWS // 2, seed=b, common=common), policy).seconds
        rows.append(
            {
                "ignored": b,
                "step_s": exact.step_s,
                "efficiency": exact.efficiency,
                "drawn_step_s": float(step.mean()),
                "drawn_efficiency": float((100 - b) * alone / (100 * step.mean())),
            }
        )
    best = max(rows, key=lambda row: row["efficiency"])
    near = [row["ignored"] for row in rows if row["efficiency"] >= 0.99 * best["efficiency"]]
    independent = Tailed(_BODY, workers.share, delay)
    policies = {
        "wait for all": Policy(),
        "drop the slowest 4": Policy(ignored=4),
        "4 backups": Policy(ignored=4, backup=True),
        "deadline 1.8 s, 8 microbatches": Policy(deadline=1.8, microbatches=8),
    }
    return {
        "median": delay,
        "sigma": _BODY.sigma,
        "delay": delay,
        "statements": [dataclasses.asdict(statement) for statement in ARRIVALS],
        "fits": {
            name: {
                "held_up": found.share,
                "common": shared,
                "shares": [
                    float(arrivals.arrival_cdf(found, a.rank, a.count, a.seconds, common=shared))
                    for a in ARRIVALS
                ],
            }
            for name, (found, shared) in fits.items()
        },
        "backups": {
            "machines": 100,
            "draws": _DRAWS // 2,
            "rows": rows,
            "best": best["ignored"],
            "within_1_percent": [near[0], near[-1]],
        },
        "policies": [
            {"policy": name, **vars(stragglers.outcome(independent, 96, policy))}
            for name, policy in policies.items()
        ],
    }


def _record(parameters: Parameters) -> Site:
    """Return where the record was trained."""
    cluster = cluster_in(machine("abci"), RECORD_DEVICES)
    return Site(parameters, cluster, calibration.table().rounds["v0.6"])


def timeline(parameters: Parameters) -> Numbers:
    """Computations and transfers of the record's step on its cluster, with their times."""
    program = _record(parameters).operations(Load(RECORD_IMAGES))
    spans, now = [], 0.0
    for operation in program:
        if isinstance(operation, Compute):
            end = now + operation.seconds
            spans.append({"name": operation.name, "begin_s": now, "end_s": end})
            now = end
    replayed = replay(program)
    return {
        "compute": spans,
        "transfers": [
            {"name": t.name, "nbytes": t.nbytes, "begin_s": t.begin_s, "end_s": t.end_s}
            for t in replayed.transfers
        ],
        "exposed_s": replayed.exposed_s,
        "total_s": replayed.total_s,
    }


def bucket_sizes(parameters: Parameters) -> Numbers:
    """Time exposed after backward, for least sizes of buckets and for planned groups."""
    site = _record(parameters)
    cluster, image_shape = site.linked, (SIZE, SIZE, 3)
    elements = [(path, math.prod(shape)) for path, shape in shapes_of(site.model)]
    profile = backward_seconds(
        site.model, cluster.hardware, images=RECORD_IMAGES, image_shape=image_shape
    )
    # The roofline gives the shape, the fit the length: two thirds of an image's time are backward.
    backward = site.images_s(Load(RECORD_IMAGES)) * 2 / 3
    factor = backward / sum(profile.values())
    profile = {path: seconds * factor for path, seconds in profile.items()}

    def cost(nbytes: int) -> float:
        return all_reduce_s(cluster, nbytes)

    def row(buckets: Sequence[parallel.Bucket], factor: float = 1.0) -> Numbers:
        found = overlap(buckets, profile, lambda n: factor * cost(n), itemsize=2)
        return {"buckets": len(buckets), "exposed_s": found.exposed_s}

    def equal(mib: float) -> Sequence[parallel.Bucket]:
        least = mib * 2**20
        return parallel.plan_buckets(elements, scheme="bucket", least_bytes=least, itemsize=2)

    optimum = best_cuts(list(profile.values()), [2 * n for _, n in reversed(elements)], cost)
    named = {
        "record's 3k³ tensors": buckets_at(elements, cubic_cuts(len(elements))),
        "optimum": buckets_at(elements, optimum),
        "planned": plan(elements, profile, cost, itemsize=2),
    }
    return {
        "backward_s": backward,
        "least_mib": [{"mib": mib, **row(equal(mib))} for mib in 2.0 ** np.arange(-3, 5.6, 0.125)],
        "named": {
            name: {**row(buckets), "half_rate_exposed_s": row(buckets, 2.0)["exposed_s"]}
            for name, buckets in named.items()
        },
    }


def algorithms() -> Numbers:
    """One all-reduce at the line's rate, against its bytes at 2,048 devices and against devices."""
    sizes = [float(10**k) for k in np.arange(3, 9.01, 0.25)]
    counts = [4 * 2**k for k in range(11)]
    clusters = {count: cluster_in(machine("abci"), count) for count in counts}
    return {
        "nbytes": sizes,
        "devices": counts,
        "at_2048": {
            name: [all_reduce_s(clusters[2048], size, name) for size in sizes]
            for name in _ALGORITHMS
        },
        "of_gradients": {
            name: [all_reduce_s(clusters[count], GRADIENT_BYTES, name) for count in counts]
            for name in _ALGORITHMS
        },
        "gradients": GRADIENT_BYTES,
    }


def all_studies() -> tuple[dict[str, Any], Parameters]:
    """Every study by name, and the parameters."""
    numbers, parameters, others = calibrate()
    found = {
        "calibration": numbers,
        "alternatives": alternatives(),
        "fujitsu": fujitsu(others),
        "survey": survey(),
        "arrivals": late_workers(),
        "scaling": scaling(parameters),
        "timeline": timeline(parameters),
        "bucket_sizes": bucket_sizes(parameters),
        "algorithms": algorithms(),
        "initialisation": initialization(),
    }
    return found, parameters
