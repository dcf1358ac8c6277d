"""The record of a reproduction: its figures beside the published and the predicted ones."""

import dataclasses
import datetime
import importlib.metadata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from largebatch.config import Config, Plan, resolve
from largebatch.config.recipes import Published, Recipe, load_recipe
from largebatch.errors import ConfigError
from largebatch.parallel.hardware import hardware_of, machine
from largebatch.planning.forecast import forecast
from largebatch.planning.prediction import Prediction
from largebatch.tools.recipe_text import facts_of
from largebatch.tools.reproduce.statistics import SeedResult, estimate, olympic_mean
from largebatch.training.microbatch import model_of


def record(
    about: Mapping[str, Any],
    plan: Plan,
    results: Sequence[SeedResult],
    published: Published | None = None,
    expected: Prediction | None = None,
    here: Prediction | None = None,
    unlike: Sequence[str] = (),
) -> dict[str, Any]:
    """Everything that `record.json` holds.

    Args:
        about: recipe, scale, command, environment, options of the compiler.
        plan: of the runs.
        results: one for each seed.
        published: the row that is repeated; None for a recipe of our own.
        expected: prediction of its time on the published hardware.
        here: prediction of the time on the devices that it ran on.
        unlike: what makes it another task than the published one; empty: the same task.
    """
    top1 = [result.top1 for result in results if result.top1 is not None]
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
        "top1": top1 and dataclasses.asdict(estimate(top1)),
        "clock_s": {
            "mean": olympic_mean(times),
            "without_extremes": len(times) >= 5,
            "not_reached": times.count(None) if target else None,
            "not_finished": None if target else times.count(None),
        },
        "epochs_to_target": dataclasses.asdict(estimate(epochs)) if epochs else None,
        "published": published and dataclasses.asdict(published),
        "comparable": None if published is None else not unlike,
        "unlike_published": list(unlike),
        "prediction": expected and dataclasses.asdict(expected),
        "prediction_here": here and dataclasses.asdict(here),
        "seeds": [dataclasses.asdict(result) for result in results],
    }


def prediction(recipe: Path, published: Published) -> Prediction | None:
    """The time of the recipe at full scale on the published hardware.

    Args:
        recipe: the file.
        published: its row.

    Returns:
        None where the hardware or the numbers of examples are not known.

    Raises:
        ConfigError: the recipe does not fit that hardware.
    """
    full, devices = load_recipe(recipe), published.device_count
    facts = facts_of(full)
    if not published.cluster or not devices or facts is None:
        return None
    plan = resolve(full.config, facts)
    return forecast(plan, model_of(plan), devices, published.cluster, published.round)


OTHER_TASK = "another task than the published run, whose figures do not compare"


def other_task(config: Config, plan: Plan, recipe: Recipe) -> list[str]:
    """What makes a run another task than the one that its recipe was published for.

    The task is the data set, the network and the target. Hyperparameters, number formats and
    hardware may differ: that they do is what a comparison shows.

    Args:
        config: of the run.
        plan: of the run.
        recipe: as published.
    """
    found = []
    for key in ("run.scale_to", "run.scale_length", "model.name", "model.width", "model.stem"):
        section, name = key.split(".")
        own, usual = (getattr(getattr(each, section), name) for each in (config, recipe.config))
        if own != usual and {own, usual} != {"conv7", "space_to_depth"}:  # the same function
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
    """The time of the run on the devices that it runs on.

    Args:
        plan: of the run.
        devices: all of them.
        cluster: name of the machines; empty: no prediction is wanted.

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


def table_of(kept: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The comparison, of a record as `record` makes it.

    Returns:
        Headings and rows. The published run is there only if it was the same task.
    """
    clock, has_target = kept["clock_s"], bool(kept["target_top1"])
    how = "without best and worst" if clock["without_extremes"] else f"mean of {len(kept['seeds'])}"
    lost = clock["not_reached"] or clock["not_finished"]
    if lost:
        how += f", {lost} " + ("did not reach the target" if has_target else "did not finish")
    epochs = (kept["epochs_to_target"] or {}).get("mean")
    columns = {
        "measured": [
            kept["devices"],
            _share(kept["top1"]),
            f"{_given(clock['mean'], '{:,.1f} s')} ({how})",
            _given(epochs, "{:.2f}") if has_target else "no target",
        ]
    }
    if here := kept["prediction_here"]:
        columns[f"predicted here ({kept['cluster']})"] = [
            kept["devices"],
            "–",
            _predicted(here),
            "–",
        ]
    if kept["comparable"]:
        published = kept["published"]
        columns["published"] = [
            published["devices"] or "–",
            _given(published["top1_percent"], "{:.2f} %"),
            _given(published["seconds"], "{:,.1f} s") + _rules(published),
            _given(published["epochs"], "{:g}"),
        ]
        if expected := kept["prediction"]:
            cluster = published["cluster"]
            columns[f"predicted for {cluster}"] = [cluster, "–", _predicted(expected), "–"]
    names = ("devices", "top-1 at the end", "time on the clock", "epochs to the target")
    rows = [list(cells) for cells in zip(names, *columns.values(), strict=True)]
    return ["", *columns], rows


def remark(kept: Mapping[str, Any]) -> str:
    """What a reader must know before comparing; empty: nothing."""
    if kept["published"] is None or kept["comparable"]:
        return ""
    return f"This is {OTHER_TASK}: {'; '.join(kept['unlike_published'])}."


def closing_rows(kept: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The comparison for the console, as (label, value)."""
    (_, *heads), rows = table_of(kept)
    found = [
        (name, "; ".join([first, *(f"{h} {c}" for h, c in zip(heads[1:], rest, strict=True))]))
        for name, first, *rest in rows
    ]
    return [*found, ("comparison", remark(kept))] if remark(kept) else found


def page(kept: Mapping[str, Any]) -> str:
    """The record for people, as Markdown."""
    environment = kept["environment"]
    versions = environment["versions"]
    installed = f"largebatch {versions.get('largebatch', 'of unknown version')}, installed"
    commit = environment.get("commit")
    lines = [
        f"# {kept['recipe']} at scale {kept['scale']}, {kept['date']}",
        "",
        f"    {kept['command']}",
        "",
        f"{f'Commit {commit}' if commit else installed}, "
        f"jax {versions['jax']}, global batch {kept['global_batch']:,}, "
        f"{kept['length_epochs']:.2f} epochs.",
    ]
    if remark(kept):
        lines += ["", remark(kept)]
    lines += ["", *_table(*table_of(kept)), ""]
    columns = (
        ("seed", "{}"),
        ("reached", "{}"),
        ("top1", "{:.4f}"),
        ("clock_s", "{:.2f}"),
        ("epochs", "{:g}"),
        ("initialisation_s", "{:.1f}"),
        ("compile_s", "{:.1f}"),
        ("train_s", "{:.2f}"),
        ("wait_s", "{:.2f}"),
        ("evaluation_s", "{:.2f}"),
        ("checkpoint_s", "{:.2f}"),
        ("images_per_s", "{:,.0f}"),
        ("accepted", "{}"),
    )
    seeds = [dict(seed) for seed in kept["seeds"]]
    for seed in seeds:
        if seed["reached"] is None:
            seed["reached"] = "no target"
    table = [[_given(seed[name], form) for name, form in columns] for seed in seeds]
    lines += _table([name for name, _ in columns], table)
    lines += [
        "",
        "`clock_s` is from run_start to run_stop of result_SEED.txt; initialisation, compilation "
        "and warm-up come before it. `train_s` holds `wait_s`, the waits for data. `accepted`: by "
        "MLPerf's compliance checker.",
        "",
    ]
    return "\n".join(lines)


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *body)]


def _given(value: Any, form: str) -> str:
    return "–" if value is None else form.format(value)


def _share(found: Mapping[str, Any] | None) -> str:
    if not found:
        return "–"
    text = f"{found['mean']:.2%}"
    if found["low"] is None:
        return text + " (1 run)"
    return (
        text
        + f" ({found['low']:.2%} to {min(1.0, found['high']):.2%} at 95 %, {found['runs']} runs)"
    )


def _predicted(expected: Mapping[str, Any]) -> str:
    low, high = expected["low_s"], expected["high_s"]
    return f"{expected['clock_s']:,.1f} s ({low:,.1f} to {high:,.1f})"


def _rules(published: Mapping[str, Any]) -> str:
    return f" ({published['mlperf']})" if published.get("mlperf") else ""
