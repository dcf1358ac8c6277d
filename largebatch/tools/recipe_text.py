"""Text of recipes: resolved, listed, and each value with its source."""

from collections.abc import Iterable, Sequence

from largebatch.config import Facts, changed
from largebatch.config.facts import KNOWN_SETS
from largebatch.config.plan import resolve
from largebatch.config.recipes import TAGS, Recipe

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
