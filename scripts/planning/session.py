"""One recipe from the command line of `scripts/plan.py` to its report."""

import argparse
from collections.abc import Sequence
from typing import Any

from benchmarks.measure import environment, header
from rich.console import Console as RichConsole

from largebatch.config import Config
from largebatch.config.plan import Plan
from largebatch.config.recipes import Recipe, load_recipe
from largebatch.config.resolution import resolve
from largebatch.config.unused import settled
from largebatch.data.open import facts_of
from largebatch.errors import ConfigError
from largebatch.files import write_json
from largebatch.parallel.clusters import machine
from largebatch.planning import forecast
from largebatch.planning.compile import parse_variants
from largebatch.planning.topologies import Topology, open_topology
from largebatch.tracking import Console
from largebatch.training.steps import model_of
from planning import compiled, report

_TABLE_CELLS = 120
_APART = ("data", "run", "health")  # sections whose options leave the published time comparable
Overrides = Sequence[tuple[str, str]]


def run(flags: argparse.Namespace, overrides: Overrides, arguments: Sequence[str]) -> None:
    """Plan, predict and, with a topology, compile; print and write the report.

    Raises:
      UserError: a mistake on the command line, or a step that does not compile.
    """
    if not flags.config:
        raise ConfigError("--config: expected a recipe, got none; use a name in configs/ or a file")
    console, around = Console(), environment()
    recipe = load_recipe(flags.config, overrides, console.note)
    topology = open_topology(flags.topology) if flags.topology else None
    names, choices = _variants(flags)
    compared = [
        (dict(choice), load_recipe(flags.config, [*overrides, *choice]).config)
        for choice in choices
        if choice
    ]  # mistakes before anything is compiled
    devices, cluster, software = report.machines(recipe, flags)
    sharing = 1  # only a scaled recipe depends on the devices that share its workers
    if recipe.config.run.scale_to != "full":
        sharing = topology.devices if topology else devices
    config, plan = settled(
        recipe.config,
        dict(overrides),
        lambda each: resolve(each, facts_of(*compiled.sources(each), sharing, 1)),
        console.note,
    )
    rows, kept, warnings = _planned(
        flags, recipe, config, plan, (devices, cluster, software), overrides
    )
    title, tables, last = recipe.name, [], ""
    limits = {"limit_s": flags.limit_s, "limit_gib": flags.limit_gib}
    if compared:
        made = []
        for options, chosen in compared:
            made.append(_compared(options, chosen, topology, limits, around))
            kept |= {"topology": topology.text, "comparison": made}
            if flags.json:  # a later failure does not lose the compilations before
                write_json(flags.json, header("plan.py", arguments, around) | kept)
        tables.append(report.comparison_table(made))
    elif topology:
        planning = compiled.Planning(config, topology, **limits)
        microbatch = planning.microbatch()
        studies = [planning.study(name, microbatch) for name in names]
        placed = resolve(config, planning.facts, microbatch=microbatch)
        ours = next((each for each in studies if each.name == "ours"), studies[-1])
        rows += report.compiled_rows(placed, topology, ours)
        title = f"{recipe.name} on {topology.text}"
        kept |= report.compiled_json(topology, placed, studies)
        around["versions"] |= ours.compiled.versions
        tables.append(report.variants_table(studies))
        if ours.name == "ours":
            share = 100 * ours.schedule.overlapped_share
            last = f"gradient bytes under backward compute: {share:.1f} %"
    console.plan(title, rows)
    for warning in warnings:
        console.warn(warning)
    out = RichConsole()
    out.width = max(out.width, _TABLE_CELLS)  # a row on one line without a terminal
    for table in tables:
        out.print(table)
    if last:
        print(last)
    if flags.json:
        write_json(flags.json, header("plan.py", arguments, around) | kept)


def _variants(flags: argparse.Namespace) -> tuple[Sequence[str], Sequence[compiled.Choice]]:
    """Return the variants to compile, and the choices to compare.

    Raises:
      ConfigError: both are given, or choices without a topology.
    """
    names, choices = parse_variants(flags.variants), compiled.parse_choices(flags.compare)
    if flags.compare and not flags.topology:
        raise ConfigError("--compare: expected --topology with it, such as --topology=h200:1")
    if flags.compare and names != ("ours",):
        raise ConfigError(
            f"--variants: expected ours with --compare, got {flags.variants!r}; use one of the two"
        )
    return names, choices


def _planned(
    flags: argparse.Namespace,
    recipe: Recipe,
    config: Config,
    plan: Plan,
    place: tuple[int, str, str],
    overrides: Overrides,
) -> tuple[report.Rows, dict[str, Any], list[str]]:
    """Return rows, record and warnings of the plan and its predicted time.

    Args:
      flags: of the command.
      recipe: as loaded.
      config: its settled options.
      plan: what follows from them.
      place: devices, cluster and software.
      overrides: of the command line.
    """
    devices, cluster, software = place
    model = model_of(plan)
    flops = forecast.flops_of(plan, model)
    rows, warnings = report.plan_rows(recipe, plan, flops), forecast.doubts(config, plan)
    found, need = None, None
    asked = bool(flags.devices or flags.cluster)
    if why := report.why_no_time(plan, devices, cluster, asked):
        rows.append(("predicted", f"no time: {why}"))
    else:
        found = forecast.forecast(plan, model, devices, cluster, software)
        need = forecast.input_need(
            plan.first_stage.samples_per_step / found.step_s, forecast.hosts_of(devices, cluster)
        )
        rows += report.forecast_rows(found, need, devices, cluster, software)
        warnings += forecast.assumptions(plan, model, devices, machine(cluster).hardware)
        own = asked or any(key.split(".")[0] not in _APART for key, _ in overrides)
        remark = "" if own else report.unlike_published(recipe, found)
        warnings += [remark] if remark else []
    return rows, {"plan": report.plan_json(plan, flops, found, need, devices, warnings)}, warnings


def _compared(
    options: dict[str, str],
    config: Config,
    topology: Topology,
    limits: dict[str, float],
    around: dict[str, Any],
) -> dict[str, Any]:
    """Compile one choice; return its part of the record, and add the compiler's versions."""
    planning = compiled.Planning(config, topology, **limits)
    microbatch = planning.microbatch()
    ours = planning.study("ours", microbatch)
    around["versions"] |= ours.compiled.versions
    return report.comparison_json(
        options, resolve(config, planning.facts, microbatch=microbatch), ours
    )
