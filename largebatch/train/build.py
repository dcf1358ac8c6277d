"""From a configuration and the devices at hand to everything a run is made of."""

import dataclasses
import functools
import math
import sys
from collections.abc import Callable, Generator, Sequence

import jax
import optax
from jax.sharding import Mesh

from largebatch import data, optim, parallel
from largebatch.config import Config, Facts, Plan, microbatch_candidates, resolve
from largebatch.errors import DataError
from largebatch.models import Model
from largebatch.parallel import compiler
from largebatch.parallel.processes import agreed_minimum
from largebatch.tracking import Console
from largebatch.train.memory import device_bytes, is_exhausted, largest_that_fits
from largebatch.train.programs import Programs
from largebatch.train.steps import Steps
from largebatch.train.transfer import WAITING, OnDevices, on_devices

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

    @functools.cached_property
    def order(self) -> data.Order:
        """Which example stands at which sample position."""
        return data.Order(
            self.plan.config.run.seed,
            len(self.train_source),
            shuffle=self.plan.config.data.shuffle,
            epoch_samples=self.plan.epoch_samples,
        )

    @functools.cached_property
    def validation_views(self) -> tuple[data.View, ...]:
        """Which validation examples are seen at which shape."""
        if self.plan.config.data.rectangular:
            return data.rectangular_views(self.validation_source, self._reading)
        return data.square_views(self.validation_source)

    def local_microbatches(self, start: int, stop: int) -> Generator[data.Microbatch]:
        """This process's rows of the microbatches from sample position ``start`` to ``stop``."""
        options = self.plan.config.data
        return data.train_microbatches(
            self.train_source,
            self.order,
            data.Augment(shift=options.shift, flip=options.flip),
            start=start,
            stop=stop,
            microbatch=self.plan.microbatch_samples,
            rows=parallel.local_rows(self.mesh, self.plan.microbatch_samples),
            reading=self._reading,
            crops=options.crops,
        )

    def train_microbatches(self, start: int, stop: int) -> Generator[OnDevices]:
        """The microbatches from sample position ``start`` to ``stop``, on the devices."""
        return on_devices(self.mesh, self.local_microbatches(start, stop))

    def validation_batches(self) -> Generator[OnDevices]:
        """Every validation batch, on the devices."""
        return on_devices(
            self.mesh,
            data.evaluation_batches(
                self.validation_source,
                batch=self.plan.microbatch_samples,
                rows=parallel.local_rows(self.mesh, self.plan.microbatch_samples),
                reading=self._reading,
                crops=self.plan.config.data.crops,
                views=self.validation_views,
            ),
        )

    def prepare(self) -> None:
        """Compile all that training will call, so that no step of the run waits for it."""
        self.programs.prepare([view.shape for view in self.validation_views])

    @property
    def _reading(self) -> data.Reading:
        options = self.plan.config.data
        threads, memory = options.threads or data.cores(), options.memory_mib * 2**20
        readers = threads * max(1, options.processes)
        return data.Reading(
            threads=threads,
            processes=options.processes,
            memory_bytes=memory,
            piece_bytes=min(data.PIECE, memory // (2 * readers)),  # work for each, and more waiting
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
    facts = facts_of(
        train_source,
        validation_source,
        len(devices),
        jax.process_count(),
        crops_on_device=config.data.crops == "device",
    )

    options = compiler.program_options(
        compiler.platform_of(devices[0]),
        config.comm.allreduce,
        config.comm.xla_options,
        console.warn,
    )
    compiled: dict[int | None, Programs] = {}

    def programs(microbatch: int | None) -> Programs:
        if microbatch not in compiled:
            plan = resolve(config, facts, microbatch=microbatch)
            mesh = parallel.make_mesh(devices, plan.members)
            compiled[microbatch] = Programs(steps_of(plan, mesh, train_source), options)
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
        data.SourceOptions(
            image_size=options.image_size,
            examples=options.examples,
            classes=options.classes,
            data_dir=options.data_dir,
            crop_area=options.crop_area,
            crop_ratio=options.crop_ratio,
            evaluation_crop=options.evaluation_crop,
            resampling=options.resampling,
        ),
    )


def facts_of(
    train: data.Source,
    validation: data.Source,
    devices: int,
    processes: int,
    *,
    crops_on_device: bool = False,
) -> Facts:
    """What the plan needs to know.

    Raises:
      DataError: the two splits do not belong together.
      ConfigError: devices are to cut crops from what is no store of decoded pictures.
    """
    if train.classes != validation.classes:
        raise DataError(
            f"{train.name} has {len(train.classes)} classes for training and "
            f"{len(validation.classes)} for validation, not the same ones; prepare both alike"
        )
    stored = 0
    if crops_on_device:
        stored = data.stored_source(train).stored_size
        data.stored_source(validation)
    return Facts(
        stored_size=stored,
        train_examples=len(train),
        validation_examples=len(validation),
        classes=len(train.classes),
        image_shape=train.image_shape,
        devices=devices,
        processes=processes,
    )


def model_of(plan: Plan, platform: str | None = None) -> Model:
    """The network of a plan, in the form for ``platform``; None is that of this process."""
    model, pointwise = plan.config.model, plan.config.model.pointwise
    if pointwise == "auto":
        on_cpu = (platform or jax.default_backend()) == "cpu"
        pointwise = "matmul" if on_cpu else "convolution"
    return Model(
        name=model.name,
        classes=plan.facts.classes,
        channels=plan.facts.image_shape[-1],
        width=model.width,
        stem=model.stem,
        epsilon=plan.config.norm.epsilon,
        zero_init_last_gamma=model.zero_init_last_gamma,
        dtype=model.dtype,
        pointwise=pointwise,
        remat=model.remat,
    )


def optimizer_of(config: Config) -> optax.GradientTransformationExtraArgs:
    """The update rule of a configuration."""
    options = config.optimizer
    shared = {
        "momentum": options.momentum,
        "nesterov": options.nesterov,
        "weight_decay": options.weight_decay,
        "decay_mask": lambda params: optim.mask(params, options.decay_skip),
        "layout": options.layout,
        "total": parallel.sum_over_devices if options.update == "sharded" else None,
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
    model = model_of(plan, mesh.devices.flat[0].platform)
    return Steps(plan, model, optimizer_of(plan.config), mesh, source.mean, source.std)


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
        side = facts.stored_size
        shape = (side, side, 3) if side else facts.image_shape
        waiting = WAITING * candidate.steps.plan.local_images * math.prod(shape)
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
