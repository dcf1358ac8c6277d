"""Whether the input keeps up with the devices: measured decoding against the step's own pace."""

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

DECODING = "decoding"
INPUT = "input"
STEP = "step time"
SECONDS = 3.0
"""That decoding is measured for."""
_PIECE = 32  # images that a thread reads at a time, so that little is under way at the end
_MARGIN = 1.1  # decoding beyond the need that is left to checkpoints, logs and neighbours


@dataclasses.dataclass(frozen=True)
class Pace:
    """A step's time, and where that is from."""

    step_s: float
    source: str


def decode_rate(
    config: Config,
    train: data.Source,
    plan: Plan,
    *,
    seconds: float = SECONDS,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[int, float]:
    """Training images that this process reads, decodes and augments, as a run would, and how long.

    Args:
        config: Of the run.
        train: The training split.
        plan: For the order of the examples.
        seconds: To measure for, at least one chunk.
        clock: In seconds.

    Returns:
        Images, and seconds from the first thread's start to the last image.
    """
    options, reading = config.data, reading_of(config)
    readers = max(1, reading.threads) * max(1, reading.processes)
    chunk = _PIECE * readers
    row_bytes = math.prod(plan.facts.image_shape)
    reading = dataclasses.replace(reading, piece_bytes=min(reading.piece_bytes, _PIECE * row_bytes))
    order = data.Order(
        config.run.seed, len(train), shuffle=options.shuffle, epoch_samples=plan.epoch_samples
    )
    feed = data.train_microbatches(
        train,
        order,
        data.Augment(shift=options.shift, flip=options.flip),
        start=0,
        stop=chunk * 10**6,
        microbatch=chunk,
        rows=(0, chunk),
        reading=reading,
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


def predicted(plan: Plan, cluster: Cluster | None) -> Pace | str:
    """The step that the cost model expects of these devices, or why it knows none."""
    if cluster is None or cluster.hardware.name == "cpu":
        return "the cost model has no figures of these devices"
    if why := forecast.why_no_forecast(plan):
        return why
    model = model_of(plan)
    source = f"predicted for {cluster.devices} × {cluster.hardware.name}"
    if not is_calibrated(forecast.network_of(plan, model), cluster.hardware):
        source += f", scaled from ResNet-50 to {model.name} in {model.dtype}, not calibrated"
    return Pace(forecast.step_on(plan, model, cluster).total_s, source)


def measured(config: Config, console: Console) -> Pace:
    """The second of two steps, compiled as a run would, on one microbatch again and again.

    Each process calls it, and where one of them fails none has a pace.
    """
    program = processes.each_process_does(lambda: _prepared(config, console))
    return processes.each_process_does(program)


def _prepared(config: Config, console: Console) -> Callable[[], Pace]:
    """What measures: all that needs no other process is done."""
    compile_cache.use(config.run.compile_cache)  # the run that follows starts the sooner
    made = build(config, console)
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


def check(
    config: Config,
    train: data.Source,
    plan: Plan,
    pace: Pace | str,
    *,
    hosts: int = 1,
    seconds: float = SECONDS,
) -> list[Line]:
    """The lines of decoding and of what is needed; each process measures its own share at once."""
    images, spent = decode_rate(config, train, plan, seconds=seconds)
    return judge(images, spent, data.cores(), plan, pace, hosts=hosts)


def judge(
    images: int, spent: float, cores: int, plan: Plan, pace: Pace | str, *, hosts: int = 1
) -> list[Line]:
    """The lines.

    Args:
        images: Decoded by this process.
        spent: Seconds.
        cores: That it may use.
        plan: What is to run.
        pace: Of the devices, or why it is not known.
        hosts: That share the input.
    """
    rate = images / spent
    words = f"{rate:,.0f} images/s of this process ({images:,} in {spent:.1f} s, {cores} cores)"
    lines = [ok(DECODING, words)]
    if isinstance(pace, str):
        reason = f"{pace}; --measure_step measures two steps"
        return [*lines, skip(STEP, reason), skip(INPUT, "needs the time of a step")]
    need = need_of(plan, pace)
    total = plan.first_stage.samples_per_step / pace.step_s
    words = f"{1e3 * pace.step_s:,.1f} ms, {total:,.0f} images/s in all ({pace.source})"
    if not forecast.why_no_forecast(plan):  # digits are not decoded
        words += f"; {forecast.input_need(total, hosts).text}"
    lines.append(ok(STEP, words))
    factor = rate / need.images_per_s
    found = f"{factor:.2f} times the {need.images_per_s:,.0f} images/s that a process needs"
    if factor >= _MARGIN:
        return [*lines, ok(INPUT, found)]
    if factor >= 1:
        return [
            *lines,
            problem(INPUT, f"{found}, which leaves nothing over", "see docs/data.md, on speed"),
        ]
    remedy = f"{advice(need, rate, cores)}; or prepare smaller or decoded pictures (docs/data.md)"
    return [*lines, problem(INPUT, found, remedy)]


def need_of(plan: Plan, pace: Pace) -> Need:
    """What each process has to decode so that its devices never wait."""
    processes = plan.facts.processes
    each = plan.facts.devices // processes
    device = plan.first_stage.samples_per_step / pace.step_s / plan.facts.devices
    return need_of_devices(device, each, processes)


def check_pace(config: Config, plan: Plan, *, measure: bool, console: Console) -> Pace | str:
    """The time of a step, predicted or measured; each process calls it."""
    if measure:
        return measured(config, console)
    return predicted(plan, cluster_of(jax.devices()))
