"""Studies of the network: the record's step, sizes of buckets, algorithms of the all-reduce.

Each returns plain numbers for a record; ``scripts/simulate.py`` runs and draws them.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from largebatch import parallel
from largebatch.models.tracing import shapes_of
from largebatch.parallel.buckets import best_cuts, buckets_at, cubic_cuts, overlap, plan
from largebatch.parallel.clusters import cluster_in, machine
from largebatch.parallel.network import ALGORITHMS, all_reduce_s
from largebatch.parallel.timeline import Compute, backward_seconds, replay
from largebatch.planning import calibration
from largebatch.planning.step_time import PARAMETERS, SIZE, Load, Parameters, Site

Numbers = dict[str, Any]
RECORD_DEVICES, RECORD_IMAGES = 2048, 40
GRADIENT_BYTES = 2 * PARAMETERS
_ALGORITHMS = tuple(name for name in ALGORITHMS if name != "torus")


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
