"""Plan a recipe: its steps, rates, FLOPs and predicted time, and its step compiled for a topology.

    python scripts/plan.py --config=configs/fujitsu2019_81920.py
    python scripts/plan.py --config=configs/fujitsu2019_81920.py --topology=v100:2048
    python scripts/plan.py --all --json=records/compile.json

Without --topology nothing is compiled. Topologies: cpu:N, v100:N, a100:N, h100:N, h200:N,
tpu:KIND:SHAPE (such as tpu:v5p:8x16x16). Nothing runs on an accelerator. The extras compile-gpu and
compile-tpu install the compilers of absent devices. Further options are those of the recipe:
--config.section.key=value.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import jax
from benchmarks.measure import environment, header
from planning import compiled, every, report
from plots.schedule import schedule as draw_schedule
from rich.console import Console as RichConsole

from largebatch.cli import Parser
from largebatch.config.plan import resolve
from largebatch.config.recipes import load_recipe
from largebatch.config.unused import settled
from largebatch.data.open import facts_of
from largebatch.errors import ConfigError
from largebatch.fault_tolerance import exit_code
from largebatch.files import check_parent, write_json
from largebatch.parallel.clusters import machine
from largebatch.planning import forecast
from largebatch.planning.compile import LIMIT_GIB, LIMIT_S, VARIANTS, parse_variants
from largebatch.planning.prediction import known_clusters
from largebatch.planning.topologies import open_topology
from largebatch.tracking import Console
from largebatch.training.steps import model_of

_TABLE_CELLS = 120
_APART = ("data", "run", "health")  # sections whose options leave the published time comparable


def parser() -> Parser:
    """The command line."""
    made = Parser(
        __doc__, usage="plan.py --config RECIPE [options] [--config.section.key=value ...]"
    )
    made.add_recipe("recipe: a name in configs/ or a file", optional=True)
    made.add_argument(
        "--all",
        nargs="?",
        const="",
        metavar="NAMES",
        help="compile every recipe for its own devices",
    )
    made.add_argument("--devices", type=int, help="devices to predict for (the published run's)")
    made.add_argument(
        "--cluster",
        help=f"their cluster: {', '.join(known_clusters())}, or a file FILE.toml that describes it "
        "(the published)",
    )
    made.add_argument("--picture", type=Path, help="PNG of the schedule to write")
    made.add_argument("--topology", help="devices to compile for, such as v100:2048")
    made.add_argument(
        "--variants",
        default="ours",
        help=f"variants to compile, with commas between, of {', '.join(VARIANTS)} (ours)",
    )
    made.add_argument(
        "--compare",
        action="append",
        default=[],
        metavar="OPTION=A,B,…",
        help="compile the step with each value of an option, such as model.remat=none,norms, "
        "and compare bytes and kernels; a value with commas is in double quotes; several: all "
        "combinations",
    )
    made.add_argument("--json", type=Path, help="where to write the report")
    made.add_argument(
        "--limit_s", type=float, default=LIMIT_S, help=f"seconds per compilation ({LIMIT_S:.0f})"
    )
    made.add_argument(
        "--limit_gib", type=float, default=LIMIT_GIB, help=f"memory of the compiler ({LIMIT_GIB:g})"
    )
    return made


def main(arguments: Sequence[str]) -> int:
    """Plan; the result is the process's exit code."""
    return exit_code(lambda: _plan(arguments))


def _plan(arguments: Sequence[str]) -> None:
    flags, overrides = parser().parse_run(arguments)
    jax.config.update("jax_platforms", "cpu")  # nothing here needs an accelerator
    for path in filter(None, (flags.json, flags.picture)):
        check_parent(path)
    if flags.all is not None:
        if flags.config or overrides:
            raise ConfigError("--all: expected no recipe and no options of one beside it")
        every.run(flags, arguments)
        return
    if not flags.config:
        raise ConfigError("--config: expected a recipe, got none; use a name in configs/ or a file")
    console = Console()
    recipe = load_recipe(flags.config, overrides, console.note)
    config = recipe.config
    topology = open_topology(flags.topology) if flags.topology else None
    names, choices = parse_variants(flags.variants), compiled.parse_choices(flags.compare)
    if flags.compare and not topology:
        raise ConfigError("--compare: expected --topology with it, such as --topology=h200:1")
    if flags.compare and names != ("ours",):
        raise ConfigError(
            f"--variants: expected ours with --compare, got {flags.variants!r}; use one of the two"
        )
    compared_configs = [
        (dict(choice), load_recipe(flags.config, [*overrides, *choice]).config)
        for choice in choices
        if choice
    ]
    devices, cluster, software = report.machines(recipe, flags)
    sharing = 1  # only a scaled recipe depends on the devices that share its workers
    if config.run.scale_to != "full":
        sharing = topology.devices if topology else devices
    config, plan = settled(
        config,
        dict(overrides),
        lambda each: resolve(each, facts_of(*compiled.sources(each), sharing, 1)),
        console.note,
    )
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
        own = asked or any(k.split(".")[0] not in _APART for k, _ in overrides)
        remark = "" if own else report.unlike_published(recipe, found)
        warnings += [remark] if remark else []
    kept = {"plan": report.plan_json(plan, flops, found, need, devices, warnings)}
    title, studies, around = recipe.name, [], environment()
    limits = {"limit_s": flags.limit_s, "limit_gib": flags.limit_gib}
    if flags.compare:
        compared = []
        for options, chosen in compared_configs:
            planning = compiled.Planning(chosen, topology, **limits)
            microbatch = planning.microbatch()
            ours = planning.study("ours", microbatch)
            placed = resolve(chosen, planning.facts, microbatch=microbatch)
            compared.append(report.comparison_json(options, placed, ours))
            around["versions"] |= ours.compiled.versions
            kept |= {"topology": topology.text, "comparison": compared}
            if flags.json:  # a later failure does not lose the compilations before
                write_json(flags.json, header("plan.py", arguments, around) | kept)
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
    console.plan(title, rows)
    for warning in warnings:
        console.warn(warning)
    out = RichConsole()
    out.width = max(out.width, _TABLE_CELLS)  # a row on one line without a terminal
    if flags.compare:
        out.print(report.comparison_table(compared))
    if studies:
        out.print(report.variants_table(studies))
        if ours.name == "ours":
            share = 100 * ours.schedule.overlapped_share
            print(f"gradient bytes under backward compute: {share:.1f} %")
    if flags.picture:
        draw_schedule(plan, f"{recipe.name}: {recipe.title}", flags.picture)
        print(f"wrote {flags.picture}")
    if flags.json:
        write_json(flags.json, header("plan.py", arguments, around) | kept)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
