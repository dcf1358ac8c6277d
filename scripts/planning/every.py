"""Compile every recipe for the devices of its published run, none of which has to be here.

All programs of a training are compiled: initialization, microbatches, update and evaluation, with
the options that training gives to XLA. The record has the memory of each program and the devices'.
A recipe takes one to five minutes of CPU time. A record of the same versions is continued: what has
been compiled is not compiled again, even by another commit; each row names its own.

A recipe whose published devices are unknown, or have no compiler, is compiled for H200s. CUDA 12
with the extra compile-gpu compiles for V100s too.
"""

import argparse
import dataclasses
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import header
from rich.console import Console
from rich.table import Table

from largebatch.config.recipes import Recipe, all_recipes
from largebatch.config.resolution import resolve
from largebatch.data.open import facts_of
from largebatch.environment import versions
from largebatch.errors import ConfigError, UserError, counted, did_you_mean
from largebatch.files import write_json
from largebatch.parallel.clusters import Cluster, Hardware, machine
from largebatch.planning.topologies import GPUS, open_topology
from largebatch.training.memory import GIB, USABLE
from planning.compiled import Planning, sources

ROOT = Path(__file__).parents[2]
_COMPILERS = ("jax-cuda12-pjrt", "jax-cuda13-pjrt", "nvidia-cuda-nvcc-cu12", "libtpu")
OTHER = "h200"
"""The devices of recipes whose own are unknown, or have no compiler."""


@dataclasses.dataclass(frozen=True)
class Target:
    """The devices that a recipe is compiled for."""

    topology: str
    hardware: Hardware
    published: bool
    """Whether they are of the kind of the published run."""


def target_of(recipe: Recipe) -> Target:
    """Return the published devices, or H200s; as many as can share the workers evenly."""
    row = recipe.published
    hardware = machine(row.cluster).hardware if row and row.cluster else None
    kind = compiler_of(hardware) if hardware else ""
    known = bool(kind)
    if hardware is None or not known:
        hardware = machine("h200-node").hardware
        kind = OTHER
    asked = (row.device_count if row else None) or 1
    plan = resolve(recipe.config, facts_of(*sources(recipe.config), 1, 1))
    workers = [stage.workers for stage in plan.stages]
    devices = asked
    while devices > 1 and (any(n % devices for n in workers) or not _fills(hardware, devices)):
        devices -= 1
    if hardware.torus:
        cluster = Cluster(hardware, devices)
        shape = "x".join(map(str, reversed(cluster.torus_shape)))
        shape += f"x{cluster.nodes}slices" if cluster.nodes > 1 else ""
        return Target(f"{kind}:{shape}", hardware, known)
    return Target(f"{kind}:{devices}", hardware, known)


def compiler_of(hardware: Hardware) -> str:
    """Return the kind of devices in a topology's name, such as `v100`; '' without a compiler."""
    if hardware.torus:
        return hardware.name
    return next((name for name in GPUS if hardware.name.startswith(name)), "")


def _fills(hardware: Hardware, devices: int) -> bool:
    """Return whether devices are full nodes, or a torus of whole chips."""
    if hardware.torus:
        return devices % hardware.devices_per_chip == 0 or devices == 1
    return devices <= hardware.devices_per_node or devices % hardware.devices_per_node == 0


def compiled(recipe: Recipe, target: Target, **limits: float) -> dict[str, Any]:
    """Compile all programs of a recipe; returns its row of the record."""
    start = time.monotonic()
    row: dict[str, Any] = {"recipe": recipe.name, "topology": target.topology}
    row |= {"published_devices": target.published, "error": "", "programs": {}}
    try:
        topology = open_topology(target.topology)
        # The cluster's own board can have more or less memory than the compiler's.
        memory = target.hardware.memory
        board = dataclasses.replace(topology.hardware, memory=memory)
        topology = dataclasses.replace(topology, hardware=board)
        made = Planning(recipe.config, topology, **limits).all_programs()
    except UserError as error:
        return row | {"error": str(error), "seconds": round(time.monotonic() - start)}
    room = memory * USABLE
    name, needed = max(made.programs.items(), key=lambda item: item[1])
    if needed > room:
        row["error"] = f"{name}: {needed / GIB:.1f} GiB do not fit into {room / GIB:.1f} GiB"
    return row | {
        "programs": made.programs,
        "memory": memory,
        "compile_s": made.compile_s,
        "seconds": round(time.monotonic() - start),
        "versions": made.versions,
    }


def chosen(names: Sequence[str]) -> list[Recipe]:
    """Return the recipes of these names, or all.

    Raises:
        ConfigError: One is unknown.
    """
    recipes = {recipe.name: recipe for recipe in all_recipes(ROOT / "configs")}
    for name in names:
        if name not in recipes:
            raise ConfigError(f"unknown recipe {name!r}; {did_you_mean(name, recipes)}")
    return [recipes[name] for name in names or recipes]


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """One line for each recipe."""
    shown = Table("recipe", "compiled for", "GiB", "of", "result")
    for row in rows:
        peak = max(row["programs"].values(), default=0) / GIB
        numbers = (f"{peak:.1f}", f"{row['memory'] / GIB:.0f}") if peak else ("–", "–")
        note = "" if row["published_devices"] else " (not the published devices)"
        shown.add_row(row["recipe"], row["topology"] + note, *numbers, row["error"] or "compiles")
    return shown


def run(flags: argparse.Namespace, arguments: Sequence[str]) -> None:
    """Compile, show, and write the record after each recipe.

    Args:
        flags: `all`, the names with commas between, empty for all; `json`; `limit_s`, `limit_gib`.
        arguments: The command line, for the record.

    Raises:
        UserError: An unknown name, or a recipe that does not compile, whose compiler is not
            installed, or that does not fit into the memory of its devices.
    """
    about = header("plan.py", arguments) | {"compilers": versions(_COMPILERS)}
    kept = kept_rows(flags.json, about)
    for recipe in chosen([name for name in flags.all.split(",") if name]):
        if recipe.name in kept and not kept[recipe.name]["error"]:
            continue
        target = target_of(recipe)
        limits = {"limit_s": flags.limit_s, "limit_gib": flags.limit_gib}
        row = compiled(recipe, target, **limits) | {"commit": about["environment"]["commit"]}
        kept[recipe.name] = row
        outcome = row["error"] or "compiles"
        print(f"{recipe.name} for {target.topology}: {outcome} ({row['seconds']} s)", flush=True)
        if flags.json:
            write_json(flags.json, about | {"results": [kept[name] for name in sorted(kept)]})
    rows = [kept[name] for name in sorted(kept)]
    Console(width=160, markup=False).print(table(rows))
    if wrong := [row["recipe"] for row in rows if row["error"]]:
        raise UserError(f"{counted(len(wrong), 'recipe')} of {len(rows)}: {', '.join(wrong)}")


def kept_rows(path: Path | None, about: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the rows of a record by recipe; {} if there is no record.

    Args:
        path: The record.
        about: What a new one would begin with.

    Raises:
        ConfigError: It is no such record, or was made with other versions.
    """
    if path is None or not path.is_file():
        return {}
    try:
        record = json.loads(path.read_text())
        was = record["environment"]
        rows = {
            row["recipe"]: {"commit": was["commit"]} | row
            for row in record["results"]
            if "error" in row
        }
        found = was["versions"], record["compilers"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"--json: expected a record of plan.py --all, got {path}; use another file"
        ) from error
    if found != (about["environment"]["versions"], about["compilers"]):
        raise ConfigError(f"--json: {path} was made with other versions; use another file")
    return rows
