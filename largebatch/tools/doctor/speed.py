"""Whether input and network keep up: decoding, the time of a step, all-reduces of its buckets."""

import contextlib
import dataclasses
import itertools
import math
import socket
import statistics
import time
from collections.abc import Callable

import jax
import numpy as np

from largebatch import data, parallel
from largebatch.config import Config, Plan
from largebatch.data.open import augment_of
from largebatch.errors import counted
from largebatch.parallel import compile_cache, processes
from largebatch.parallel.backward_times import shapes_of
from largebatch.parallel.bucket_planner import gradient_buckets
from largebatch.parallel.clusters import Cluster, cluster_of
from largebatch.parallel.network import all_reduce_s
from largebatch.parallel.timing import flat_sum, random_gradients, timed
from largebatch.planning import forecast
from largebatch.planning.prediction import is_calibrated
from largebatch.tools.doctor.job import Job, Pace
from largebatch.tools.doctor.lines import Problem, Skip, gathered
from largebatch.tracking import Console
from largebatch.training.dispatch import run_step
from largebatch.training.microbatch import model_of
from largebatch.training.run import reading_of
from largebatch.training.setup import build

_PIECE = 32  # images that a thread reads at a time, so that few are unfinished at the end
_MARGIN = 1.1  # decoding beyond the need, left to checkpoints, logs and neighbours
_SMALL = 4096  # bytes of the smallest all-reduce
_CALLS, _REPEATS = 3, 5
_SLOW = 2.5  # times the time at the rate of the link, which protocols do not quite reach


def step(job: Job) -> str:
    """Predict or measure the time of a step; each process must call this."""
    hosts = len(set(gathered(socket.gethostname())))
    job.common_splits()
    plan = job.common_plan()
    job.pace = (
        measured(job.config) if job.measure_step else predicted(plan, cluster_of(jax.devices()))
    )
    total = plan.first_stage.samples_per_step / job.pace.step_s
    words = f"{1e3 * job.pace.step_s:,.1f} ms, {total:,.0f} images/s in all ({job.pace.source})"
    if not forecast.why_no_forecast(plan):  # photographs
        words += f"; {forecast.input_need(total, hosts).text}"
    return words


def predicted(plan: Plan, cluster: Cluster | None) -> Pace:
    """Return the step time that the cost model predicts.

    Raises:
        Skip: it cannot, with the reason.
    """
    why = forecast.why_no_forecast(plan)
    if cluster is None or cluster.hardware.name == "cpu":
        why = "the cost model has no figures of these devices"
    if why or cluster is None:
        raise Skip(f"{why}; --measure_step measures two steps")
    model = model_of(plan)
    source = f"predicted for {cluster.devices} × {cluster.hardware.name}"
    if not is_calibrated(forecast.network_of(plan, model), cluster.hardware):
        source += f", scaled from ResNet-50 to {model.name} in {model.dtype}, not calibrated"
    return Pace(forecast.step_on(plan, model, cluster).total_s, source)


def measured(config: Config) -> Pace:
    """Return the time of the second of two steps on one microbatch, compiled as in a run.

    Each process must call this; if one fails, all do.
    """
    program = processes.each_process_does(lambda: _prepared(config))
    return processes.each_process_does(program)


def _prepared(config: Config) -> Callable[[], Pace]:
    """Do all that needs no other process; return the measurement."""
    compile_cache.use(config.run.compile_cache)  # the run that follows starts sooner
    made = build(config, Console(quiet=True))
    plan, stage = made.plan, made.first_stage
    with contextlib.closing(stage.train_microbatches(0, stage.plan.microbatch_samples)) as feed:
        again = itertools.repeat(next(feed))

    def measure() -> Pace:
        state = stage.programs.init(np.int32(config.run.seed))
        spent = []
        for number in (1, 2):
            began = time.perf_counter()
            state, metrics = run_step(stage.programs, state, again, plan.rates(number))
            jax.block_until_ready((state, metrics))
            spent.append(time.perf_counter() - began)
        return Pace(spent[-1], "measured, without input")

    return measure


def decoding(job: Job) -> str:
    """Read, decode and augment training images with the reader of a run, for `job.seconds`."""
    (train, _), plan, config = job.common_splits(), job.common_plan(), job.config
    options, reading = config.data, reading_of(config)
    chunk = _PIECE * max(1, reading.threads) * max(1, reading.processes)
    piece_bytes = min(reading.piece_bytes, _PIECE * math.prod(plan.facts.image_shape))
    feed = data.train_microbatches(
        train,
        data.Order(
            config.run.seed, len(train), shuffle=options.shuffle, epoch_samples=plan.epoch_samples
        ),
        augment_of(config, train.mean),
        start=0,
        stop=chunk * 10**6,
        microbatch=chunk,
        rows=(0, chunk),
        reading=dataclasses.replace(reading, piece_bytes=piece_bytes),
        crops=options.crops,
        centre=options.train_crop == "centre",
        unreadable=data.Unreadable("train", len(train), options.max_unreadable),
    )
    images, began, spent = 0, time.perf_counter(), 0.0
    with contextlib.closing(feed):
        for _ in feed:
            images, spent = images + chunk, time.perf_counter() - began
            if spent >= job.seconds:
                break
    job.images_per_s = images / spent
    return (
        f"{job.images_per_s:,.0f} images/s of this process "
        f"({images:,} in {spent:.1f} s, {data.cores()} cores)"
    )


def input_keeps_up(job: Job) -> str:
    """Compare decoding with what each process must deliver so that its devices never wait."""
    plan, pace, rate = job.known_plan(), job.pace, job.images_per_s
    if pace is None or rate is None:
        raise Skip("the time of a step or of decoding is unknown")
    facts = plan.facts
    device = plan.first_stage.samples_per_step / pace.step_s / facts.devices
    needed = device * (facts.devices // facts.processes)
    factor = rate / needed
    found = f"{factor:.2f} times the {needed:,.0f} images/s that a process needs"
    if factor < 1:
        remedy = f"{input_advice(needed, rate, data.cores())}, or prepare smaller or decoded images"
        raise Problem((found, f"{remedy} (docs/data.md)"))
    if factor < _MARGIN:
        raise Problem((f"{found}, which leaves no margin", "see docs/data.md, on speed"))
    return found


def input_advice(needed: float, given: float, cores: int) -> str:
    """Return whether a host's input keeps up, or the number of cores that would.

    Args:
        needed: images/s that the devices of the host train.
        given: images/s that its input delivers; in proportion to the cores.
        cores: number of cores that deliver them.
    """
    share = given / needed
    if share >= 1:
        return f"the input keeps up, {share:.2f} times what is needed"
    return (
        f"the input gives {share:.2f} of what is needed: use {math.ceil(cores / share):,} cores "
        f"per host instead of {cores}"
    )


def all_reduce(job: Job) -> str:
    """Time all-reduces of the recipe's gradient buckets; each process must call this."""
    plan, devices = job.common_plan(), jax.devices()
    count = len(devices)
    if count == 1:
        raise Skip("one device")
    sizes = processes.each_process_does(lambda: bucket_bytes(plan))
    times = {size: reduce_s(size) for size in sorted({_SMALL, min(sizes), max(sizes)})}
    largest, least = max(times), min(times)
    # Bytes over each link of a ring, as nccl-tests count them.
    bus_rate = 2 * (count - 1) / count * largest / times[largest]
    words = (
        f"{count} devices: {1e6 * times[least]:,.0f} µs for {least / 1024:,.0f} KiB, "
        f"{1e3 * times[largest]:,.2f} ms for {largest / 2**20:,.1f} MiB "
        f"({bus_rate / 1e9:,.2f} GB/s of bus), "
        f"the recipe has {counted(len(sizes), 'bucket')}, {sum(sizes) / 2**20:,.1f} MiB"
    )
    cluster = cluster_of(devices)
    if cluster is None or cluster.hardware.name == "cpu":
        return words
    factor = times[largest] / all_reduce_s(cluster, largest)
    words += f"; {factor:.1f} times the time at the rate of the link"
    if factor > _SLOW:
        remedy = (
            "find the route of the data: NCCL_DEBUG=INFO, NCCL_SOCKET_IFNAME, NCCL_IB_HCA, GPU "
            "links above (docs/launch)"
        )
        raise Problem((words, remedy))
    return words


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


def reduce_s(nbytes: int) -> float:
    """Return the median seconds of an all-reduce of float32 values; each process must call this."""
    mesh = parallel.make_mesh(jax.devices(), 1)
    array = random_gradients(mesh, {"x": (max(1, nbytes // np.dtype(np.float32).itemsize),)})
    repeat = timed(flat_sum(mesh), array, _CALLS)
    return statistics.median(repeat() for _ in range(_REPEATS))
