"""The record of a reproduction: its figures beside the published and the predicted ones."""

import dataclasses
import datetime
import importlib.metadata
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from largebatch.config import Config
from largebatch.config.plan import Plan
from largebatch.config.recipes import Published, Recipe, load_recipe
from largebatch.config.resolution import resolve
from largebatch.errors import ConfigError
from largebatch.parallel.clusters import hardware_of, machine
from largebatch.planning.forecast import forecast
from largebatch.planning.prediction import Prediction
from largebatch.tools.recipe_text import facts_of
from largebatch.tools.report.compare import interval
from largebatch.tracking import Summary
from largebatch.training.steps import model_of

_OF_SUMMARY = (
    *("status", "top1", "top5", "loss", "compile_s", "train_s", "wait_s", "evaluation_s"),
    *("checkpoint_s", "images_per_s"),
)
OTHER_TASK = "another task than the published run, whose figures do not compare"


@dataclasses.dataclass(frozen=True)
class SeedResult:
    """One run.

    Attributes:
        seed: its seed.
        summary: how training ended.
        reached: whether the clock stopped at the target; None if there is no target, and the clock
            stopped at the end of training.
        clock_s: seconds from run_start to run_stop.
        epochs: consumed when the clock stopped; None for a run that broke off.
        initialisation_s: seconds from init_start to init_stop, off the clock, with compilation.
        accepted: whether MLPerf's checker accepts the log.
    """

    seed: int
    summary: Summary
    reached: bool | None
    clock_s: float
    epochs: float | None
    initialisation_s: float
    accepted: bool

    @property
    def scored_s(self) -> float | None:
        """Seconds of the score; None for a run that broke off or did not reach its target."""
        counts = self.summary.status == "complete" if self.reached is None else self.reached
        return self.clock_s if counts else None

    def as_json(self) -> dict[str, Any]:
        """Return the result as `record.json` holds it."""
        own = {name: value for name, value in vars(self).items() if name != "summary"}
        return own | {name: getattr(self.summary, name) for name in _OF_SUMMARY}


def estimate(values: Sequence[float]) -> dict[str, float | int | None]:
    """Return mean, low and high of its 95 % interval (see `interval`), and the number of runs.

    Args:
        values: one for each run, at least one; of one run, low and high are None.
    """
    mean, half = interval(values)
    low, high = (None, None) if half is None else (mean - half, mean + half)
    return {"mean": mean, "low": low, "high": high, "runs": len(values)}


def olympic_mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of times as MLPerf takes it: without the least and the greatest.

    Of fewer than five runs it is the plain mean (training_rules.adoc, "Benchmark Results").

    Args:
        values: seconds, at least one; None for a run without a score, which counts as the slowest.

    Returns:
        Seconds; None if a run without a score is left.
    """
    times = sorted(math.inf if value is None else value for value in values)
    mean = statistics.fmean(times[1:-1] if len(times) >= 5 else times)
    return mean if math.isfinite(mean) else None


def record(
    about: Mapping[str, Any],
    plan: Plan,
    results: Sequence[SeedResult],
    published: Published | None = None,
    expected: Prediction | None = None,
    here: Prediction | None = None,
    unlike: Sequence[str] = (),
) -> dict[str, Any]:
    """Return everything that `record.json` holds.

    Args:
        about: recipe, scale, command, environment, options of the compiler.
        plan: of the runs.
        results: one for each seed.
        published: the row of the published run; None for a recipe of our own.
        expected: predicted time on the published hardware.
        here: predicted time on the devices that it ran on.
        unlike: what makes it another task than the published one; empty: the same task.
    """
    top1 = [r.summary.top1 for r in results if r.summary.top1 is not None]
    epochs = [r.epochs for r in results if r.reached and r.epochs is not None]
    times = [result.scored_s for result in results]
    target = plan.config.run.target
    return {
        "date": datetime.date.today().isoformat(),
        **about,
        "mlperf_logging": importlib.metadata.version("mlperf-logging"),
        "global_batch": plan.first_stage.samples_per_step,
        "devices": f"{plan.facts.devices} × {about['environment']['device']}",
        "length_epochs": plan.epochs,
        "target_top1": target or None,
        "top1": estimate(top1) if top1 else None,
        "clock_s": {
            "mean": olympic_mean(times),
            "without_extremes": len(times) >= 5,
            "not_reached": times.count(None) if target else None,
            "not_finished": None if target else times.count(None),
        },
        "epochs_to_target": estimate(epochs) if epochs else None,
        "published": published and dataclasses.asdict(published),
        "comparable": None if published is None else not unlike,
        "unlike_published": list(unlike),
        "prediction": expected and dataclasses.asdict(expected),
        "prediction_here": here and dataclasses.asdict(here),
        "seeds": [result.as_json() for result in results],
    }


def prediction(recipe: Path, published: Published) -> Prediction | None:
    """Predict the time of the recipe at full scale on the published hardware.

    Args:
        recipe: the file.
        published: its row.

    Returns:
        None if the hardware or the numbers of examples are not known.

    Raises:
        ConfigError: the recipe does not fit that hardware.
    """
    full, devices = load_recipe(recipe), published.device_count
    facts = facts_of(full)
    if not published.cluster or not devices or facts is None:
        return None
    plan = resolve(full.config, facts)
    return forecast(plan, model_of(plan), devices, published.cluster, published.round)


def other_task(config: Config, plan: Plan, recipe: Recipe) -> list[str]:
    """Return what makes a run another task than the one that its recipe was published for.

    The task is the dataset, the network and the target. Hyperparameters, number formats and
    hardware may differ, which a comparison is for.

    Args:
        config: of the run.
        plan: of the run.
        recipe: as published.
    """
    found = []
    for key in ("run.scale_to", "run.scale_length", "model.name", "model.width", "model.stem"):
        section, name = key.split(".")
        own, usual = (getattr(getattr(each, section), name) for each in (config, recipe.config))
        if own != usual:
            found.append(f"{key}={own}, published {usual}")
    known = facts_of(recipe)
    for name in ("train_examples", "validation_examples", "classes"):
        own, usual = getattr(plan.facts, name), known and getattr(known, name)
        if known and own != usual:
            found.append(f"{own:,} {name.replace('_', ' ')}, published {usual:,}")
    target = recipe.published.target_percent if recipe.published else None
    if target and abs(100 * config.run.target - target) > 1e-6 and not found:
        found.append(f"run.target={config.run.target:g}, published {target / 100:g}")
    return found


def prediction_here(plan: Plan, devices: Sequence[jax.Device], cluster: str) -> Prediction | None:
    """Predict the time of the run on its own devices.

    Args:
        plan: of the run.
        devices: all of them.
        cluster: name of the machines; empty: no prediction.

    Raises:
        ConfigError: these are not devices of that cluster, or no time can be predicted.
    """
    if not cluster:
        return None
    wanted, kind = machine(cluster).hardware, devices[0].device_kind
    own = hardware_of(kind)
    if own is None or own.name != wanted.name:
        raise ConfigError(f"--cluster={cluster} has {wanted.name}, and these devices are {kind!r}")
    return forecast(plan, model_of(plan), len(devices), cluster)
