"""docs/recipes.md, and a proposal for another batch."""

import shlex
from collections.abc import Iterable, Sequence

from largebatch.config.recipes.published import TAGS
from largebatch.config.recipes.recipe import Recipe
from largebatch.planning import ladder
from largebatch.tools import recipe_text as text

_HEAD = """# Recipes

Written by `python scripts/recipes.py --write_docs`; do not edit.

Each of these recipes in `configs/` repeats a published run: `python train.py
--config=configs/NAME.py --config.data.data_dir=DATA`. `python scripts/recipes.py NAME` shows where
each of its values is from; `--config.run.scale_to=laptop` (or `node`) shrinks it, with the same
ratio of batch to data set, as far as that leaves 16 images (or 64), and the same shape of
schedule; on a laptop at a quarter of the rate, SGD's scaled linearly to the smaller batch. Time and
accuracy below are the published ones, not ours. Of what a recipe sets, values that are not known to
be those of the run are counted as unverified; what it leaves at a default is not counted.
"""
_TAGS = "| tag | meaning |\n|---|---|\n"
_MISSING = """## Not here

Second-order methods: Distributed Shampoo (MLPerf v1.0 open, batch 32,768; at 65,536 there is only
a configuration and no log) and SP-NGD (Osawa et al. 2020, batches 32,768 and 131,072; its schedule
was not found). And what needs other techniques than this trainer has: Composer's *mild*, *medium*
and *hot*, timm's RSB and torchvision's
second weights, with binary cross-entropy, weight averaging, SAM, mixup or RandAugment.
"""
_LADDER = """## Another batch

`python scripts/recipes.py --batch B` proposes hyperparameters for any batch from {least:,} to
{most:,} from these points. Left out one by one, the inner points are predicted from their
neighbours to {deviation:.1f} epochs (root mean square).
"""


def page(recipes: Sequence[Recipe]) -> str:
    """The page of all recipes."""
    parts = [
        _HEAD,
        markdown(text.HEADINGS, text.listing(recipes)),
        "",
        _TAGS + "\n".join(f"| {tag} | {meaning} |" for tag, meaning in TAGS.items()),
        "",
        "## Unverified values",
        "",
        *(
            f"- **{recipe.name}**: {', '.join(f'`{key}`' for key in recipe.unverified)}"
            for recipe in recipes
            if recipe.unverified
        ),
        "",
        _MISSING,
        _LADDER.format(least=ladder.LEAST, most=ladder.MOST, deviation=ladder.deviation()),
        markdown(
            ("batch", "peak LR", "warm-up", "momentum", "weight decay", "epochs", "source"),
            [
                (
                    f"{point.batch:,}",
                    f"{point.peak:g}",
                    f"{point.warmup_epochs:g}",
                    f"{point.momentum:g}",
                    f"{point.weight_decay:g}",
                    f"{point.epochs:g} ± {point.spread:g}",
                    point.source,
                )
                for point in ladder.POINTS
            ],
        ),
        "",
        "And what it proposes in between:",
        "",
        markdown(
            ("batch", "kind", "peak LR", "warm-up", "momentum", "weight decay", "epochs to 75.9 %"),
            [
                (
                    f"{p.batch:,}",
                    p.kind,
                    f"{p.peak:.4g}",
                    f"{p.warmup_epochs:.1f}",
                    f"{p.momentum:.4g}",
                    f"{p.weight_decay:g}",
                    f"{p.epochs:.1f} ± {p.uncertainty:.1f}",
                )
                for p in map(ladder.propose, (2_048, 16_384, 40_960, 81_920, 98_304, 131_072))
            ],
        ),
    ]
    return "\n".join(parts) + "\n"


def markdown(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table."""
    lines = [tuple(headings)]
    lines += [("---",) * len(lines[0]), *map(tuple, rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def proposal(found: ladder.Proposal) -> list[str]:
    """A proposal in lines, with the command that runs it."""
    made_of = " and ".join(f"{p.batch:,} ({p.source})" for p in found.between)
    recipe = found.between[0].recipe if found.kind == "published" else ""
    lines = [
        f"batch {found.batch:,}: {found.kind} from {made_of}",
        f"epochs to 75.9 % top-1: {found.epochs:.1f} ± {found.uncertainty:.1f}"
        + ("" if found.kind != "extrapolated" else " (nobody has published a run there)"),
        f"peak rate {found.peak:.6g} at a trust coefficient of 0.001, warm-up "
        f"{found.warmup_epochs:.3g} epochs, momentum {found.momentum:.6g}, weight decay "
        f"{found.weight_decay:g}, polynomial of power 2 to 1e-4 over {found.length_epochs:.3g} "
        "epochs, label smoothing 0.1",
    ]
    if recipe:
        return [*lines, f"python train.py --config=configs/{recipe}.py"]
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
    command = ["python", "train.py", "--config=configs/mlperf40_nvidia_40k.py", *words]
    return [*lines, shlex.join(command)]
