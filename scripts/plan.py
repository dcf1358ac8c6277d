"""Plan a recipe: its steps, rates, FLOPs and predicted time, and its step compiled for a topology.

    python scripts/plan.py --config=configs/fujitsu2019_81920.py
    python scripts/plan.py --config=configs/fujitsu2019_81920.py --topology=v100:2048

Without --topology nothing is compiled. Topologies: cpu:N, v100:N, a100:N, h100:N, h200:N,
tpu:KIND:SHAPE (such as tpu:v5p:8x16x16). Nothing runs on an accelerator. Compilers of absent
devices come with the extras compile-gpu and compile-tpu. Further options are those of the recipe:
--config.section.key=value.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
from benchmarks.measure import write
from planning import compiled, overview
from plots.schedule import schedule as draw_schedule
from rich.console import Console as RichConsole

from largebatch.cli import Parser
from largebatch.config import resolve
from largebatch.config.recipes import Recipe, load_recipe
from largebatch.data.open import facts_of
from largebatch.errors import ConfigError, did_you_mean
from largebatch.fault_tolerance import exit_code
from largebatch.files import check_parent
from largebatch.parallel.hardware import machine
from largebatch.planning import compile as compiling
from largebatch.planning import forecast
from largebatch.planning.compiled_study import VARIANTS, parse_variants
from largebatch.planning.prediction import known_clusters
from largebatch.planning.topologies import open_topology
from largebatch.tracking import Console
from largebatch.training.microbatch import model_of

_TABLE_CELLS = 120
_APART = ("data", "run", "health")  # sections whose options leave the published time comparable


def parser() -> Parser:
    """The command line."""
    made = Parser(
        __doc__, usage="plan.py --config RECIPE [options] [--config.section.key=value ...]"
    )
    made.add_recipe("recipe: a name in configs/ or a file")
    made.add_argument(
        "--devices", type=int, help="devices of all hosts, to predict for (the published run's)"
    )
    made.add_argument(
        "--cluster", help=f"and of which machines: {', '.join(known_clusters())} (the published)"
    )
    made.add_argument("--picture", type=Path, help="PNG of the schedule to write")
    made.add_argument("--topology", help="devices to compile for, such as v100:2048")
    made.add_argument(
        "--variants",
        default="ours",
        help=f"which to compile, with commas between, of {', '.join(VARIANTS)} (ours)",
    )
    made.add_argument("--json", type=Path, help="where to write the report")
    made.add_argument(
        "--limit_s",
        type=float,
        default=compiling.LIMIT_S,
        help=f"seconds for one compilation ({compiling.LIMIT_S:.0f})",
    )
    made.add_argument(
        "--limit_gib",
        type=float,
        default=compiling.LIMIT_GIB,
        help=f"memory of the compiler ({compiling.LIMIT_GIB:g})",
    )
    return made


def machines(recipe: Recipe, flags: argparse.Namespace) -> tuple[int, str, str]:
    """Devices, cluster and software to predict for; cluster empty where none is modelled.

    Raises:
      ConfigError: an unknown cluster, or devices that do not say of which machines.
    """
    row = recipe.published
    if flags.devices is not None and flags.devices < 1:
        raise ConfigError(f"--devices={flags.devices} must be above 0")
    if flags.cluster and flags.cluster not in known_clusters():
        raise ConfigError(
            f"--cluster={flags.cluster} is unknown; {did_you_mean(flags.cluster, known_clusters())}"
        )
    if recipe.config.run.scale_to != "full":
        row = None  # another task than the published one: its devices say nothing
    cluster = flags.cluster or (row.cluster if row else "")
    if flags.devices and not cluster:
        raise ConfigError(
            f"--devices={flags.devices} does not say of which machines; give --cluster, one of "
            f"{', '.join(known_clusters())}"
        )
    devices = flags.devices or (row.device_count if row else None) or 1
    same = row is not None and cluster == row.cluster
    return devices, cluster, row.round if same else ""


def _check_files(flags: argparse.Namespace) -> None:
    for path in (flags.json, flags.picture):
        if path:
            check_parent(path)


def main(arguments: Sequence[str]) -> int:
    """Plan; the result is the process's exit code."""
    return exit_code(lambda: _plan(arguments))


def _plan(arguments: Sequence[str]) -> None:
    flags, overrides = parser().parse_run(arguments)
    jax.config.update("jax_platforms", "cpu")  # nothing here needs an accelerator
    _check_files(flags)
    recipe = load_recipe(flags.config, overrides)
    config, console = recipe.config, Console()
    topology = open_topology(flags.topology) if flags.topology else None
    names = parse_variants(flags.variants)
    devices, cluster, software = machines(recipe, flags)
    sharing = 1  # only a shrunk recipe depends on the devices that share its workers
    if config.run.scale_to != "full":
        sharing = topology.devices if topology else devices
    plan = resolve(config, facts_of(*compiled.sources(config), sharing, 1))
    model = model_of(plan)
    flops = forecast.flops_of(plan, model)
    why = forecast.why_no_forecast(plan)
    if not cluster:
        why = why or f"--cluster is not given; use one of {', '.join(known_clusters())}"
    asked = flags.devices or flags.cluster
    if not asked and any(stage.workers % devices for stage in plan.stages):
        why = why or (
            f"the published run's {devices:,} devices cannot share "
            f"{plan.first_stage.workers:,} workers; give --devices and --cluster"
        )
    rows = [*overview.plan_rows(recipe, plan), *overview.flops_rows(flops)]
    warnings = forecast.doubts(config, plan)
    found, need = None, None
    if why:
        rows.append(("predicted", f"no time: {why}"))
    else:
        found = forecast.forecast(plan, model, devices, cluster, software)
        need = forecast.input_need(
            plan.first_stage.samples_per_step / found.step_s, forecast.hosts_of(devices, cluster)
        )
        rows += overview.forecast_rows(found, need, devices, cluster, software)
        warnings += forecast.assumptions(plan, model, devices, machine(cluster).hardware)
        own = asked or any(k.split(".")[0] not in _APART for k, _ in overrides)
        remark = "" if own else overview.unlike_published(recipe, found)
        warnings += [remark] if remark else []
    kept = {"plan": overview.as_json(plan, flops, found, need, devices, warnings)}
    title, studies = recipe.name, []
    if topology:
        limits = {"limit_s": flags.limit_s, "limit_gib": flags.limit_gib}
        planning = compiled.Planning(config, topology, **limits)
        microbatch = planning.microbatch()
        studies = [planning.study(name, microbatch) for name in names]
        placed = resolve(config, planning.facts, microbatch=microbatch)
        ours = next((each for each in studies if each.name == "ours"), studies[-1])
        rows += compiled.compiled_rows(placed, topology, ours)
        title = f"{recipe.name} on {topology.text}"
        kept |= compiled.report(topology, placed, studies)
    console.plan(title, rows)
    for warning in warnings:
        console.warn(warning)
    if studies:
        out = RichConsole()
        out.width = max(out.width, _TABLE_CELLS)  # rows stay whole where there is no terminal
        out.print(compiled.variants_table(studies))
        if ours.name == "ours":
            share = 100 * ours.schedule.overlapped_share
            print(f"gradient bytes under backward compute: {share:.1f} %")
    if flags.picture:
        draw_schedule(plan, f"{recipe.name}: {recipe.title}", flags.picture)
        print(f"schedule drawn in {flags.picture}")
    if flags.json:
        write(flags.json, compiled.about(arguments, studies) | kept)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
