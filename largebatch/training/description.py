"""The tables that a run prints, and its record in ``config.json``."""

import dataclasses
import resource
import shlex
import sys
from pathlib import Path
from typing import Any

import jax

from largebatch.checkpoint.checkpoints import best as best_checkpoint
from largebatch.config import changed
from largebatch.config.plan import Plan, StagePlan
from largebatch.config.recipe_file import find, split_argument
from largebatch.config.sections import Loss
from largebatch.environment import IS_CHECKOUT, ROOT, command_path, environment
from largebatch.errors import counted
from largebatch.tracking import Summary
from largebatch.tracking.console import loss_text
from largebatch.training import rules
from largebatch.training.evaluation import Result
from largebatch.training.memory import GIB
from largebatch.training.objective import layer_of
from largebatch.training.request import Request
from largebatch.training.run import Run
from largebatch.trees import flatten_paths

Rows = list[tuple[str, str]]


def plan_rows(run: Run, hosts: str) -> Rows:
    """Return the resolved recipe as rows (label, value)."""
    plan, config, stage = run.plan, run.plan.config, run.plan.first_stage
    steps = run.first_stage.steps
    facts, buckets = plan.facts, steps.buckets
    kind = jax.devices()[0].device_kind
    sizes = {path: x.size for path, x in flatten_paths(steps.model.shapes()[0]).items()}
    parameters, trained = sum(sizes.values()), sum(bucket.size for bucket in buckets)
    span = "all workers" if stage.span == stage.workers else counted(stage.span, "worker")
    rows = [
        (
            "model",
            f"{config.model.title}, {config.model.dtype}, {parameters:,} parameters",
        ),
        *(
            [("trained", f"{trained:,} parameters; frozen: {parameters - trained:,}")]
            if trained < parameters
            else []
        ),
        ("training data", run.first_stage.splits.train.describe()),
        ("validation data", run.first_stage.splits.validation.describe()),
        *((name, source.describe()) for name, source in run.first_stage.splits.further.items()),
        ("devices", f"{facts.devices} × {kind}, {hosts}"),
        (
            "global batch",
            f"{stage.samples_per_step:,} = {stage.workers:,} workers "
            f"× {stage.images_per_worker} images",
        ),
        *([("rounded", plan.rounding)] if plan.rounding else []),
        (
            "each device",
            f"{counted(stage.microbatches, 'microbatch')} of "
            f"{counted(stage.microbatch, 'worker')}, {stage.local_images} images at a time",
        ),
        *_stage_rows(run),
        ("length", f"{plan.steps:,} steps, {plan.samples:,} samples, {plan.epochs:.2f} epochs"),
        ("loss", _loss(config.loss)),
        ("optimizer", rules.summary(config.optimizer)),
        ("peak LR", f"{plan.schedule.peak:g}"),
    ]
    if stage.ema_kept:
        rows.append(("average of weights", f"each step keeps {stage.ema_kept:.6g}"))
    rows += [
        (
            f"LR at {name}",
            f"{rate:.6g} (sample {position:,}, step {position / stage.samples_per_step:.1f})",
        )
        for name, position, rate in plan.schedule.milestones()
    ]
    rows += [
        ("batch statistics", _statistics(run, span)),
        ("noise scale", _noise(run)),
        (
            "all-reduce",
            f"{counted(len(buckets), config.comm.allreduce)}, {config.comm.wire} on the wire",
        ),
        ("evaluation", _interval(config.run.evaluate_every, stage.evaluate_every, stage)),
        ("checkpoint", _interval(config.run.checkpoint_every, stage.checkpoint_every, stage)),
    ]
    if kept := jax.config.values["jax_compilation_cache_dir"]:
        rows.append(("compiled programs", f"kept in {kept}"))
    rows += [(key, str(value)) for key, value in changed(config).items()]
    return rows


def _interval(option: str, every: int, stage: StagePlan) -> str:
    steps = f"{every / stage.samples_per_step:,.1f}".removesuffix(".0")
    return f"every {steps} steps" if "step" in option else f"every {option} ({steps} steps)"


def _statistics(run: Run, span: str) -> str:
    """Return what BatchNorm layers normalize with."""
    steps = run.first_stage.steps
    layers = {layer_of(path) for path in flatten_paths(steps.model.shapes()[1])}
    frozen = steps.objective.mode.frozen
    if frozen and frozen == layers:
        return "those of the initial weights"
    line = f"over {span}; evaluation uses {run.plan.norm_statistics}"
    kept = counted(len(frozen), "layer")
    return f"{line}; {kept} with those of the initial weights" if frozen else line


def _noise(run: Run) -> str:
    """Return over what the gradient noise scale is measured, or how to have it measured."""
    if why := run.first_stage.steps.why_no_noise:
        return f"not measured: {why}"
    return f"measured from microbatches of {counted(run.plan.first_stage.local_images, 'image')}"


def _stage_rows(run: Run) -> Rows:
    """Return a row for each later stage with the options that it changes."""
    return [
        (
            f"from step {stage.plan.first_step + 1:,}",
            f"{text.partition(':')[2].strip()} (global batch {stage.plan.samples_per_step:,}, "
            f"{counted(stage.plan.microbatch, 'worker')} of a device at a time)",
        )
        for stage, text in zip(run.stages[1:], run.plan.config.batch.stages, strict=True)
    ]


def memory(run: Run) -> str:
    """Return the peak memory of the programs on a device and of this process, in GiB."""
    on_device = max(max(stage.bytes.values(), default=0) for stage in run.stages) / GIB
    in_process = peak_bytes(resource.RUSAGE_SELF) / GIB
    return f"{on_device:.3g} GiB on each device, {in_process:.2f} GiB peak of this process"


def peak_bytes(who: int) -> int:
    """Return the peak resident memory of this process, or of its largest child that has ended."""
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, KiB elsewhere
    return resource.getrusage(who).ru_maxrss * unit


def _loss(options: Loss) -> str:
    smoothing = f", label smoothing {options.label_smoothing:g}" if options.label_smoothing else ""
    if options.target_threshold:
        smoothing += f", targets above {options.target_threshold:g} are 1"
    kind = "cross-entropy" if options.kind == "softmax" else "binary cross-entropy"
    return f"{kind}{smoothing}"


def result_rows(result: Result, plan: Plan) -> Rows:
    """Return the rows of an evaluation; top-5 only for more than five classes."""
    smoothing = plan.config.loss.label_smoothing
    smoothed = f" with label smoothing {smoothing:g}" if smoothing else ""
    return [
        (
            "top-1",
            f"{result.top1:.2%} ({round(result.top1 * result.images):,} of {result.images:,})",
        ),
        *([("top-5", f"{result.top5:.2%}")] if plan.facts.classes > 5 else []),
        ("loss", loss_text(result.loss) + smoothed),
        *([("EMA top-1", f"{result.ema.top1:.2%}")] if result.ema else []),
        *(
            (f"{name} top-1", f"{other.top1:.2%} of {other.images:,}")
            for name, other in result.sets.items()
        ),
    ]


def command(
    recipe: Path, workdir: str | Path, overrides: tuple[tuple[str, str], ...], *flags: str
) -> str:
    """Return a command line that can be pasted into a shell."""
    words = [f"--config={recipe}", f"--workdir={workdir}"]
    words += [f"--config.{key}={text}" for key, text in overrides]
    return shlex.join(["python", command_path("train.py"), *words, *flags])


def commands(request: Request, *labelled: tuple[str, str]) -> list[tuple[str, str]]:
    """Return rows (label, command line with a flag); none without a recipe file or train.py."""
    if request.recipe is None or not IS_CHECKOUT:
        return []
    given = request.recipe, request.place, request.overrides
    return [(name, command(*given, *flag.split())) for name, flag in labelled]


def closing_rows(run: Run, summary: Summary) -> Rows:
    """Return the rows that a training ends with."""
    request = run.request
    words = ["python", command_path("scripts/report.py"), request.place]
    following = [("next", shlex.join(words))] if IS_CHECKOUT else []
    if summary.status == "stopped":
        kept = tuple(o for o in request.overrides if o[0] != "run.stop_after")
        following = commands(dataclasses.replace(request, overrides=kept), ("next", ""))
    best = best_checkpoint(run.place) if run.plan.config.run.keep_best else None
    noise = run.log.noise.estimate()
    batch = run.plan.stage_at(summary.steps).samples_per_step
    return [
        *result_rows(run.result, run.plan),
        *run.target.rows(),
        ("time", f"{summary.wall_s:.1f} s, of which compiling {summary.compile_s:.1f} s"),
        ("throughput", f"{summary.images_per_s:,.0f} images/s"),
        ("memory", memory(run)),
        ("checkpoint", run.checkpoints.path(summary.steps)),
        *([("best checkpoint", run.checkpoints.path(best.step))] if best else []),
        *(noise.rows(batch) if noise else []),
        *following,
    ]


def resolved(run: Run, recipe: Path | None = None) -> dict[str, Any]:
    """Return everything that determines the run, for ``config.json``."""
    plan, first, source = run.plan, run.plan.first_stage, run.first_stage.splits.train
    return {
        "config": dataclasses.asdict(plan.config),
        "facts": dataclasses.asdict(plan.facts),
        "plan": {
            "samples_per_step": first.samples_per_step,
            "rounding": plan.rounding,
            "steps": plan.steps,
            "samples": plan.samples,
            "epochs": plan.epochs,
            "microbatch": first.microbatch,
            "microbatches": first.microbatches,
            "stages": [
                {
                    "first_step": stage.first_step,
                    "first_sample": stage.first_sample,
                    "samples_per_step": stage.samples_per_step,
                    "image_shape": list(stage.facts.image_shape),
                    "rate": stage.rate,
                }
                for stage in plan.stages
            ],
            "span": first.span,
            "members": first.members,
            "peak_learning_rate": plan.schedule.peak,
            "milestones": [list(m) for m in plan.schedule.milestones()],
        },
        # Evaluation, export and prediction need these where the dataset is not at hand.
        "source": {
            "classes": list(source.classes),
            "mean": list(source.mean),
            "std": list(source.std),
        },
        "environment": environment(),
        **({} if recipe is None else {"recipe": _stored_path(recipe)}),
    }


def _stored_path(recipe: Path) -> str:
    """Return the path of a recipe, beside which the user's own modules may be."""
    file = find(split_argument(recipe)[0]).resolve()
    return str(file.relative_to(ROOT) if file.is_relative_to(ROOT) else file)
