"""A training on class folders, input and evaluation included, beside PyTorch and Flax.

    run --data /data/imagenette2-320 --epochs 10 --peer torch,flax
                 --flax_examples ~/flax/examples --json records/training_run.json

Ours is train.py, without a compile cache. PyTorch has torchvision's layers, transforms and
DataLoader, with the recipe's batch, order, learning rates, crops and loss; its resize always
antialiases, ours with --config.data.resampling=antialias. Flax is the code of its ImageNet example,
with the recipe's batch and learning rates. A repeat is an epoch and its evaluation; every
competitor is stopped while another one is measured, and the first epoch, with compilation, is not
part of the medians.
"""

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.competitor import Figures, Race, compete
from benchmarks.epochs import MEMORY, SECONDS, EpochWork, ours
from benchmarks.measure import RATE, TOP1, Result, chosen
from benchmarks.peers import flax_train, torch_train
from largebatch.config import Config, load, options
from largebatch.config.resolution import resolve
from largebatch.data.open import facts_of, open_split
from largebatch.data.order import Order
from largebatch.errors import ConfigError

PEERS = {"torch": torch_train.torchvision, "flax": flax_train.flax}
OVERRIDES = True
_SHARED_OPTIONS = {
    *("model.name", "model.width", "norm.span", "batch.workers", "batch.images_per_worker"),
    *("data.source", "data.image_size", "data.crop_area", "data.crop_ratio", "data.flip"),
    *("data.evaluation_crop", "optimizer.name", "optimizer.nesterov", "optimizer.momentum"),
    *("optimizer.weight_decay", "loss.label_smoothing", "run.seed", "data.resampling"),
}
_OWN_OPTIONS = {
    *("schedule.ema", "schedule.weight_decay", "schedule.weight_decay_warmup"),
    *("data.evaluation_size", "data.evaluation_flip", "data.rectangular", "data.validation_sets"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the subcommand."""
    add = parser.add_argument
    add("--data", type=Path, required=True, metavar="DIR", help="holds train/ and val/")
    add("--config", default="imagenette_laptop", help="recipe (imagenette_laptop)")
    add("--epochs", type=int, default=10, help="length of the training (10)")
    add("--peer", default="", help=f"comma-separated: {', '.join(PEERS)}")
    add("--flax_examples", default="", help="checkout of google/flax, for its example")


def run(flags: argparse.Namespace) -> list[Result]:
    """Train ours and the peers, epoch by epoch.

    Raises:
        ConfigError: Options that do not fit each other.
        FailedError: Ours failed.
    """
    if flags.epochs < 2:
        raise ConfigError(f"--epochs: expected 2 or more (one to warm up), got {flags.epochs}")
    peers = chosen("--peer", flags.peer, PEERS)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as workdir:
        work = work_of(flags, workdir)
        tasks = {"ours": (ours, work)} | {name: (PEERS[name], work) for name in peers}
        race = compete(tasks, len(work.evaluate_after) - 1)
    return results(race, f"{Path(flags.config).stem}, {flags.epochs} epochs")


def work_of(flags: argparse.Namespace, workdir: str) -> EpochWork:
    """Return the recipe's training on the folder, as numbers.

    Raises:
        ConfigError: An option that the peers do not have, or that this benchmark sets itself.
    """
    own = {
        "data.source": f"folder:{flags.data.resolve()}",
        "schedule.length": f"{flags.epochs} epochs",
        "schedule.warmup": "10 %",
        "norm.statistics": "ema",  # as of the peers, also in runs of fewer than 500 steps
        "run.evaluate_every": "1 epochs",
        "run.log_every": "1 epochs",
        "run.compile_cache": "off",
        "health.limit_s": "0",  # stopped while peers train
    }
    for key, _ in flags.overrides:
        if key in own and key != "schedule.warmup":
            raise ConfigError(f"--config.{key}: this benchmark sets it to {own[key]}; leave it out")
    overrides = (*own.items(), *flags.overrides)
    config = load(flags.config, overrides)
    facts = facts_of(open_split(config, "train"), open_split(config, "validation"), 1, 1)
    check_peers_have(flags.config, config)
    plan = resolve(config, facts)
    batch = plan.first_stage.samples_per_step
    order = Order(config.run.seed, facts.train_examples)
    steps = range(1, plan.steps + 1)
    return EpochWork(
        folder=str(flags.data.resolve()),
        workdir=workdir,
        recipe=flags.config,
        overrides=overrides,
        network=config.model.name,
        width=config.model.width,
        classes=facts.classes,
        batch=batch,
        image_size=config.data.image_size,
        crop_area=config.data.crop_area,
        crop_ratio=config.data.crop_ratio,
        evaluation_crop=config.data.evaluation_crop,
        label_smoothing=config.loss.label_smoothing,
        momentum=config.optimizer.momentum,
        weight_decay=config.optimizer.weight_decay,
        seed=config.run.seed,
        learning_rates=tuple(plan.rates(step).learning_rate for step in steps),
        order=order.ids(np.arange(plan.steps * batch)),
        evaluate_after=tuple(s for s in steps if plan.evaluates_at(s) or s == plan.steps),
        flax_examples=flags.flax_examples,
    )


def check_peers_have(recipe: str, config: Config) -> None:
    """Check that a recipe differs from the defaults only in what peers get, too.

    Raises:
        ConfigError: It has another option.
    """
    expected = {"optimizer.name": "sgd", "optimizer.nesterov": True, "data.flip": True}
    expected["norm.span"] = "all"
    for key, value, field in options(config):
        is_rate_or_speed = key.startswith("schedule.") or not field.metadata["mathematics"]
        is_free = key in _SHARED_OPTIONS or (is_rate_or_speed and key not in _OWN_OPTIONS)
        if value != expected.get(key, value if is_free else field.default):
            wanted = expected.get(key, field.default)
            raise ConfigError(
                f"--config.{key}: expected {wanted!r}, which the peers have, got {value!r} of "
                f"{recipe}; use --config.{key}={wanted}"
            )


def results(race: Race, name: str) -> list[Result]:
    """Return the rates of the epochs; accuracy, time and memory of the whole training."""
    rates = {who: [{RATE: each[RATE]} for each in rows] for who, rows in race.figures.items()}
    found = Race(rates, race.absent, race.about).results(name)
    whole = {who: [race.first[who], *rows] for who, rows in race.figures.items()}
    found += compared(f"{name}: at the end", TOP1, whole, lambda rows: rows[-1][TOP1])
    found += compared(f"{name}: training time", "s", whole, lambda rows: rows[-1][SECONDS])
    most = compared(f"{name}: memory", MEMORY, whole, lambda rows: max(r[MEMORY] for r in rows))
    return found + most


def compared(
    name: str,
    unit: str,
    figures: dict[str, list[Figures]],
    value: Callable[[Sequence[Figures]], float],
) -> list[Result]:
    """Return one figure of each training, ours beside each peer's."""
    mine = (value(figures["ours"]),)
    return [
        Result(f"{name} vs {who}", unit, mine, (value(rows),), who)
        if who != "ours"
        else Result(name, unit, mine)
        for who, rows in figures.items()
    ]
