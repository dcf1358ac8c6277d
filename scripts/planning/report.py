"""The report of `scripts/plan.py`: devices, rows, the table of variants, and the JSON."""

import argparse
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from largebatch.config.plan import Plan
from largebatch.config.recipes import Recipe
from largebatch.errors import ConfigError, counted
from largebatch.parallel.clusters import machine
from largebatch.planning.compile import Study
from largebatch.planning.forecast import Flops, InputNeed, why_no_forecast
from largebatch.planning.prediction import Prediction, known_clusters
from largebatch.planning.topologies import Topology
from largebatch.training.memory import GIB

Rows = list[tuple[str, str]]
MIB = 2**20


def machines(recipe: Recipe, flags: argparse.Namespace) -> tuple[int, str, str]:
    """Return devices, cluster and software of the prediction; the cluster can be unknown: "".

    Raises:
      ConfigError: an unknown cluster, or devices without a cluster.
    """
    # A scaled recipe is another task than the published run, whose devices say nothing about it.
    row = recipe.published if recipe.config.run.scale_to == "full" else None
    if flags.devices is not None and flags.devices < 1:
        raise ConfigError(f"--devices: expected at least 1, got {flags.devices}")
    if flags.cluster:
        machine(flags.cluster)
    cluster = flags.cluster or (row.cluster if row else "")
    if flags.devices and not cluster:
        raise ConfigError(f"--devices: expected --cluster with it: {', '.join(known_clusters())}")
    devices = flags.devices or (row.device_count if row else None) or 1
    same = row is not None and cluster == row.cluster
    return devices, cluster, row.round if same else ""


def why_no_time(plan: Plan, devices: int, cluster: str, asked: bool) -> str:
    """Return why there is no prediction; empty if there is one.

    Args:
      plan: the run.
      devices: their number, of the published run unless asked for.
      cluster: their cluster; empty is unknown.
      asked: whether the user gave devices or cluster.
    """
    if why := why_no_forecast(plan):
        return why
    if not cluster:
        return f"--cluster is not given; use one of {', '.join(known_clusters())}"
    if not asked and any(stage.workers % devices for stage in plan.stages):
        return (
            f"the published run's {devices:,} devices cannot share "
            f"{plan.first_stage.workers:,} workers; use --devices and --cluster"
        )
    return ""


def plan_rows(recipe: Recipe, plan: Plan, flops: Flops) -> Rows:
    """Return batch, length, stages, learning rates and FLOPs, as (label, value)."""
    first = plan.first_stage
    workers = f"{first.workers:,} workers × {first.images_per_worker} images"
    rows = [("global batch", f"{first.samples_per_step:,} = {workers}")]
    if plan.rounding:
        rows.append(("rounded", plan.rounding))
    length = (
        f"{plan.steps:,} steps, {plan.samples:,} samples, {plan.epochs:.2f} epochs of "
        f"{plan.epoch_samples / first.samples_per_step:.2f} steps, {plan.evaluations} evaluations"
    )
    rows.append(("length", length))
    for stage in plan.stages if len(plan.stages) > 1 else ():
        size = "×".join(map(str, stage.facts.image_shape[:2]))
        text = f"{stage.steps:,} steps of {stage.samples_per_step:,} images at {size}"
        text += "" if stage.rate == 1 else f", learning rate × {stage.rate:g}"
        rows.append((f"from step {stage.first_step + 1:,}", text))
    for name, position, _ in plan.schedule.milestones():
        position = min(position, plan.samples)
        step = min(plan.steps, 1 + plan.steps_until(position))
        rates, epoch = plan.rates(step), position / plan.epoch_samples
        place = f"step {step:,}, epoch {epoch:.2f}, momentum {rates.momentum:.4g}"
        rows.append((f"LR at {name}", f"{rates.learning_rate:.6g} ({place})"))
    if row := recipe.published:
        known = [row.devices]
        known += [f"{row.top1_percent:g} % top-1"] if row.top1_percent else []
        rules = f" (MLPerf: {row.mlperf})" if row.mlperf else ""
        known += [f"{row.seconds:,g} s{rules}"] if row.seconds else []
        rows.append(("published", ", ".join(known) + f" ({row.source})"))
        if recipe.unverified:
            names = ", ".join(recipe.unverified)
            rows.append(("unverified", f"{len(recipe.unverified)} values: {names}"))
    counts = f"{_flop(flops.of_image)} to train on an image, {_flop(flops.of_training)} in all"
    return [*rows, ("FLOPs", f"{counts} (forward, and twice that for backward)")]


def forecast_rows(
    found: Prediction, need: InputNeed, devices: int, cluster: str, round: str
) -> Rows:
    """Return predicted times, as (label, value)."""
    parts = {
        "computing": found.compute_s,
        "all-reduce not hidden": found.exposed_s,
        "update": found.optimizer_s,
        "slowest device": found.straggler_s,
    }
    software = f", with the software of MLPerf {round}" if round else ""
    shares = ", ".join(f"{name} {1e3 * s:.2f}" for name, s in parts.items() if s)
    time = (
        f"{found.clock_s:,.1f} s by MLPerf's clock since v0.6 "
        f"({found.low_s:,.1f} to {found.high_s:,.1f}), "
        f"{found.evaluation_s:,.1f} of it evaluation; {found.start_up_s:,.1f} s to start"
    )
    rate = found.images_per_s
    return [
        ("predicted on", f"{devices:,} devices of {cluster}{software}"),
        ("step", f"{1e3 * found.step_s:.2f} ms: {shares}"),
        ("time", time),
        ("throughput", f"{rate:,.0f} images/s, {rate / devices:,.0f} per device"),
        ("input", need.text),
        ("cost", f"{found.device_hours:,.2f} device-hours"),
    ]


def compiled_rows(plan: Plan, topology: Topology, shown: Study) -> Rows:
    """Return devices, gradients, memory and traffic of a compiled step, as (label, value)."""
    sizes = [each.gradient_bytes / MIB for each in shown.schedule.gradients]
    stage, traffic, images = plan.first_stage, shown.traffic, plan.first_stage.local_images
    kind, hosts = shown.compiled.device_kind, counted(plan.facts.processes, "host")
    workers = counted(stage.microbatch, "worker")
    microbatches = f"k = {counted(stage.microbatches, 'microbatch')} of m = {workers}"
    reductions = (
        f"{counted(len(shown.compiled.buckets), 'bucket')}, {sum(sizes):.1f} MiB in "
        f"{counted(len(sizes), 'reduction')} of {min(sizes, default=0):.2f} to "
        f"{max(sizes, default=0):.2f} MiB"
    )
    memory = (
        f"{shown.compiled.peak_bytes / GIB:.2f} of {topology.hardware.memory / GIB:.0f} GiB, "
        "without libraries' workspace"
    )
    moved = (
        f"{traffic.nbytes / images / 1e6:.0f} MB per image in {traffic.kernels:,} kernels, "
        f"{traffic.products / images / 1e6:.0f} of it in convolutions and matrix products"
    )
    options = ", ".join(f"{n}={v}" for n, v in shown.options.items()) or "its own"
    return [
        ("devices (D)", f"{topology.devices:,} × {kind}, {hosts}"),
        ("each device", f"{microbatches}, {images} images at a time"),
        ("gradients", reductions),
        ("memory of a device", memory),
        ("traffic of a device", moved),
        ("options of XLA", options),
    ]


def variants_table(studies: Sequence[Study]) -> Table:
    """Return the variants side by side; only the collectives that reduce gradients."""
    table = Table(box=None, pad_edge=False)
    table.add_column("variant", no_wrap=True)
    for heading in (
        "reductions",
        "async",
        "MiB each",
        "start after convolution",
        "under backward",
        "by time",
        "exposed",
        "memory",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in studies:
        gradients = each.schedule.gradients
        sizes = [g.nbytes / MIB for g in gradients] or [0.0]
        places = [g.convolutions_before for g in gradients] or [0]
        table.add_row(
            each.name,
            str(len(gradients)),
            str(sum(g.is_async for g in gradients)),
            f"{min(sizes):.2f}–{max(sizes):.2f}",
            f"{min(places)}–{max(places)} of {each.schedule.convolutions}",
            f"{each.schedule.overlapped_share:.1%}",
            f"{each.estimate.hidden_share:.1%}",
            f"{1e3 * each.estimate.exposed_s:.2f} ms",
            f"{each.compiled.peak_bytes / GIB:.2f} GiB",
        )
    return table


def comparison_table(compared: Sequence[Mapping[str, Any]]) -> Table:
    """Return the traffic of compiled choices side by side, in MB per image and kernels."""
    names = sorted({name for each in compared for name in each["traffic"]["classes"]})
    table = Table(box=None, pad_edge=False)
    table.add_column("choice", no_wrap=True)
    for heading in ("MB per image", "kernels", "GiB", *names):
        table.add_column(heading, justify="right")
    for each in compared:
        classes, images = each["traffic"]["classes"], each["images"]
        found = [classes.get(name, {"kernels": 0, "nbytes": 0}) for name in names]
        table.add_row(
            " ".join(f"{key}={value}" for key, value in each["options"].items()),
            f"{each['mb_per_image']:.1f}",
            f"{each['traffic']['kernels']:,}",
            f"{each['peak_bytes'] / GIB:.2f}",
            *(f"{c['nbytes'] / images / 1e6:.1f} in {c['kernels']:,}" for c in found),
        )
    return table


def comparison_json(options: Mapping[str, str], plan: Plan, shown: Study) -> dict[str, Any]:
    """Return one compiled choice for a record."""
    images = plan.first_stage.local_images
    return {
        "options": dict(options),
        "images": images,
        "mb_per_image": round(shown.traffic.nbytes / images / 1e6, 2),
        "traffic": dataclasses.asdict(shown.traffic),
        "peak_bytes": shown.compiled.peak_bytes,
        "xla_options": shown.options,
    }


def plan_json(
    plan: Plan,
    flops: Flops,
    found: Prediction | None,
    need: InputNeed | None,
    devices: int,
    doubts: list[str],
) -> Mapping[str, Any]:
    """Return the plan for a record."""
    first = plan.first_stage
    return {
        "samples_per_step": first.samples_per_step,
        "workers": first.workers,
        "images_per_worker": first.images_per_worker,
        "steps": plan.steps,
        "samples": plan.samples,
        "epochs": plan.epochs,
        "stages": [
            {
                "first_step": s.first_step,
                "steps": s.steps,
                "samples_per_step": s.samples_per_step,
                "image_size": s.facts.image_shape[0],
            }
            for s in plan.stages
        ],
        "devices": devices,
        "flops_of_image": flops.of_image,
        "flops": flops.of_training,
        "prediction": found and vars(found),
        "input": need and dataclasses.asdict(need),
        "doubts": doubts,
        "model_dtype": plan.config.model.dtype,
        "wire": plan.config.comm.wire,
    }


def compiled_json(topology: Topology, plan: Plan, studies: Sequence[Study]) -> dict[str, Any]:
    """Return the compiled step for a record."""
    return {
        "topology": {
            "name": topology.text,
            "devices": topology.devices,
            "device_kind": studies[0].compiled.device_kind,
            "hosts": topology.processes,
        },
        "step": {
            "microbatch": plan.first_stage.microbatch,
            "microbatches": plan.first_stage.microbatches,
            "peak_bytes": studies[0].compiled.peak_bytes,
        },
        "variants": [each.as_json() for each in studies],
    }


def unlike_published(recipe: Recipe, found: Prediction) -> str:
    """Return a remark if the published time is outside of the predicted interval; else empty."""
    seconds = recipe.published and recipe.published.seconds
    if not seconds or found.low_s <= seconds <= found.high_s:
        return ""
    return (
        f"the published time, {seconds:,g} s, is outside of the predicted {found.low_s:,.1f} to "
        f"{found.high_s:,.1f} s: the model does not describe that run well"
    )


def _flop(count: float) -> str:
    """Return FLOPs with the prefix that leaves 1 to 999."""
    power = min(6, int(math.log10(max(1.0, count))) // 3)
    return f"{count / 1000**power:.3g} {('', 'k', 'M', 'G', 'T', 'P', 'E')[power]}FLOP"
