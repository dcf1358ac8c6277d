"""The tables of docs/recipes.md, and the text of a proposal for another batch."""

import shlex
from collections.abc import Sequence

from largebatch.config.recipes import TAGS, Recipe
from largebatch.environment import command_path
from largebatch.planning import ladder
from largebatch.tools import recipe_text
from pages.markdown import insert, table

_RATES = ("peak LR", "warm-up", "momentum", "weight decay")


def page(text: str, recipes: Sequence[Recipe]) -> str:
    """Return docs/recipes.md with the tables of these recipes."""
    points = [
        (
            f"{point.batch:,}",
            f"{point.peak:g}",
            f"{point.warmup_epochs:g}",
            f"{point.momentum:g}",
            f"{point.weight_decay:g}",
            f"{point.epochs:g} ± {point.spread:g}",
        )
        for point in ladder.POINTS
    ]
    blocks = {
        "recipes": table(recipe_text.HEADINGS, recipe_text.listing(recipes)),
        "tags": table(("tag", "meaning"), TAGS.items()),
        "points": table(("batch", *_RATES, "epochs"), points),
    }
    return insert(text, blocks)


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
