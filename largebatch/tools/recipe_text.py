"""Text of recipes: resolved, listed, each value with its source, and a proposal."""

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from largebatch.config import Facts, changed
from largebatch.config.facts import KNOWN_SETS
from largebatch.config.recipes import TAGS, Recipe
from largebatch.config.resolution import resolve
from largebatch.environment import command_path
from largebatch.errors import UserError
from largebatch.planning import ladder
from largebatch.tracking import Summary
from largebatch.training.noise_scale import Estimate

Rows = list[tuple[str, ...]]


def facts_of(recipe: Recipe) -> Facts | None:
    """Return the facts of the recipe's dataset on one device; None if its size is unknown."""
    source = recipe.config.data.source
    if source not in KNOWN_SETS:
        return None
    known = KNOWN_SETS[source]
    side = recipe.config.data.image_size or known.side
    return Facts(known.train, known.validation, known.classes, (side, side, 3), devices=1)


def resolved_text(recipe: Recipe) -> str:
    """Return the resolved recipe; the tests compare it with a golden text."""
    lines = [f"{key} = {value!r}" for key, value in changed(recipe.config).items()]
    facts = facts_of(recipe)
    if facts is not None:
        plan = resolve(recipe.config, facts)
        lines += ["", f"{plan.steps} steps, {plan.samples} samples, {plan.epochs:.4f} epochs"]
        lines += [
            f"stage from step {stage.first_step + 1}: {stage.steps} steps of "
            f"{stage.samples_per_step} = {stage.workers} × {stage.images_per_worker} images of "
            f"{'×'.join(map(str, stage.facts.image_shape[:2]))}, span {stage.span}"
            for stage in plan.stages
        ]
        tenths = range(11)
        steps = [1 + (plan.steps - 1) * i // 10 for i in tenths]
        for step in steps:
            rates = plan.rates(step)
            lines.append(
                f"step {step}: learning rate {rates.learning_rate:.6g}, momentum "
                f"{rates.momentum:.6g}, weight decay {rates.weight_decay:.6g}"
            )
    return "\n".join(lines) + "\n"


def listing(recipes: Sequence[Recipe]) -> Rows:
    """Return the cells of `HEADINGS` for each published recipe."""
    return [
        (
            recipe.name,
            _batches(recipe),
            published.devices,
            _number(published.epochs),
            recipe.config.optimizer.title,
            _number(published.top1_percent, " %"),
            _duration(published.seconds),
            published.provenance,
            str(len(recipe.unverified)),
        )
        for recipe in recipes
        if (published := recipe.published)
    ]


HEADINGS = (
    "recipe",
    "batch",
    "devices",
    "epochs",
    "optimizer",
    "top-1",
    "time",
    "tags",
    "unverified",
)


def values(recipe: Recipe) -> Rows:
    """Return (option, value, tag) of all values that the recipe sets or has a source for.

    A value without a tag belongs to this project's runs, not to the published run.
    """
    return [(key, _shown(value), tag or "–") for key, value, tag in recipe.values()]


def legend(tags: Iterable[str]) -> list[str]:
    """Return the meanings of tags such as ``S`` or ``A+M``, one line for each letter."""
    letters = set("".join(tags))
    return [f"{tag}: {meaning}" for tag, meaning in TAGS.items() if tag in letters]


def cost_of_batch(batch: int, run: Path) -> str:
    """Return what a batch costs according to the noise scale that a run has measured.

    Raises:
      UserError: the run has not measured one.
    """
    summary = Summary.read(run)
    if summary is None or summary.noise_scale is None:
        raise UserError(
            f"--run={run}: expected a summary.json with noise_scale; use a training "
            "with at least 2 microbatches a step (docs/batch_size.md)"
        )
    rows = Estimate(summary.noise_scale, summary.noise_scale_error).rows(batch)
    return f"{run.name}: " + "; ".join(map(": ".join, rows))


def proposal(found: ladder.Proposal) -> list[str]:
    """Return a proposal in lines; the last is the command that runs it."""
    made_of = " and ".join(f"{p.batch:,} ({p.source})" for p in found.between)
    beyond = " (no run is published there)" if found.kind == "extrapolated" else ""
    lines = [
        f"batch {found.batch:,}: {found.kind} from {made_of}",
        f"epochs to 75.9 % top-1: {found.epochs:.1f} ± {found.uncertainty:.1f}{beyond}",
        f"peak rate {found.peak:.6g} at a trust coefficient of 0.001, warm-up "
        f"{found.warmup_epochs:.3g} epochs, momentum {found.momentum:.6g}, weight decay "
        f"{found.weight_decay:g}, polynomial of power 2 to 1e-4 over {found.length_epochs:.3g} "
        "epochs, label smoothing 0.1",
    ]
    train = ["python", command_path("train.py")]
    recipe = found.between[0].recipe if found.kind == "published" else ""
    if recipe:
        return [*lines, shlex.join([*train, f"--config=configs/{recipe}.py"])]
    workers, images = ladder.workers_of(found.batch)
    options = {
        "batch.workers": workers,
        "batch.images_per_worker": images,
        "norm.span": 1,
        "optimizer.momentum": f"{found.momentum:.6g}",
        "optimizer.weight_decay": f"{found.weight_decay:g}",
        "schedule.peak": f"{found.peak:.6g}",
        "schedule.warmup": f"{found.warmup_epochs:.3g} epochs",
        "schedule.length": f"{found.length_epochs:.3g} epochs",
    }
    words = [f"--config.{key}={value}" for key, value in options.items()]
    command = [*train, "--config=configs/mlperf40_nvidia_40k.py", *words]
    return [*lines, shlex.join(command)]


def _batches(recipe: Recipe) -> str:
    facts = facts_of(recipe)
    if facts is None:
        return f"{recipe.samples_per_step:,}"
    sizes = [stage.samples_per_step for stage in resolve(recipe.config, facts).stages]
    distinct = [size for i, size in enumerate(sizes) if i == 0 or size != sizes[i - 1]]
    return " → ".join(f"{size:,}" for size in distinct)


def _number(value: float | None, unit: str = "") -> str:
    return "?" if value is None else f"{value:g}{unit}"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    if seconds < 600:
        return f"{seconds:g} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _shown(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
