"""The cuts against all cuts, the prediction against the recurrence, and what runs are given."""

import functools
import itertools
import math
import random
from types import SimpleNamespace

import pytest

from largebatch.config.sections import Comm
from largebatch.parallel.buckets import (
    FALLBACK_MIB,
    SLOWER,
    best_cuts,
    buckets_at,
    cubic_cuts,
    gradient_buckets,
    overlap,
    plan,
    plan_buckets,
)
from largebatch.parallel.clusters import HARDWARE, Cluster, cluster_of, reduces_in_turn
from largebatch.parallel.network import all_reduce_s
from largebatch.parallel.timeline import backward_seconds
from tests.planning.networks import network, parameters


@functools.cache
def elements():
    return [(path, math.prod(shape)) for path, shape in parameters()]


NETWORK = network(dtype="float16")
FACTS = {"images": 40, "image_shape": (224, 224, 3)}


def end_of(seconds, sizes, cuts, cost_s):
    """When the last transfer ends, by the rule itself."""
    network = 0.0
    for begin, end in itertools.pairwise([0, *cuts]):
        network = max(network, sum(seconds[:end])) + cost_s(sum(sizes[begin:end]))
    return network


def all_cuts(count):
    for inner in itertools.product([False, True], repeat=count - 1):
        yield (*(i for i, cut in enumerate(inner, start=1) if cut), count)


def test_the_cuts_are_as_good_as_the_best_of_all_and_no_more_than_needed():
    draw = random.Random(0)
    for _ in range(150):
        count = draw.randint(1, 9)
        # Whole numbers: ends are exact, and ties are frequent.
        seconds = [draw.choice([0, 1, 2, 5]) for _ in range(count)]
        sizes = [draw.choice([1, 1, 2, 8]) for _ in range(count)]
        latency, rate = draw.choice([0, 1, 3]), draw.choice([1, 2])

        def cost_s(nbytes, latency=latency, rate=rate):
            return latency + rate * nbytes

        ends = {cuts: end_of(seconds, sizes, cuts, cost_s) for cuts in all_cuts(count)}
        found = best_cuts(seconds, sizes, cost_s)
        assert ends[found] == min(ends.values())
        equal = [cuts for cuts, end in ends.items() if end == ends[found]]
        fewest = min(map(len, equal))
        assert len(found) == fewest
        # And the last bucket is the smallest.
        assert (0, *found)[-2] == max((0, *cuts)[-2] for cuts in equal if len(cuts) == fewest)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "itemsize"), [("v100", 2)])
def test_the_plan_is_near_the_best_on_every_network(name, itemsize):
    hardware = HARDWARE[name]
    cluster = Cluster(hardware, 2048)
    model = network(dtype="bfloat16")
    profile = backward_seconds(model, hardware, images=40, image_shape=(224, 224, 3))

    def planned(**options):
        return plan(
            elements(),
            profile,
            lambda n: options.get("factor", 1) * all_reduce_s(cluster, n),
            itemsize=itemsize,
            slower=options.get("slower", SLOWER),
        )

    def end(buckets, factor):
        return overlap(
            buckets, profile, lambda n: factor * all_reduce_s(cluster, n), itemsize=itemsize
        ).total_s

    best = {factor: end(planned(factor=factor, slower=(1.0,)), factor) for factor in SLOWER}

    def regret(buckets):
        return max(end(buckets, factor) / best[factor] for factor in SLOWER)

    found = regret(planned())
    assert 1 - 1e-9 <= found < 1.1  # the worst of all GPUs is 1.093, H100 with four bytes
    # Never clearly behind the others, of which each is far off somewhere.
    sizes = {"scheme": "bucket", "itemsize": itemsize}
    others = [plan_buckets(elements(), least_bytes=n * 2**20, **sizes) for n in (1, 4, 16)]
    others.append(buckets_at(elements(), cubic_cuts(len(elements()))))  # the record's
    assert [len(bucket.paths) for bucket in others[-1]] == [3, 21, 57, 80]
    assert found < min(map(regret, others)) + 0.01


def test_a_prediction_says_what_the_recurrence_does():
    draw = random.Random(2)
    for _ in range(50):
        count = draw.randint(1, 12)
        layers = [(str(i), draw.randint(1, 1000)) for i in range(count)]
        profile = {path: draw.random() for path, _ in reversed(layers)}
        cuts = tuple(sorted({*draw.sample(range(1, count + 1), draw.randint(0, count)), count}))
        buckets = buckets_at(layers, cuts)
        found = overlap(buckets, profile, lambda n: 1e-3 * n, itemsize=2)
        sizes = [2 * size for _, size in reversed(layers)]
        seconds = list(profile.values())
        expected = end_of(seconds, sizes, cuts, lambda n: 1e-3 * n)
        assert found.total_s == pytest.approx(expected, rel=1e-12)
        assert found.exposed_s == pytest.approx(expected - sum(seconds), abs=1e-12)
        assert found.compute_s == pytest.approx(sum(seconds), rel=1e-12)
        assert sum(transfer.nbytes for transfer in found.transfers) == sum(sizes)
        assert [b.size * 2 for b in buckets] == [t.nbytes for t in found.transfers]


@pytest.mark.parametrize("scheme", ["bucket", "leaf", "tree"])
def test_every_parameter_is_in_exactly_one_bucket(scheme):
    draw = random.Random(0)
    for _ in range(100):
        layers = [(str(i), draw.randint(1, 5000)) for i in range(draw.randint(1, 200))]
        least = draw.choice([1, 4096, 65536, 10**9])
        buckets = plan_buckets(layers, scheme=scheme, least_bytes=least, itemsize=4)
        joined = [pair for b in buckets for pair in zip(b.paths, b.sizes, strict=True)]
        assert joined == layers[::-1]
        if scheme == "bucket":
            assert all(4 * b.size >= least for b in buckets[:-1])
            # No bucket is larger than it must be: without its last parameter it would be too small.
            assert all(4 * (b.size - b.sizes[-1]) < least for b in buckets)
        assert len(buckets) == {"leaf": len(layers), "tree": 1}.get(scheme, len(buckets))


# ---- what a run gets


def devices(kind, count, per_process, per_slice=0, coords=None):
    """As JAX describes them."""
    return [
        SimpleNamespace(
            device_kind=kind,
            process_index=i // per_process,
            slice_index=i // per_slice if per_slice else None,
            coords=coords[i % len(coords)] if coords else None,
        )
        for i in range(count)
    ]


def grid(*shape):
    return list(itertools.product(*(range(side) for side in shape)))


@pytest.mark.parametrize(
    ("given", "expected", "in_turn"),
    [
        (devices("Tesla V100-SXM2-16GB", 2048, 4), ("v100", 512, 4), False),
        # One process for each GPU: hosts are told apart by their slices, or else as is usual.
        (devices("NVIDIA H200", 32, 1, per_slice=8), ("h200", 4, 8), False),
        (devices("NVIDIA H200", 32, 1), ("h200", 4, 8), False),
        (devices("TPU v5p", 256, 4, coords=grid(4, 8, 8)), ("tpu:v5p", 1, 256), False),
        (devices("TPU v5 lite", 1, 1, coords=grid(1, 1, 1)), ("tpu:v5e", 1, 1), False),
        (devices("TPU v5 lite", 256, 4, coords=grid(16, 16, 1)), ("tpu:v5e", 1, 256), True),
        (devices("TPU v5 lite", 512, 4, 256, grid(16, 16, 1)), ("tpu:v5e", 2, 256), False),
    ],
)
def test_the_cluster_is_read_from_the_devices(given, expected, in_turn):
    cluster = cluster_of(given)
    assert (cluster.hardware.name, cluster.nodes, cluster.node_devices) == expected
    if given[0].coords:
        assert math.prod(cluster.torus_shape) == cluster.node_devices
    assert reduces_in_turn(given) == in_turn


def test_a_cluster_that_cannot_be_told_is_none():
    assert cluster_of(devices("Radeon", 8, 8)) is None
    uneven = devices("NVIDIA H200", 8, 8) + devices("NVIDIA H200", 3, 8, per_slice=0)
    uneven[-1].process_index = 1
    assert cluster_of(uneven) is None


def paths(buckets):
    return [bucket.paths for bucket in buckets]


@pytest.mark.parametrize(
    ("given", "scheme", "count"),
    [
        # Joining costs, and gains nothing.
        (devices("cpu", 8, 8), "leaf", 161),
        # Nothing to plan for, or with.
        (devices("NVIDIA H200", 1, 1), "bucket", 19),
        # Their compilers overlap small all-reduces, whatever the line's rate.
        (devices("TPU v5 lite", 256, 4, coords=grid(16, 16, 1)), "bucket", 19),
    ],
)
def test_auto_is_a_fixed_size_where_nothing_can_be_planned(given, scheme, count):
    found = gradient_buckets(NETWORK, Comm(bucket_mib="auto"), given, **FACTS)
    fixed = gradient_buckets(
        NETWORK, Comm(allreduce=scheme, bucket_mib=FALLBACK_MIB), given, **FACTS
    )
    assert paths(found) == paths(fixed)
    assert len(fixed) == count


def test_auto_follows_the_network():
    v100s = devices("Tesla V100-SXM2-16GB", 2048, 4)
    comm = Comm(bucket_mib="auto", wire="bfloat16")
    found = gradient_buckets(NETWORK, comm, v100s, **FACTS)
    profile = backward_seconds(NETWORK, HARDWARE["v100"], **FACTS)
    cluster = Cluster(HARDWARE["v100"], 2048)
    assert paths(found) == paths(
        plan(elements(), profile, lambda n: all_reduce_s(cluster, n), itemsize=2)
    )
    first = frozenset(path for path, _ in elements() if path.startswith(("stem/", "stages/0/")))
    trained = gradient_buckets(NETWORK, comm, v100s, frozen=first, **FACTS)
    flat = [path for bucket in trained for path in bucket.paths]
    assert flat == [path for path, _ in reversed(elements()) if path not in first]
    assert len(trained) > 1
