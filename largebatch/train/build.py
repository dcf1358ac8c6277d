"""From a configuration and the devices at hand to everything a run is made of."""

import dataclasses
import math
import sys
from collections.abc import Callable, Generator, Sequence

import jax
import optax
from jax.sharding import Mesh

from largebatch import data, optim, parallel
from largebatch.config import Config, Facts, Plan, microbatch_candidates, resolve
from largebatch.models import Model
from largebatch.parallel.processes import agreed_minimum
from largebatch.tracking import Console
from largebatch.train.memory import device_bytes, is_exhausted, largest_that_fits
from largebatch.train.programs import Programs
from largebatch.train.steps import Steps

# Of its float32 input's bytes, ResNet-50 of width 64 keeps some 300 times as many for backward at
# 224×224, and 3,000 times at full resolution. Only where the search begins depends on this.
_ACTIVATIONS = 10_000


@dataclasses.dataclass(frozen=True)
class Run:
    """A run that is ready to start."""

    train_source: data.Source
    validation_source: data.Source
    programs: Programs
    console: Console

    @property
    def plan(self) -> Plan:
        """What the programs were made for."""
        return self.programs.steps.plan

    @property
    def mesh(self) -> Mesh:
        """Where they run."""
        return self.programs.steps.mesh

    def train_microbatches(self, start: int, stop: int) -> Generator[data.Microbatch]:
        """This process's rows of the microbatches from sample position ``start`` to ``stop``."""
        options, seed = self.plan.config.data, self.plan.config.run.seed
        return data.train_microbatches(
            self.train_source,
            data.Order(seed, len(self.train_source), shuffle=options.shuffle),
            data.Augment(shift=options.shift, flip=options.flip),
            start=start,
            stop=stop,
            microbatch=self.plan.microbatch_samples,
            rows=parallel.local_rows(self.mesh, self.plan.microbatch_samples),
            threads=options.threads,
            prefetch=options.prefetch,
        )

    def validation_batches(self) -> Generator[data.EvaluationBatch]:
        """This process's rows of every validation batch."""
        return data.evaluation_batches(
            self.validation_source,
            batch=self.plan.microbatch_samples,
            rows=parallel.local_rows(self.mesh, self.plan.microbatch_samples),
            threads=self.plan.config.data.threads,
            prefetch=self.plan.config.data.prefetch,
        )


def build(config: Config, console: Console, devices: Sequence[jax.Device] | None = None) -> Run:
    """Open the data, resolve the plan and set up the programs.

    Args:
      config: what to run.
      console: what people see.
      devices: None for all devices of all processes.
    """
    train_source, validation_source = (
        open_source(config, split) for split in ("train", "validation")
    )
    devices = jax.devices() if devices is None else devices
    facts = facts_of(train_source, validation_source, len(devices), jax.process_count())

    compiled: dict[int | None, Programs] = {}

    def programs(microbatch: int | None) -> Programs:
        if microbatch not in compiled:
            plan = resolve(config, facts, microbatch=microbatch)
            mesh = parallel.make_mesh(devices, plan.members)
            compiled[microbatch] = Programs(steps_of(plan, mesh, train_source))
        return compiled[microbatch]

    microbatch = None
    if _is_open(config, facts):
        with console.compiling("train steps, to find the most workers at a time that fit"):
            microbatch = _fitting(config, facts, programs)
    chosen = programs(microbatch)
    chosen.compile_s = sum(made.compile_s for made in compiled.values())  # the search is part of it
    return Run(train_source, validation_source, chosen, console)


def open_source(config: Config, split: str) -> data.Source:
    """The training or validation split of the configured data."""
    options = config.data
    return data.open_source(
        options.source,
        split,
        image_size=options.image_size,
        examples=options.examples,
        classes=options.classes,
    )


def facts_of(train: data.Source, validation: data.Source, devices: int, processes: int) -> Facts:
    """What the plan needs to know."""
    return Facts(
        train_examples=len(train),
        validation_examples=len(validation),
        classes=len(train.classes),
        image_shape=train.image_shape,
        devices=devices,
        processes=processes,
    )


def model_of(plan: Plan) -> Model:
    """The network of a plan."""
    model = plan.config.model
    return Model(
        name=model.name,
        classes=plan.facts.classes,
        channels=plan.facts.image_shape[-1],
        width=model.width,
        stem=model.stem,
        epsilon=plan.config.norm.epsilon,
        zero_init_last_gamma=model.zero_init_last_gamma,
        dtype=model.dtype,
    )


def optimizer_of(config: Config) -> optax.GradientTransformationExtraArgs:
    """The update rule of a configuration."""
    options = config.optimizer
    shared = {
        "momentum": options.momentum,
        "nesterov": options.nesterov,
        "weight_decay": options.weight_decay,
        "decay_mask": lambda params: optim.mask(params, options.decay_skip),
    }
    if options.name == "sgd":
        return optim.sgd(**shared)
    return optim.lars(
        flavour=options.flavour,
        trust_coefficient=options.trust_coefficient,
        epsilon=options.epsilon,
        trust_mask=lambda params: optim.mask(params, options.trust_skip),
        **shared,
    )


def steps_of(plan: Plan, mesh: Mesh, source: data.Source) -> Steps:
    """The step functions of a plan on a mesh."""
    return Steps(plan, model_of(plan), optimizer_of(plan.config), mesh, source.mean, source.std)


def _is_open(config: Config, facts: Facts) -> bool:
    if config.batch.microbatch != "auto":
        return False
    resolve(config, facts)  # other mistakes first, before anything is compiled
    return len(microbatch_candidates(config, facts)) > 1


def _fitting(config: Config, facts: Facts, programs: Callable[[int], Programs]) -> int:
    """The most workers at a time whose largest program fits every process's devices."""
    local = jax.local_devices()
    available = device_bytes(local[0], config.batch.memory_gib, len(local))
    usable = agreed_minimum(int(available * (1 - config.batch.memory_margin)))

    def needed(microbatch: int) -> int:
        candidate = programs(microbatch)
        # Images that wait on the device while a step computes.
        waiting = 2 * candidate.steps.plan.local_images * math.prod(facts.image_shape)
        try:
            _ = candidate.finish
        except jax.errors.JaxRuntimeError as error:
            # Tuning kernels while compiling allocates too: what cannot even be tuned does not fit.
            if not is_exhausted(error):
                raise
            return sys.maxsize
        return candidate.bytes["train step"] + waiting

    candidates = microbatch_candidates(config, facts)
    pixels = candidates[-1] * config.batch.images_per_worker * math.prod(facts.image_shape)
    small = 4 * pixels * _ACTIVATIONS < usable
    chosen = largest_that_fits(candidates, needed, usable, surely_small=small)
    return agreed_minimum(chosen)
