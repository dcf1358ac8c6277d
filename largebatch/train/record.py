"""The record of a reproduction: its figures beside the published and the predicted ones."""

import dataclasses
import datetime
import importlib.metadata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from largebatch.cluster.prediction import Prediction
from largebatch.config import Plan, resolve
from largebatch.recipes import Published, load_recipe
from largebatch.recipes.forecast import forecast
from largebatch.recipes.text import facts_of
from largebatch.train.figures import SeedResult, estimate, olympic_mean
from largebatch.train.making import model_of


def record(
    about: Mapping[str, Any],
    plan: Plan,
    results: Sequence[SeedResult],
    published: Published | None = None,
    expected: Prediction | None = None,
) -> dict[str, Any]:
    """Everything that `record.json` holds.

    Args:
        about: recipe, scale, command, environment, options of the compiler.
        plan: of the runs.
        results: one for each seed.
        published: the row that is repeated; None for a recipe of our own.
        expected: prediction of its time on the published hardware.
    """
    top1 = [result.top1 for result in results if result.top1 is not None]
    epochs = [r.epochs for r in results if r.reached and r.epochs is not None]
    times = [result.clock_s if result.reached else None for result in results]
    target = plan.config.run.target
    return {
        "date": datetime.date.today().isoformat(),
        **about,
        "mlperf_logging": importlib.metadata.version("mlperf-logging"),
        "global_batch": plan.samples_per_step,
        "devices": f"{plan.facts.devices} × {about['environment']['device']}",
        "length_epochs": plan.epochs,
        "target_top1": target or None,
        "top1": top1 and dataclasses.asdict(estimate(top1)),
        "clock_s": {
            "mean": olympic_mean(times),
            "without_extremes": len(times) >= 5,
            "not_reached": times.count(None),
        },
        "epochs_to_target": epochs and dataclasses.asdict(estimate(epochs)),
        "published": published and dataclasses.asdict(published),
        "prediction": expected and dataclasses.asdict(expected),
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


class Row(NamedTuple):
    """One quantity, in words."""

    name: str
    measured: str
    published: str
    predicted: str


def rows(kept: Mapping[str, Any]) -> list[Row]:
    """The comparison, of a record as `record` makes it."""
    published, expected = kept["published"] or {}, kept["prediction"] or {}
    count, clock = len(kept["seeds"]), kept["clock_s"]
    how = "without best and worst" if clock["without_extremes"] else f"mean of {count}"
    return [
        Row("devices", kept["devices"], published.get("devices") or "–", _cluster(published)),
        Row(
            "top-1 at the end",
            _share(kept["top1"]),
            _given(published.get("top1_percent"), "{:.2f} %"),
            "–",
        ),
        Row(
            "time on the clock",
            f"{_given(clock['mean'], '{:,.1f} s')} ({how}"
            + (
                f", {clock['not_reached']} without reaching the target)"
                if clock["not_reached"]
                else ")"
            ),
            _given(published.get("seconds"), "{:,.1f} s") + _rules(published),
            _given(expected.get("clock_s"), "{:,.1f} s") + _range(expected),
        ),
        Row(
            "epochs on the clock",
            _given((kept["epochs_to_target"] or {}).get("mean"), "{:.2f}"),
            _given(published.get("epochs"), "{:g}"),
            "–",
        ),
    ]


def page(kept: Mapping[str, Any]) -> str:
    """The record for people, as Markdown."""
    environment = kept["environment"]
    lines = [
        f"# {kept['recipe']} at scale {kept['scale']}, {kept['date']}",
        "",
        f"    {kept['command']}",
        "",
        f"Commit {environment.get('commit') or 'unknown'}, "
        f"jax {environment['versions']['jax']}, global batch {kept['global_batch']:,}, "
        f"{kept['length_epochs']:.2f} epochs.",
    ]
    if kept["scale"] != "full":
        lines += ["", "Shrunk: figures of the published run are beside it, not to be compared."]
    lines += ["", *_table(("", "measured", "published", "predicted"), rows(kept)), ""]
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
    table = [[_given(seed[name], form) for name, form in columns] for seed in kept["seeds"]]
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


def _range(expected: Mapping[str, Any]) -> str:
    if not expected:
        return ""
    return f" ({expected['low_s']:,.1f} to {expected['high_s']:,.1f})"


def _rules(published: Mapping[str, Any]) -> str:
    return f" ({published['mlperf']})" if published.get("mlperf") else ""


def _cluster(published: Mapping[str, Any]) -> str:
    return published.get("cluster") or "–"
