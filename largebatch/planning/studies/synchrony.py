"""Training of one small model with barriers or asynchronous updates, emulated on one device.

Each gradient is computed at the parameters that its worker would have read, of the examples that it
would have seen, and applied in the order of arrival. Nothing depends on the speed of this machine:
seconds are those of the sampled worker times.

A worker's step is k microbatches, each with its own BatchNorm statistics. Workers that read the
same parameters are computed together. A microbatch that is not counted has weight 0 in the loss, so
the gradient is the mean of the others, as if it had never been computed.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from largebatch import data, optim
from largebatch.errors import ConfigError
from largebatch.models import BatchMode, Model
from largebatch.models.loss import Sums, classification_sums
from largebatch.optim import Rates, RateSchedule, Schedule
from largebatch.planning.arrivals import LogNormal, Tailed, Workers
from largebatch.planning.stragglers import (
    Arrivals,
    Barrier,
    Policy,
    asynchronous,
    barrier,
    draws,
)
from largebatch.training import statistics
from largebatch.training.state import TrainState

PyTree = Any

MEDIAN_S = math.exp(3) / 1000
TIMES = Tailed(LogNormal(math.log(MEDIAN_S), 0.1), share=0.04, delay=MEDIAN_S)
"""μ = 3, σ = 0.1 in milliseconds (median 20 ms), and a tail of our choice: one step of a worker in
25 takes another 20 ms on average."""


@dataclasses.dataclass(frozen=True)
class Asynchronous:
    """Every gradient is an update of its own."""

    workers: int
    momentum: float = 0.9
    """Momentum of the velocity. The learning rate is multiplied by (1 − momentum) / (1 − the
    setup's), so that every gradient has the same total weight."""

    def __post_init__(self) -> None:
        if self.workers < 1 or not 0 <= self.momentum < 1:
            raise ConfigError(
                "asynchronous: expected workers ≥ 1 and 0 ≤ momentum < 1, got "
                f"{self.workers} and {self.momentum}"
            )


@dataclasses.dataclass(frozen=True)
class Setup:
    """The options that all runs of a study share.

    A full step is ``workers`` × ``microbatches`` × ``images``. An asynchronous update, of one
    worker's images, has that share of its learning rate, and of the logarithm of its BatchNorm
    momentum: linear scaling.
    """

    workers: int = 16
    """W of synchronous policies, without backup workers."""
    microbatches: int = 4
    """k of a worker's step, each with its own BatchNorm statistics."""
    images: int = 8
    """Images of a microbatch."""
    steps: int = 96
    """Synchronous updates; asynchronous runs use as many images."""
    peak: float = 0.4
    """Learning rate of a full step after the warm-up, which decays linearly to 0."""
    warmup: float = 0.1
    """Share of the training."""
    momentum: float = 0.9
    weight_decay: float = 5e-4
    label_smoothing: float = 0.1
    norm_momentum: float = 0.9
    shift: int = 1
    """Pixels of random translation."""
    width: int = 4
    """Channels of the first stage of ResNet-18."""
    evaluations: int = 12
    times: Workers = TIMES

    @property
    def worker_images(self) -> int:
        """Images of a worker's step."""
        return self.microbatches * self.images

    @property
    def batch(self) -> int:
        """Images of a full step."""
        return self.workers * self.worker_images


@dataclasses.dataclass(frozen=True, eq=False)
class Curve:
    """The course of a run; arrays float64 (evaluations,) unless stated."""

    updates: np.ndarray
    images: np.ndarray
    """Counted in updates."""
    computed: np.ndarray
    """Images of all computed gradients, counted or not."""
    seconds: np.ndarray
    """Simulated seconds."""
    top1: np.ndarray
    loss: np.ndarray
    staleness: np.ndarray
    """int64 (updates,) of asynchronous runs; else empty."""


@dataclasses.dataclass(frozen=True)
class Server:
    """The programs of one model and update rule, on one device."""

    model: Model
    rule: optax.GradientTransformationExtraArgs
    mean: tuple[float, ...]
    """Mean of each channel of the images, in grey levels 0 to 255."""
    std: tuple[float, ...]
    label_smoothing: float = 0.0
    dtype: str = "float32"
    """Type of parameters, statistics and sums."""

    @functools.cached_property
    def init(self) -> Callable[[int], TrainState]:
        """Seed → state."""

        def init(seed: jax.Array) -> TrainState:
            params, stats = jax.tree.map(lambda x: x.astype(self.dtype), self.model.init(seed))
            return TrainState(params, stats, self.rule.init(params))

        # Optimising the code of so many random streams takes longer than running it.
        on_cpu = jax.default_backend() == "cpu"
        options = {"xla_backend_optimization_level": 0} if on_cpu else None
        return jax.jit(init, compiler_options=options)

    @functools.cached_property
    def update(self) -> Callable[..., TrainState]:
        """(state, read, images, labels, counted, rates, kept) → state.

        ``read`` are the parameters that the workers had read; ``images`` uint8 (M, n, height,
        width, channels) and ``labels`` (M, n) of M microbatches; ``counted`` (M,) 1 or 0, not all
        of them 0; ``rates`` scalars; ``kept`` the share of the running statistics that is kept.
        """

        def update(
            state: TrainState,
            read: PyTree,
            images: jax.Array,
            labels: jax.Array,
            counted: jax.Array,
            rates: Rates,
            kept: jax.Array,
        ) -> TrainState:
            microbatches, size = labels.shape
            pixels = self._pixels(images.reshape(-1, *images.shape[2:]))
            share = counted / counted.sum()

            def loss(params: PyTree) -> tuple[jax.Array, PyTree]:
                mode = BatchMode(spans=microbatches)
                logits, batch = self.model.apply_train(params, state.stats, pixels, mode)
                weights = jnp.repeat(share / size, size)
                sums = classification_sums(
                    logits, labels.reshape(-1), weights, self.label_smoothing
                )
                return sums.loss, batch

            gradients, batch = jax.grad(loss, has_aux=True)(read)
            stats = jax.tree.map(lambda x: jnp.tensordot(share, x, 1), batch)
            steps, optimizer = self.rule.update(
                gradients, state.optimizer, state.params, rates=rates
            )
            return TrainState(
                optax.apply_updates(state.params, steps),
                statistics.moving_average(state.stats, stats, kept),
                optimizer,
            )

        return jax.jit(update)

    @functools.cached_property
    def evaluate(self) -> Callable[[TrainState, jax.Array, jax.Array], Sums]:
        """(state, images, labels) → sums over all images, without label smoothing."""

        def evaluate(state: TrainState, images: jax.Array, labels: jax.Array) -> Sums:
            logits = self.model.apply(state.params, state.stats, self._pixels(images))
            return classification_sums(logits, labels, jnp.ones(labels.shape, logits.dtype), 0.0)

        return jax.jit(evaluate)

    def _pixels(self, images: jax.Array) -> jax.Array:
        mean, std = (jnp.asarray(x, self.dtype) for x in (self.mean, self.std))
        return (images.astype(self.dtype) - mean) / std


@dataclasses.dataclass(frozen=True)
class Study:
    """The data and compiled programs of a setup, for any policy and seed."""

    setup: Setup
    server: Server
    train: data.Dataset
    validation: data.Dataset

    def trained(self, policy: Policy | Asynchronous, seed: int) -> tuple[TrainState, Curve]:
        """Train once; parameters, data order and worker times are functions of the seed."""
        if isinstance(policy, Asynchronous):
            updates = self.setup.steps * self.setup.workers
            arrived = asynchronous(self.setup.times, policy.workers, updates, seed)
            return self._asynchronous(policy, arrived, seed)
        machines = policy.machines(self.setup.workers)
        times = draws(self.setup.times, machines, self.setup.steps, seed)
        return self._barrier(barrier(times, policy, self.setup.microbatches), seed)

    def rates(self, images: int, update: int, share: float, momentum: float) -> Rates:
        """Return the rates of an update.

        Args:
          images: images used before it.
          update: its number, from 1.
          share: its images over those of a full step.
          momentum: of the velocity.
        """
        setup = self.setup
        schedule = Schedule(
            setup.peak,
            warmup=round(setup.warmup * setup.steps * setup.batch),
            decay_end=setup.steps * setup.batch,
            decay="linear",
        )
        rates = RateSchedule(schedule, setup.weight_decay, momentum=momentum)
        scale = share * (1 - momentum) / (1 - setup.momentum)
        found = rates.at(images, None, update, scale=scale)
        return Rates(*(np.asarray(x, self.server.dtype) for x in found))

    def _barrier(self, found: Barrier, seed: int) -> tuple[TrainState, Curve]:
        setup, state = self.setup, self.server.init(seed)
        machines, kept = found.done.shape[1], np.asarray(setup.norm_momentum, self.server.dtype)
        due, rows = self._due(setup.steps), []
        for step, done in enumerate(found.done):
            # Compute the images of W workers; those that are counted come first.
            computed = np.sort(np.argsort(done == 0, kind="stable")[: setup.workers])
            images, labels = self._parts(step * machines + computed, seed)
            counted = np.arange(setup.microbatches) < done[computed, None]
            rates = self.rates(step * setup.batch, step + 1, 1.0, setup.momentum)
            state = self.server.update(
                state,
                state.params,
                images,
                labels,
                counted.ravel().astype(self.server.dtype),
                rates,
                kept,
            )
            if step + 1 in due:
                used = found.done[: step + 1].sum() * setup.images
                all_ = (step + 1) * machines * setup.worker_images
                rows.append((step + 1, used, all_, found.ends[step], *self.evaluate(state)))
        return state, _curve(rows, np.zeros(0, np.int64))

    def _asynchronous(
        self, policy: Asynchronous, found: Arrivals, seed: int
    ) -> tuple[TrainState, Curve]:
        setup, state = self.setup, self.server.init(seed)
        held = [state.params] * policy.workers
        share = setup.worker_images / setup.batch
        kept = np.asarray(setup.norm_momentum**share, self.server.dtype)
        counted = np.ones(setup.microbatches, self.server.dtype)
        due, rows = self._due(len(found.ends)), []
        for update, (worker, part) in enumerate(zip(found.worker, found.part, strict=True)):
            images, labels = self._parts(part[None], seed)
            seen = update * setup.worker_images
            rates = self.rates(seen, update + 1, share, policy.momentum)
            state = self.server.update(state, held[worker], images, labels, counted, rates, kept)
            held[worker] = state.params
            if update + 1 in due:
                seen += setup.worker_images
                rows.append((update + 1, seen, seen, found.ends[update], *self.evaluate(state)))
        return state, _curve(rows, found.staleness)

    def evaluate(self, state: TrainState) -> tuple[float, float]:
        """Return top-1 as a fraction and the mean loss over the validation split."""
        sums = jax.device_get(self.server.evaluate(state, *self._validation))
        return float(sums.top1) / float(sums.count), float(sums.loss) / float(sums.count)

    def _due(self, updates: int) -> set[int]:
        """Return the updates after which a run is evaluated."""
        count = self.setup.evaluations
        return {round(updates * (i + 1) / count) for i in range(count)}

    @functools.cached_property
    def _validation(self) -> tuple[np.ndarray, np.ndarray]:
        return self.validation.source.read(np.arange(len(self.validation)))

    def _parts(self, parts: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the microbatches of consecutive parts of the data, each a worker's step.

        Shapes: uint8 (parts · k, n, height, width, channels) and int32 (parts · k, n).
        """
        setup = self.setup
        order = data.Order(seed, len(self.train))
        positions = parts[:, None] * setup.worker_images + np.arange(setup.worker_images)
        ids, epochs = order.ids(positions.ravel()), order.epochs(positions.ravel())
        images, labels = self.train.source.read(ids)
        augment = data.Augment(shift=setup.shift)
        images = augment(images, seed=seed, epochs=epochs, ids=ids)
        return images.reshape(-1, setup.images, *images.shape[1:]), labels.reshape(-1, setup.images)


def open_study(setup: Setup, *, dtype: str = "float32") -> Study:
    """Open the study on scikit-learn's digits with SGD."""
    train, validation = (data.open_dataset("digits", split) for split in ("train", "validation"))
    model = Model("resnet18", len(train.classes), 1, width=setup.width, stem="small")
    rule = optim.sgd(decay_mask=optim.skipping(("bn", "bias"), model.kinds()))
    server = Server(model, rule, train.mean, train.std, setup.label_smoothing, dtype)
    return Study(setup, server, train, validation)


def _curve(rows: list[tuple[float, ...]], staleness: np.ndarray) -> Curve:
    return Curve(*np.asarray(rows, np.float64).T, staleness)
