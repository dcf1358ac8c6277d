"""The all-reduce by itself, over the devices of the job and for the recipe's own buckets."""

import statistics
from collections.abc import Mapping

import jax

from largebatch import parallel
from largebatch.config import Plan
from largebatch.parallel.backward_times import shapes_of
from largebatch.parallel.bucket_planner import gradient_buckets
from largebatch.parallel.clusters import cluster_of
from largebatch.parallel.network import all_reduce_s
from largebatch.parallel.processes import each_process_does
from largebatch.parallel.timing import flat_sum, random_gradients, timed
from largebatch.tools.doctor.lines import Line, judged, ok, skip
from largebatch.training.microbatch import model_of

NAME = "all-reduce"
_FLOAT32 = 4
_SMALL = 4096
_CALLS, _REPEATS = 3, 5
_SLOW = 2.5  # times the rate of the line, which protocols never quite reach


def bucket_bytes(plan: Plan) -> list[int]:
    """Bytes on the wire of each bucket of gradients."""
    model = model_of(plan)
    buckets = gradient_buckets(
        shapes_of(model, plan.facts.image_shape),
        plan.config.comm,
        jax.devices(),
        images=plan.first_stage.local_images,
        image_shape=plan.facts.image_shape,
        dtype=plan.config.model.dtype,
        model=model,
    )
    return [bucket.size * plan.config.comm.wire_bytes for bucket in buckets]


def check(plan: Plan) -> list[Line]:
    """The line; each process must call it."""
    devices = jax.devices()
    if len(devices) == 1:
        return [skip(NAME, "one device reduces with nobody")]
    sizes = each_process_does(lambda: bucket_bytes(plan))
    times = measure([_SMALL, min(sizes), max(sizes)])
    cluster = cluster_of(devices)
    expected = {}
    if cluster is not None and cluster.hardware.name != "cpu":
        expected = {nbytes: all_reduce_s(cluster, nbytes) for nbytes in times}
    return [judge(len(devices), sizes, times, expected)]


def measure(sizes: list[int]) -> dict[int, float]:
    """Seconds of an all-reduce of so many bytes over all devices, median; each must call it."""
    mesh = parallel.make_mesh(jax.devices(), 1)
    program, found = flat_sum(mesh), {}
    for nbytes in sorted(set(sizes)):
        array = random_gradients(mesh, {"x": (max(1, nbytes // _FLOAT32),)})
        repeat = timed(program, array, _CALLS)
        found[nbytes] = statistics.median(repeat() for _ in range(_REPEATS))
    return found


def judge(
    devices: int,
    buckets: list[int],
    times: Mapping[int, float],
    expected: Mapping[int, float],
) -> Line:
    """The line.

    Args:
        devices: That reduce.
        buckets: Bytes of the recipe's.
        times: Bytes to seconds, measured.
        expected: Bytes to seconds by the makers' figures; empty: unknown.
    """
    largest, least = max(times), min(times)
    words = (
        f"{devices} devices: {1e6 * times[least]:,.0f} µs for {least / 1024:,.0f} KiB, "
        f"{1e3 * times[largest]:,.2f} ms for {largest / 2**20:,.1f} MiB "
        f"({bus_rate(devices, largest, times[largest]) / 1e9:,.2f} GB/s of bus), "
        f"the recipe has {len(buckets)} bucket(s), {sum(buckets) / 2**20:,.1f} MiB"
    )
    if not expected:
        return ok(NAME, words)
    factor = times[largest] / expected[largest]
    words += f"; {factor:.1f} times the time of the line"
    problems = []
    if factor > _SLOW:
        problems.append(
            (
                words,
                "see which way the bytes take: NCCL_DEBUG=INFO, NCCL_SOCKET_IFNAME, NCCL_IB_HCA, "
                "GPU links above (docs/launch)",
            )
        )
    return judged(NAME, words, problems)


def bus_rate(devices: int, nbytes: int, seconds: float) -> float:
    """Bytes/s that a ring moves over each link: 2(n − 1)/n of the array, as nccl-tests count."""
    return 2 * (devices - 1) / devices * nbytes / seconds
