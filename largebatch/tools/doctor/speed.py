"""Whether the input keeps up with the devices: measured decoding against the time of a step."""

import contextlib
import dataclasses
import itertools
import math
import time
from collections.abc import Callable

import jax
import numpy as np

from largebatch import data
from largebatch.config import Config, Plan
from largebatch.parallel import compile_cache, processes
from largebatch.parallel.clusters import Cluster, cluster_of
from largebatch.planning import forecast
from largebatch.planning.prediction import is_calibrated
from largebatch.tools.doctor.lines import Line, ok, problem, skip
from largebatch.tools.doctor.need import Need, advice, need_of_devices
from largebatch.tracking import Console
from largebatch.training.microbatch import model_of
from largebatch.training.programs import run_step
from largebatch.training.setup import build, reading_of

DECODING, INPUT, STEP = "decoding", "input", "step time"
SECONDS = 3.0
"""Default time to measure decoding for."""
_PIECE = 32  # images that a thread reads at a time, so that few are unfinished at the end
_MARGIN = 1.1  # decoding beyond the need, left to checkpoints, logs and neighbours


@dataclasses.dataclass(frozen=True)
class Pace:
    """The time of a step, and its source."""

    step_s: float
    source: str


def pace(config: Config, plan: Plan, *, measure: bool) -> Pace | str:
    """Return the time of a step, predicted or measured, or why it is unknown.

    Each process must call this.
    """
    return measured(config) if measure else predicted(plan, cluster_of(jax.devices()))


def predicted(plan: Plan, cluster: Cluster | None) -> Pace | str:
    """Return the step time that the cost model predicts, or why it cannot."""
    if cluster is None or cluster.hardware.name == "cpu":
        return "the cost model has no figures of these devices"
    if why := forecast.why_no_forecast(plan):
        return why
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
        for step in (1, 2):
            began = time.perf_counter()
            state, metrics = run_step(stage.programs, state, again, plan.rates(step))
            jax.block_until_ready((state, metrics))
            spent.append(time.perf_counter() - began)
        return Pace(spent[-1], "measured, without input")

    return measure


def decode_rate(
    config: Config,
    train: data.Source,
    plan: Plan,
    *,
    seconds: float = SECONDS,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[int, float]:
    """Read, decode and augment training images with the reader of a run.

    Args:
        config: configuration of the run.
        train: the training split.
        plan: for the order of the examples.
        seconds: time to measure for; at least one chunk is read.
        clock: seconds.

    Returns:
        Number of images, and seconds from the start to the last image.
    """
    options, reading = config.data, reading_of(config)
    chunk = _PIECE * max(1, reading.threads) * max(1, reading.processes)
    piece_bytes = min(reading.piece_bytes, _PIECE * math.prod(plan.facts.image_shape))
    feed = data.train_microbatches(
        train,
        data.Order(
            config.run.seed, len(train), shuffle=options.shuffle, epoch_samples=plan.epoch_samples
        ),
        data.Augment(shift=options.shift, flip=options.flip),
        start=0,
        stop=chunk * 10**6,
        microbatch=chunk,
        rows=(0, chunk),
        reading=dataclasses.replace(reading, piece_bytes=piece_bytes),
        crops=options.crops,
        centre=options.train_crop == "centre",
        unreadable=data.Unreadable("train", len(train), options.max_unreadable),
    )
    images, began = 0, clock()
    with contextlib.closing(feed):
        for _ in feed:
            images += chunk
            if clock() - began >= seconds:
                break
    return images, clock() - began


def judge(
    images: int, spent: float, cores: int, plan: Plan, pace: Pace | str, *, hosts: int = 1
) -> list[Line]:
    """Return the lines of decoding, step time and input.

    Args:
        images: number of images that this process decoded.
        spent: seconds.
        cores: number of cores that it may use.
        plan: plan of the run.
        pace: time of a step, or why it is unknown.
        hosts: number of hosts that share the input.
    """
    rate = images / spent
    words = f"{rate:,.0f} images/s of this process ({images:,} in {spent:.1f} s, {cores} cores)"
    decoding = ok(DECODING, words)
    if isinstance(pace, str):
        reason = f"{pace}; --measure_step measures two steps"
        return [decoding, skip(STEP, reason), skip(INPUT, "the time of a step is unknown")]
    total = plan.first_stage.samples_per_step / pace.step_s
    words = f"{1e3 * pace.step_s:,.1f} ms, {total:,.0f} images/s in all ({pace.source})"
    if not forecast.why_no_forecast(plan):  # photographs
        words += f"; {forecast.input_need(total, hosts).text}"
    need = need_of(plan, pace)
    factor = rate / need.images_per_s
    found = f"{factor:.2f} times the {need.images_per_s:,.0f} images/s that a process needs"
    line = ok(INPUT, found)
    if factor < 1:
        remedy = f"{advice(need, rate, cores)}; or prepare smaller or decoded images (docs/data.md)"
        line = problem(INPUT, found, remedy)
    elif factor < _MARGIN:
        line = problem(INPUT, f"{found}, which leaves no margin", "see docs/data.md, on speed")
    return [decoding, ok(STEP, words), line]


def need_of(plan: Plan, pace: Pace) -> Need:
    """Return what each process must decode so that its devices never wait."""
    each = plan.facts.devices // plan.facts.processes
    device = plan.first_stage.samples_per_step / pace.step_s / plan.facts.devices
    return need_of_devices(device, each, plan.facts.processes)
