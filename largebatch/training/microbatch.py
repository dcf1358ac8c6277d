"""Build the programs of a stage for a microbatch, and choose the largest that fits the devices."""

import math
from collections.abc import Mapping, Sequence

import jax
from jax.sharding import Mesh

from largebatch import data, parallel
from largebatch.config import Config, Facts, Plan, StagePlan, microbatch_candidates, resolve
from largebatch.models import Model
from largebatch.parallel.processes import agreed_maximum, agreed_minimum
from largebatch.parallel.transfer import WAITING
from largebatch.training.memory import (
    TOO_LARGE,
    device_bytes,
    is_exhausted,
    large_that_fits,
    largest_that_fits,
    program_bytes,
)
from largebatch.training.programs import Programs
from largebatch.training.rules import optimizer_of
from largebatch.training.steps import Steps

# ResNet-50 of width 64 keeps about 300 times the bytes of its float32 input for backward at
# 224×224, and 3,000 times at full resolution. Only the start of the search depends on this.
_ACTIVATIONS = 10_000
# More pixels at a time do not make a GPU or a CPU faster (docs/performance.md, Memory).
_MOST_PIXELS = {"gpu": 320 * 224 * 224, "cpu": 64 * 64 * 64}


def model_of(plan: Plan | StagePlan, platform: str | None = None) -> Model:
    """Return the network of a plan, in the form for ``platform``; None is that of this process.

    Raises:
      ConfigError: a user's module that cannot be made, called or trained.
    """
    model = Model.of_options(
        plan.config.model,
        plan.config.norm,
        classes=plan.facts.classes,
        channels=plan.facts.image_shape[-1],
        platform=platform,
    )
    side, shape = plan.config.data.evaluation_size, plan.facts.image_shape
    model.check(shape)
    model.check((side, side, shape[-1]) if side else shape)
    return model


def steps_of(plan: StagePlan, mesh: Mesh, source: data.Source) -> Steps:
    """Return the step functions of a plan on a mesh."""
    model = model_of(plan, mesh.devices.flat[0].platform)
    steps = Steps(plan, model, optimizer_of(plan.config), mesh, source.mean, source.std)
    _ = steps.multipliers  # its errors precede compilation
    return steps


class StageBuilder:
    """Builds the programs of one stage. A microbatch is a number of workers on each device."""

    def __init__(
        self,
        config: Config,
        facts: Facts,
        devices: Sequence[jax.Device],
        source: data.Source,
        options: Mapping[str, str],
        before: tuple[int | None, ...],
        stages: int,
    ) -> None:
        """``before`` are the choices of the stages before this one, of ``stages`` in all."""
        self._config, self._facts, self._devices = config, facts, devices
        self._source, self._options = source, options
        self._before, self._stages = before, stages
        self._made: dict[int | None, Programs] = {}
        self.plan = self._plan(None)

    @property
    def candidates(self) -> tuple[int, ...]:
        """Microbatches that may be chosen; one if ``batch.microbatch`` sets it."""
        if self.plan.config.batch.microbatch != "auto":
            return (self.plan.microbatch,)
        return microbatch_candidates(self.plan.config, self.plan.facts)

    @property
    def platform(self) -> str:
        """What the programs are for: ``cpu``, ``gpu`` or ``tpu``."""
        return self._devices[0].platform

    @property
    def compile_s(self) -> float:
        """Seconds of compiling so far."""
        return sum(programs.compile_s for programs in self._made.values())

    def programs(self, microbatch: int | None) -> Programs:
        """Return the programs for a microbatch; None is the largest possible."""
        if microbatch not in self._made:
            plan = self._plan(microbatch)
            mesh = parallel.make_mesh(self._devices, plan.members)
            self._made[microbatch] = Programs(steps_of(plan, mesh, self._source), self._options)
        return self._made[microbatch]

    def _plan(self, microbatch: int | None) -> StagePlan:
        index = len(self._before)
        choices = (*self._before, microbatch, *[None] * (self._stages - index - 1))
        return resolve(self._config, self._facts, microbatch=choices).stages[index]


def largest_microbatch(builder: StageBuilder, *, for_evaluation: bool = False) -> int:
    """Return the largest useful microbatch whose largest program fits every process's devices.

    On GPUs, whose compiler measures kernels for minutes, a large microbatch is enough, found with
    few compilations.

    Args:
      builder: of the programs.
      for_evaluation: fit the evaluation program instead of the train step, which is not compiled.
    """
    config, facts, candidates = builder.plan.config, builder.plan.facts, builder.candidates
    local = jax.local_devices()
    available = device_bytes(local[0], config.batch.memory_gib, len(local))
    usable = agreed_minimum(int(available * (1 - config.batch.memory_margin)))

    side = config.data.evaluation_size
    seen = (side, side) if side else facts.image_shape[:2]

    def needed(microbatch: int) -> int:
        candidate = builder.programs(microbatch)
        # Images that wait on the device while a step computes.
        side = facts.stored_size
        shape = (side, side, 3) if side else facts.image_shape
        waiting = WAITING * candidate.steps.plan.local_images * math.prod(shape)
        try:
            if for_evaluation:
                # Rectangular images are up to twice as large as the square ones.
                factor = 2 if config.data.rectangular else 1
                found = factor * program_bytes(candidate.evaluate(seen)) + waiting
            else:
                found = program_bytes(candidate.finish) + waiting
        except jax.errors.JaxRuntimeError as error:
            # Autotuning allocates too: a program that cannot be tuned does not fit.
            if not is_exhausted(error):
                raise
            found = TOO_LARGE
        # Processes that disagree would compile different candidates and wait for each other.
        return agreed_maximum(found)

    pixels = config.batch.images_per_worker * math.prod(facts.image_shape[:2])
    most = _MOST_PIXELS.get(builder.platform, math.inf)
    useful = [m for m in candidates if m * pixels <= most] or candidates[:1]
    if builder.platform == "gpu":
        state = builder.programs(useful[-1]).state
        # An evaluation needs parameters and statistics; a step the rest and gradients too.
        held = (state.params, state.stats) if for_evaluation else (state, state.params)
        fixed = sum(
            math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
            for x in jax.tree.leaves(held)
        )
        return large_that_fits(useful, needed, usable, fixed)
    small = 4 * useful[-1] * pixels * facts.image_shape[2] * _ACTIVATIONS < usable
    return largest_that_fits(useful, needed, usable, surely_small=small)
