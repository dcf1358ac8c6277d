"""The all-reduce over all devices, at the sizes of the recipe's gradient buckets."""

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
from largebatch.tools.doctor.lines import Line, ok, problem, skip
from largebatch.training.microbatch import model_of

NAME = "all-reduce"
_FLOAT32 = 4
_SMALL = 4096
_CALLS, _REPEATS = 3, 5
_SLOW = 2.5  # times the time at the rate of the link, which protocols do not quite reach


def bucket_bytes(plan: Plan) -> list[int]:
    """Return the bytes on the wire of each gradient bucket."""
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


def check(plan: Plan) -> Line:
    """Time all-reduces; each process must call this."""
    devices = jax.devices()
    if len(devices) == 1:
        return skip(NAME, "one device")
    sizes = each_process_does(lambda: bucket_bytes(plan))
    times = measure([_SMALL, min(sizes), max(sizes)])
    cluster = cluster_of(devices)
    known = cluster is not None and cluster.hardware.name != "cpu"
    return judge(len(devices), sizes, times, all_reduce_s(cluster, max(times)) if known else None)


def measure(sizes: list[int]) -> dict[int, float]:
    """Return the median seconds of an all-reduce of each number of bytes; each must call this."""
    mesh = parallel.make_mesh(jax.devices(), 1)
    program, found = flat_sum(mesh), {}
    for nbytes in sorted(set(sizes)):
        array = random_gradients(mesh, {"x": (max(1, nbytes // _FLOAT32),)})
        repeat = timed(program, array, _CALLS)
        found[nbytes] = statistics.median(repeat() for _ in range(_REPEATS))
    return found


def judge(
    devices: int, buckets: list[int], times: Mapping[int, float], expected_s: float | None
) -> Line:
    """Return the line.

    Args:
        devices: number of devices.
        buckets: bytes of each of the recipe's buckets.
        times: bytes → measured seconds.
        expected_s: seconds of the largest by the makers' figures; None: unknown.
    """
    largest, least = max(times), min(times)
    words = (
        f"{devices} devices: {1e6 * times[least]:,.0f} µs for {least / 1024:,.0f} KiB, "
        f"{1e3 * times[largest]:,.2f} ms for {largest / 2**20:,.1f} MiB "
        f"({bus_rate(devices, largest, times[largest]) / 1e9:,.2f} GB/s of bus), "
        f"the recipe has {len(buckets)} bucket(s), {sum(buckets) / 2**20:,.1f} MiB"
    )
    if expected_s is None:
        return ok(NAME, words)
    factor = times[largest] / expected_s
    words += f"; {factor:.1f} times the time at the rate of the link"
    if factor <= _SLOW:
        return ok(NAME, words)
    remedy = (
        "find the route of the data: NCCL_DEBUG=INFO, NCCL_SOCKET_IFNAME, NCCL_IB_HCA, GPU links "
        "above (docs/launch)"
    )
    return problem(NAME, words, remedy)


def bus_rate(devices: int, nbytes: int, seconds: float) -> float:
    """Return bytes/s over each link of a ring: 2(n − 1)/n of the array, as nccl-tests count."""
    return 2 * (devices - 1) / devices * nbytes / seconds
