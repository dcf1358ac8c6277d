"""One recipe compiled for one topology in several ways, side by side."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from largebatch.config import Config, override
from largebatch.errors import ConfigError, did_you_mean
from largebatch.parallel import compiler
from largebatch.planning import hlo, schedule
from largebatch.planning.compile import Compiled, CompileError, Request, compile_step
from largebatch.planning.schedule import Estimate, Schedule
from largebatch.planning.traffic import Traffic, traffic

VARIANTS: Mapping[str, str] = {
    "default": "the recipe's buckets, XLA's own options",
    "leaf": "an all-reduce for each parameter",
    "tree": "one all-reduce for all parameters",
    "ours": "the recipe as it is trained",
}


@dataclasses.dataclass(frozen=True)
class Study:
    """One variant."""

    name: str
    options: dict[str, str]
    compiled: Compiled
    schedule: Schedule
    estimate: Estimate
    traffic: Traffic

    def as_json(self) -> dict[str, Any]:
        """What is kept of it: not the module."""
        of = self.compiled
        return {
            "name": self.name,
            "meaning": VARIANTS[self.name],
            "xla_options": self.options,
            "buckets": list(of.buckets),
            "convolutions": self.schedule.convolutions,
            "backward_convolutions": self.schedule.backward_convolutions,
            "gradient_bytes": self.schedule.gradient_bytes,
            "gradient_bytes_under_backward_share": self.schedule.overlapped_share,
            "estimate": dataclasses.asdict(self.estimate),
            "traffic": dataclasses.asdict(self.traffic),
            "peak_bytes": of.peak_bytes,
            "memory": of.memory,
            "compile_s": of.compile_s,
            "compiler_gib": of.compiler_gib,
            "collectives": [_entry(each) for each in self.schedule.collectives],
        }


def _entry(each: schedule.Collective) -> dict[str, Any]:
    entry = dataclasses.asdict(each)
    entry["dtypes"] = list(each.dtypes)
    return entry | {"is_overlapped": each.is_overlapped}


def parse_variants(text: str) -> tuple[str, ...]:
    """Names between commas.

    Raises:
      ConfigError: one is unknown, or there is none.
    """
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if name not in VARIANTS:
            raise ConfigError(f"unknown variant {name!r}; {did_you_mean(name, VARIANTS)}")
    if not names:
        raise ConfigError(f"--variants names none; known: {', '.join(VARIANTS)}")
    return names


def variant_of(
    config: Config, name: str, platform: str, warn: Callable[[str], None]
) -> tuple[Config, dict[str, str]]:
    """The configuration of a variant, and XLA's options for it."""
    if name == "default":
        return config, {}
    if name in ("leaf", "tree"):
        config = override(config, "comm.allreduce", name)
    comm = config.comm
    return config, compiler.program_options(platform, comm.allreduce, comm.xla_options, warn)


def study(request: Request, name: str, **limits: float) -> Study:
    """Compile a variant and read its schedule.

    Args:
      request: of the variant's configuration and options.
      name: of the variant.
      **limits: as of ``compile_step``.

    Raises:
      ConfigError, CompileError: as of ``compile_step``.
    """
    compiled = compile_step(request, **limits)
    module = hlo.parse(compiled.hlo)
    found = schedule.read(module, compiled.buckets, compiled.totals, compiled.head_flops)
    # Equal gradients (of the biases of two BatchNorms that meet at a shortcut) may be sent once.
    share = found.gradient_elements / sum(compiled.buckets)
    if request.topology.devices > 1 and not 0.99 <= share <= 1:
        raise CompileError(
            f"the schedule for {request.topology.text} shows reductions of "
            f"{found.gradient_elements:,} gradients of {sum(compiled.buckets):,}; this compiler "
            "writes them in a form that is not known here"
        )
    estimate = schedule.estimate(module, found, request.topology.cluster)
    return Study(name, dict(request.options), compiled, found, estimate, traffic(module))
