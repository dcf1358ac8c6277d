"""Accuracy against the batch as a share of the data set, at equal epochs.

The shape to expect is that of Goyal et al. 2017 (arXiv 1706.02677, figure 1): no loss up to some
batch, then more and more. Rates are chosen for the smallest batch and scaled, not searched for at
each batch, as a recipe for another batch is made.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from largebatch.config import Config, freeze
from largebatch.planning.studies import trials
from largebatch.planning.studies.spread import percent, spread


@dataclasses.dataclass(frozen=True)
class Grid:
    """What is trained: every rule at every batch, with and without each of two things."""

    workers: tuple[int, ...] = (2, 8, 32, 88)
    """Of a step; the batch is so many times ``images``."""
    images: int = 16
    """Of a worker, which has BatchNorm statistics of its own."""
    most: int = 512
    """Images at a time; larger batches are accumulated."""
    epochs: int = 20
    warmup: int = 5
    """Epochs, where there is a warm-up."""
    label_smoothing: float = 0.1
    width: int = 4
    sgd_per_256: float = 2.0
    """Peak learning rate for a batch of 256, scaled linearly."""
    lars_per_256: float = 2.8
    """The same of LARS, scaled by the square root."""


@dataclasses.dataclass(frozen=True)
class Arm:
    """What is compared with what, at every batch."""

    rule: str
    """sgd or lars."""
    warmup: bool = True
    smoothing: bool = True

    @property
    def name(self) -> str:
        """For people."""
        without = [
            text
            for text, there in (("warm-up", self.warmup), ("label smoothing", self.smoothing))
            if not there
        ]
        rule = {"sgd": "SGD, linear scaling", "lars": "LARS, √ scaling"}[self.rule]
        return rule + "".join(f", no {text}" for text in without)


ARMS = tuple(
    arm
    for rule in ("sgd", "lars")
    for arm in (Arm(rule), Arm(rule, warmup=False), Arm(rule, smoothing=False))
)


def full() -> tuple[Grid, Sequence[Arm]]:
    """What is recorded."""
    return Grid(), ARMS


def quick() -> tuple[Grid, Sequence[Arm]]:
    """A little of it, with each rule's programs compiled once: whether it runs, no more."""
    arms = Arm("sgd"), Arm("sgd", warmup=False), Arm("lars", smoothing=False)
    return Grid(workers=(4,), images=8, most=32, epochs=2, warmup=1, width=2), arms


def config(grid: Grid, arm: Arm, workers: int, seed: int = 0) -> Config:
    """The trainer's configuration of one training."""
    batch = workers * grid.images
    sgd = arm.rule == "sgd"
    return freeze(
        {
            "model": {"name": "resnet18", "width": grid.width, "stem": "small"},
            "norm": {
                "statistics": "precise",
                "precise_batches": max(1, round(_TRAIN / batch)),  # about one epoch
            },
            "batch": {
                "workers": workers,
                "images_per_worker": grid.images,
                "microbatch": _microbatch(workers, grid.most // grid.images),
            },
            "data": {"source": "digits", "shift": 1},
            "optimizer": {
                "name": arm.rule,
                "weight_decay": 5e-4,
                "trust_coefficient": 0.01,
            },
            "loss": {"label_smoothing": grid.label_smoothing if arm.smoothing else 0.0},
            "schedule": {
                "length": f"{grid.epochs} epochs",
                "warmup": f"{grid.warmup if arm.warmup else 0} epochs",
                "per_256": grid.sgd_per_256 if sgd else grid.lars_per_256,
                "scaling": "linear" if sgd else "sqrt",
            },
            "run": {"seed": seed},
        }
    )


_TRAIN = 1437  # digits


def _microbatch(workers: int, most: int) -> int:
    """The most workers at a time that divide a step's evenly."""
    return max(m for m in range(1, most + 1) if workers % m == 0)


def measure(
    grid: Grid, arms: Sequence[Arm], seeds: Sequence[int], say: Callable[[str], None]
) -> dict[str, Any]:
    """Train every arm at every batch with every seed.

    Args:
      grid: what they share.
      arms: what is compared.
      seeds: of parameters, data order and augmentation.
      say: is told each result.

    Returns:
      The record, but for date, command and environment.
    """
    results = []
    for workers in grid.workers:
        for arm, found in _trained(grid, arms, workers, seeds):
            results.append({"name": arm.name} | dataclasses.asdict(arm) | found)
            precise, ema = (percent(found[key]) for key in ("top1", "top1_ema"))
            say(f"{arm.name:40s} batch {found['batch']:5d}  {precise} %  (ema: {ema} %)")
    return {"grid": dataclasses.asdict(grid), "seeds": list(seeds), "results": results}


def _trained(
    grid: Grid, arms: Sequence[Arm], workers: int, seeds: Sequence[int]
) -> Iterator[tuple[Arm, dict[str, Any]]]:
    """Each arm's result at one batch; arms that differ in the schedule share their programs."""
    shared: dict[tuple[str, bool], Any] = {}
    for arm in arms:
        key = arm.rule, arm.smoothing
        if key not in shared:
            shared[key] = trials.prepared(config(grid, arm, workers))
        precise, ema = [], []
        for seed in seeds:
            run = trials.with_programs(shared[key], config(grid, arm, workers, seed))
            state = trials.trained(run)
            precise.append(trials.evaluated(run, state, "precise").top1)
            ema.append(trials.evaluated(run, state, "ema").top1)
        plan = run.plan
        yield (
            arm,
            {
                "batch": plan.first_stage.samples_per_step,
                "share": plan.first_stage.samples_per_step / plan.facts.train_examples,
                "steps": plan.steps,
                "epochs": plan.epochs,
                "peak": plan.schedule.peak,
                "top1": spread(precise),
                "top1_ema": spread(ema),
            },
        )


def tables(kept: Mapping[str, Any]) -> str:
    """Two Markdown tables: top-1 with precise statistics, and with moving averages."""
    return "\n\n".join(
        f"{title}\n\n{_table(kept, key)}"
        for key, title in (
            ("top1", "Top-1, %, BatchNorm statistics recomputed from an epoch (precise):"),
            ("top1_ema", "The same states with the moving average of training:"),
        )
    )


def _table(kept: Mapping[str, Any], key: str) -> str:
    results = kept["results"]
    batches = {each["batch"]: each for each in results}
    heads = [f"{b:,} ({100 * e['share']:.1f} %)" for b, e in batches.items()]
    steps = [f"{each['steps']:,}" for each in batches.values()]
    lines = ["| batch (of the data set) |", "|---|", "| steps |"]
    lines = [
        line + "".join(f" {cell} |" for cell in cells)
        for line, cells in zip(lines, (heads, ["---"] * len(heads), steps), strict=True)
    ]
    lines[1] = "|" + "---|" * (len(heads) + 1)
    for name in dict.fromkeys(each["name"] for each in results):
        cells = [percent(each[key]) for each in results if each["name"] == name]
        lines.append(f"| {name} |" + "".join(f" {cell} |" for cell in cells))
    return "\n".join(lines)
