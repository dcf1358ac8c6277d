"""A recipe's train step, compiled for devices that are not here."""

import dataclasses
import datetime
import functools
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.measure import environment
from rich.table import Table

from largebatch import data
from largebatch.config import Config, Facts, Plan, microbatch_candidates, resolve
from largebatch.data.open import facts_of, known_split, open_source
from largebatch.errors import DataError
from largebatch.planning import compile as compiling
from largebatch.planning.compiled_study import VARIANTS, Study, study, variant_of
from largebatch.planning.topologies import Topology
from largebatch.tracking import Console
from largebatch.training.memory import GIB, is_exhausted, largest_that_fits

MIB = 2**20


def sources(config: Config) -> tuple[data.Source, data.Source]:
    """Training and validation split, or what is known of them where they are not at hand.

    Raises:
      DataError: they cannot be opened and are not known.
    """
    try:
        return open_source(config, "train"), open_source(config, "validation")
    except DataError as error:
        name, size = config.data.source, config.data.image_size
        known = [known_split(name, split, size) for split in ("train", "validation")]
        if None in known:
            raise DataError(
                f"{error} (a plan needs the numbers of examples: data.source=synthetic with "
                "data.examples, data.classes and data.image_size gives them)"
            ) from error
        return tuple(known)


class Planning:
    """A recipe on a topology; each compilation is done once."""

    def __init__(self, config: Config, topology: Topology, **limits: float) -> None:
        """Finds out what the data are; compiles nothing yet."""
        self.config, self.topology = config, topology
        self.console = Console()
        train, validation = sources(config)
        self._moments = {"mean": tuple(train.mean), "std": tuple(train.std)}
        self.facts: Facts = facts_of(
            train,
            validation,
            topology.devices,
            topology.processes,
            crops_on_device=config.data.crops == "device",
        )
        self._limits = limits
        self._done: dict[tuple, Study] = {}

    def study(self, name: str, microbatch: int | None) -> Study:
        """A variant with so many workers at a time."""
        config, options = self._variant(name)
        key = config, tuple(options.items()), microbatch
        if key not in self._done:
            request = compiling.Request(
                config,
                self.topology,
                self.facts,
                options=options,
                microbatch=microbatch,
                **self._moments,
            )
            with self.console.compiling(f"{name} ({VARIANTS[name]})"):
                self._done[key] = study(request, name, **self._limits)
        return dataclasses.replace(self._done[key], name=name)

    @functools.cache  # noqa: B019 - lives as long as the process
    def _variant(self, name: str) -> tuple[Config, dict[str, str]]:
        return variant_of(self.config, name, self.topology.platform, self.console.warn)

    def microbatch(self) -> int:
        """Workers at a time: as configured, or the most that fit the device's memory.

        Raises:
          ConfigError: not even one fits.
        """
        plan = resolve(self.config, self.facts)  # mistakes first
        if self.config.batch.microbatch != "auto":
            return plan.first_stage.microbatch
        candidates = microbatch_candidates(plan.config, self.facts)
        if len(candidates) == 1:
            return candidates[0]

        def needed(microbatch: int) -> int:
            try:
                return self.study("ours", microbatch).compiled.peak_bytes
            except compiling.CompileError as error:
                if not is_exhausted(error):  # as TPU compilers say of what does not fit
                    raise
                return sys.maxsize

        batch = self.config.batch
        memory = batch.memory_gib * GIB or self.topology.hardware.memory
        return largest_that_fits(candidates, needed, int(memory * (1 - batch.memory_margin)))


def compiled_rows(plan: Plan, topology: Topology, shown: Study) -> list[tuple[str, str]]:
    """What the compiled step adds to the plan, as (label, value)."""
    sizes = [each.gradient_bytes / MIB for each in shown.schedule.gradients]
    memory, stage = shown.compiled.peak_bytes / GIB, plan.first_stage
    return [
        (
            "devices (D)",
            f"{topology.devices:,} × {shown.compiled.device_kind}, "
            f"{plan.facts.processes:,} host(s)",
        ),
        (
            "each device",
            f"k = {stage.microbatches} microbatch(es) of m = {stage.microbatch} worker(s), "
            f"{stage.local_images} images at a time",
        ),
        (
            "gradients",
            f"{len(shown.compiled.buckets)} bucket(s), {sum(sizes):.1f} MiB in {len(sizes)} "
            f"reduction(s) of {min(sizes, default=0):.2f} to {max(sizes, default=0):.2f} MiB",
        ),
        (
            "memory of a device",
            f"{memory:.2f} of {topology.hardware.memory / GIB:.0f} GiB, without libraries' "
            "workspace",
        ),
        (
            "traffic of a device",
            f"{shown.traffic.nbytes / stage.local_images / 1e6:.0f} MB an image in "
            f"{shown.traffic.kernels:,} kernels, "
            f"{shown.traffic.products / stage.local_images / 1e6:.0f} of it in convolutions and "
            "matrix products",
        ),
        (
            "options of XLA",
            ", ".join(f"{n}={v}" for n, v in shown.options.items()) or "its own",
        ),
    ]


def variants_table(studies: Sequence[Study]) -> Table:
    """The variants side by side; only the collectives that reduce gradients."""
    table = Table(box=None, pad_edge=False)
    table.add_column("variant", no_wrap=True)
    for heading in (
        "reductions",
        "async",
        "MiB each",
        "start after convolution",
        "under backward",
        "by time",
        "exposed",
        "memory",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in studies:
        gradients = each.schedule.gradients
        sizes = [g.nbytes / MIB for g in gradients] or [0.0]
        places = [g.convolutions_before for g in gradients] or [0]
        table.add_row(
            each.name,
            str(len(gradients)),
            str(sum(g.is_async for g in gradients)),
            f"{min(sizes):.2f}–{max(sizes):.2f}",
            f"{min(places)}–{max(places)} of {each.schedule.convolutions}",
            f"{each.schedule.overlapped_share:.1%}",
            f"{each.estimate.hidden_share:.1%}",
            f"{1e3 * each.estimate.exposed_s:.2f} ms",
            f"{each.compiled.peak_bytes / GIB:.2f} GiB",
        )
    return table


def about(arguments: Sequence[str], studies: Sequence[Study]) -> dict[str, Any]:
    """Date, command and versions that a report depends on."""
    around = environment()
    for each in studies[:1]:
        around["versions"] |= each.compiled.versions
    return {
        "date": datetime.date.today().isoformat(),
        "command": shlex.join(["python", "scripts/plan.py", *arguments]),
        "environment": around,
    }


def report(topology: Topology, plan: Plan, studies: Sequence[Study]) -> dict[str, Any]:
    """What is kept of the compiled step."""
    return {
        "topology": {
            "name": topology.text,
            "devices": topology.devices,
            "device_kind": studies[0].compiled.device_kind,
            "hosts": topology.processes,
        },
        "step": {
            "microbatch": plan.first_stage.microbatch,
            "microbatches": plan.first_stage.microbatches,
            "peak_bytes": studies[0].compiled.peak_bytes,
        },
        "variants": [each.as_json() for each in studies],
    }
