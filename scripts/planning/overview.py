"""What a plan says without a compiler: stages, rates, FLOPs, and the time that is predicted."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from largebatch.config import Plan
from largebatch.config.recipes import Recipe
from largebatch.planning.forecast import Flops, InputNeed
from largebatch.planning.prediction import Prediction

Rows = list[tuple[str, str]]


def plan_rows(recipe: Recipe, plan: Plan) -> Rows:
    """Batch, length, stages and learning rates, as (label, value)."""
    first = plan.first_stage
    rows = [
        (
            "global batch",
            f"{first.samples_per_step:,} = {first.workers:,} workers "
            f"× {first.images_per_worker} images",
        ),
        *([("rounded", plan.rounding)] if plan.rounding else []),
        (
            "length",
            f"{plan.steps:,} steps, {plan.samples:,} samples, {plan.epochs:.2f} epochs of "
            f"{plan.epoch_samples / first.samples_per_step:.2f} steps, "
            f"{plan.evaluations} evaluations",
        ),
    ]
    if len(plan.stages) > 1:
        rows += [
            (
                f"from step {stage.first_step + 1:,}",
                f"{stage.steps:,} steps of {stage.samples_per_step:,} images at "
                f"{'×'.join(map(str, stage.facts.image_shape[:2]))}"
                + ("" if stage.rate == 1 else f", learning rate × {stage.rate:g}"),
            )
            for stage in plan.stages
        ]
    for name, position, _ in plan.schedule.milestones():
        position = min(position, plan.samples)
        step = min(plan.steps, 1 + plan.steps_until(position))
        rates = plan.rates(step)
        rows.append(
            (
                f"LR at {name}",
                f"{rates.learning_rate:.6g} (step {step:,}, epoch "
                f"{position / plan.epoch_samples:.2f}, momentum {rates.momentum:.4g})",
            )
        )
    if recipe.published:
        row = recipe.published
        known = [row.devices]
        known += [f"{row.top1_percent:g} % top-1"] if row.top1_percent else []
        known += [f"{row.seconds:,g} s"] if row.seconds else []
        rows.append(("published", ", ".join(known) + f" ({row.source})"))
        if recipe.unverified:
            rows.append(
                ("unverified", f"{len(recipe.unverified)} values: {', '.join(recipe.unverified)}")
            )
    return rows


def flops_rows(flops: Flops) -> Rows:
    """FLOPs of an image and of the training."""
    return [
        (
            "FLOPs",
            f"{_flop(flops.of_image)} to train on an image, {_flop(flops.of_training)} in all "
            "(forward, and twice that for backward)",
        )
    ]


def forecast_rows(
    found: Prediction, need: InputNeed, devices: int, cluster: str, round: str
) -> Rows:
    """Predicted times, as (label, value)."""
    parts = {
        "computing": found.compute_s,
        "all-reduce not hidden": found.exposed_s,
        "update": found.optimizer_s,
        "waiting for input": found.input_s,
        "slowest device": found.straggler_s,
    }
    return [
        (
            "predicted on",
            f"{devices:,} devices of {cluster}"
            + (f", with the software of MLPerf {round}" if round else ""),
        ),
        (
            "step",
            f"{1e3 * found.step_s:.2f} ms: "
            + ", ".join(f"{name} {1e3 * s:.2f}" for name, s in parts.items() if s),
        ),
        (
            "time",
            f"{found.clock_s:,.1f} s by MLPerf's clock ({found.low_s:,.1f} to {found.high_s:,.1f}),"
            f" {found.evaluation_s:,.1f} of it evaluation; {found.start_up_s:,.1f} s to start",
        ),
        (
            "throughput",
            f"{found.images_per_s:,.0f} images/s, {found.images_per_s / devices:,.0f} a device",
        ),
        ("input", need.text),
        ("cost", f"{found.device_hours:,.2f} device-hours"),
    ]


def as_json(
    plan: Plan,
    flops: Flops,
    found: Prediction | None,
    need: InputNeed | None,
    devices: int,
    doubts: list[str],
) -> Mapping[str, Any]:
    """What of it is kept."""
    return {
        "samples_per_step": plan.first_stage.samples_per_step,
        "workers": plan.first_stage.workers,
        "images_per_worker": plan.first_stage.images_per_worker,
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


def _flop(count: float) -> str:
    """With the prefix that leaves 1 to 999."""
    power = min(6, int(math.log10(max(1.0, count))) // 3)
    return f"{count / 1000**power:.3g} {('', 'k', 'M', 'G', 'T', 'P', 'E')[power]}FLOP"


def unlike_published(recipe: Recipe, found: Prediction) -> str:
    """A remark where the published time is not in the predicted interval; else empty."""
    seconds = recipe.published and recipe.published.seconds
    if not seconds or found.low_s <= seconds <= found.high_s:
        return ""
    return (
        f"the published time, {seconds:,g} s, is outside of the predicted {found.low_s:,.1f} to "
        f"{found.high_s:,.1f} s: the model does not describe that run well"
    )
