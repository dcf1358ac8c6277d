"""The functions of a training step: pure, jitted over the mesh, compiled once.

A step of k microbatches is k − 1 calls of ``accumulate``, which computes gradients without
collectives, and one call of ``finish``. The backward pass of ``finish`` reduces each bucket as soon
as its gradients are complete; then ``finish`` updates the parameters. With k = 1 only ``finish``
runs.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh

from largebatch import data, parallel
from largebatch.config.plan import Plan, StagePlan, microbatch_candidates
from largebatch.errors import ConfigError
from largebatch.fault_tolerance.health import kept
from largebatch.models import Model
from largebatch.models.loss import Sums
from largebatch.optim import Rates, global_norm, multipliers, with_multipliers
from largebatch.parallel import REPLICATED, SPLIT, Bucket
from largebatch.parallel.buckets import gradient_buckets
from largebatch.parallel.clusters import reduces_in_turn
from largebatch.parallel.transfer import Images
from largebatch.training import statistics
from largebatch.training.objective import Objective, layer_of
from largebatch.training.rules import optimizer_of
from largebatch.training.state import Averages, Carry, Metrics, TrainState
from largebatch.training.update import Update
from largebatch.trees import flatten_paths, unflatten_paths, with_leaves, without_paths

PyTree = Any


@dataclasses.dataclass(frozen=True)
class Steps:
    """The step functions of a plan on a mesh, and what they share."""

    plan: StagePlan
    model: Model
    optimizer: optax.GradientTransformationExtraArgs
    mesh: Mesh
    mean: tuple[float, ...]
    """Mean of each channel, in grey levels 0 to 255."""
    std: tuple[float, ...]
    dtype: str = "float32"
    """Dtype of parameters, statistics and sums; tests prove equalities in float64."""

    @property
    def has_control_flags(self) -> bool:
        """Whether each step all-reduces stop requests and numbers of microbatches left out."""
        return self.plan.facts.processes > 1 or bool(self.plan.config.batch.deadline_s)

    @property
    def computes_alone(self) -> bool:
        """Whether a step has microbatches that need no collective."""
        return self.plan.microbatches > 1 and self.plan.members == 1

    @property
    def why_no_noise(self) -> str:
        """Why a step cannot measure the noise scale, with a remedy; empty if it does.

        A single microbatch has no other one to differ from, and a part of a BatchNorm span no
        gradient of its own. ``loss.l2`` changes the norm of the mean gradient alone.
        """
        plan = self.plan
        if plan.config.loss.l2:
            return "loss.l2 changes the norm of the gradient; use loss.l2=0"
        if plan.members > 1:
            return f"norm.span={plan.config.norm.span} covers several devices; use a smaller one"
        if self.mesh.size * plan.microbatches > 1:
            return ""
        fewer = [m for m in microbatch_candidates(plan.config, plan.facts) if m < plan.microbatch]
        if fewer:
            return f"a step is one microbatch; use batch.microbatch={max(fewer)}"
        remedy = "at least 2 workers" if plan.span == 1 else "a smaller norm.span"
        return f"a step is one microbatch; use {remedy}"

    @property
    def measures_noise(self) -> bool:
        """Whether a step also computes the norm of each microbatch's gradient."""
        return not self.why_no_noise

    @property
    def fast_compile_options(self) -> dict[str, int] | None:
        """XLA options that skip CPU optimization, for large programs that run rarely."""
        on_cpu = self.mesh.devices.flat[0].platform == "cpu"
        return {"xla_backend_optimization_level": 0} if on_cpu else None

    @functools.cached_property
    def own_devices(self) -> int:
        """Number of devices of this process; cached, since a pod has thousands of devices."""
        start, stop = parallel.local_rows(self.mesh, self.mesh.size)
        return stop - start

    @functools.cached_property
    def buckets(self) -> tuple[Bucket, ...]:
        """The static gradient buckets."""
        return gradient_buckets(
            self.model,
            self.plan.config.comm,
            tuple(self.mesh.devices.flat),
            images=self.plan.local_images,
            image_shape=self.plan.facts.image_shape,
            frozen=self.frozen,
        )

    @functools.cached_property
    def multipliers(self) -> dict[str, float]:
        """Learning rate factor of each parameter; 0 for statistics that stay (`frozen`)."""
        params, stats = map(flatten_paths, self.model.shapes())
        return multipliers(self.plan.config.optimizer.lr_mults, params, stats)

    @functools.cached_property
    def frozen(self) -> frozenset[str]:
        """Paths of parameters and of BatchNorm statistics that training does not change.

        A frozen layer normalizes with its statistics, like ``trainable = False`` in Keras.
        """
        zero = {path for path, factor in self.multipliers.items() if factor == 0}
        stats = flatten_paths(self.model.shapes()[1])
        layers = {layer_of(path) for path in zero if path in stats}
        return frozenset(zero | {path for path in stats if layer_of(path) in layers})

    def trained(self, tree: PyTree) -> PyTree:
        """Return parameters or statistics without those that are frozen."""
        return without_paths(tree, self.frozen)

    @functools.cached_property
    def objective(self) -> Objective:
        """The function that is differentiated."""
        return Objective(self.plan, self.model, self.mean, self.std, self.dtype, self.frozen)

    @functools.cached_property
    def update(self) -> Update:
        """The update of the trained parameters: replicated or sharded.

        Raises:
          ConfigError: a sharded update on TPUs.
        """
        sharded = self.plan.config.optimizer.update == "sharded"
        if sharded and self.mesh.devices.flat[0].platform == "tpu":
            raise ConfigError(
                "optimizer.update: expected replicated on TPUs, got 'sharded'; their compiler sums "
                "whole buckets on every device and gathers each parameter after backward; use "
                "optimizer.update=replicated"
            )
        rule = self.optimizer
        if any(factor not in (0, 1) for factor in self.multipliers.values()):
            rule = with_multipliers(rule, self.multipliers)
        return Update(
            rule,
            self.buckets,
            self.plan.config.comm.wire,
            parts=self.mesh.size if sharded else 0,
            in_turn=reduces_in_turn(self.mesh.devices.flat),
        )

    @functools.cached_property
    def specs(self) -> TrainState:
        """Partition specs of the state, a prefix of its tree."""
        params = self.trained(self.model.shapes()[0])
        return TrainState(REPLICATED, REPLICATED, self.update.specs(params), REPLICATED)

    @functools.cached_property
    def init(self) -> Callable[[np.int32], TrainState]:
        """Seed → state. Every device computes it; nothing is sent."""

        def init(seed: jax.Array) -> TrainState:
            params, stats = jax.tree.map(lambda x: x.astype(self.dtype), self.model.init(seed))
            ema = Averages(params, stats) if self.plan.ema_kept else None
            return TrainState(params, stats, self.update.init(self.trained(params)), ema)

        # It runs once. Optimizing this program takes minutes on a CPU, running it unoptimized takes
        # a second.
        shardings = parallel.placed(self.mesh, self.specs)
        return jax.jit(init, out_shardings=shardings, compiler_options=self.fast_compile_options)

    @functools.cached_property
    def to_checkpoint(self) -> Callable[[TrainState], TrainState]:
        """State → the state as checkpoints hold it, the same for all devices and updates."""

        def stored(state: TrainState) -> TrainState:
            return state._replace(
                optimizer=self.update.to_checkpoint(state.optimizer, self.trained(state.params))
            )

        return jax.jit(stored, out_shardings=parallel.replicated(self.mesh))

    @functools.cached_property
    def from_checkpoint(self) -> Callable[[TrainState], TrainState]:
        """The inverse of `to_checkpoint`."""

        def restored(state: TrainState) -> TrainState:
            return state._replace(
                optimizer=self.update.from_checkpoint(state.optimizer, self.trained(state.params))
            )

        return jax.jit(restored, out_shardings=parallel.placed(self.mesh, self.specs))

    @functools.cached_property
    def finite(self) -> Callable[[TrainState], jax.Array]:
        """State → whether all its numbers are finite."""

        def finite(state: TrainState) -> jax.Array:
            return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(state)]))

        return jax.jit(
            finite,
            out_shardings=parallel.replicated(self.mesh),
            compiler_options=self.fast_compile_options,
        )

    @functools.cached_property
    def empty_carry(self) -> Callable[[], Carry]:
        """A carry of zeros."""
        stats = self.trained(self.model.shapes()[1])
        totals = sum(x.size for x in jax.tree.leaves(stats))

        def empty() -> Carry:
            sizes = [bucket.size for bucket in self.buckets]
            *gradients, sums = (
                jnp.zeros((self.mesh.size, size), self.dtype)
                for size in [*sizes, self.measures_noise + totals + len(Sums._fields)]
            )
            return Carry(tuple(gradients), sums)

        return jax.jit(empty, out_shardings=parallel.split(self.mesh))

    @functools.cached_property
    def accumulate(
        self,
    ) -> Callable[[PyTree, PyTree, Carry, Images, jax.Array], tuple[Carry, jax.Array]]:
        """(params, stats, carry, images, labels) → (carry with this microbatch added, done).

        ``done`` holds the number of images so far of each device, (devices,). It can be waited for,
        unlike the carry, which the next call donates.
        """

        def accumulate(
            params: PyTree, stats: PyTree, carry: Carry, images: Images, labels: jax.Array
        ) -> tuple[Carry, jax.Array]:
            gradients, totals = self.objective.gradients(params, stats, images, labels)
            by_path = flatten_paths(gradients)
            flat = [
                parallel.flatten([by_path[path] for path in bucket.paths])
                for bucket in self.buckets
            ]
            added = tuple(held + new for held, new in zip(carry.gradients, flat, strict=True))
            square = _squared_norm(flat) if self.measures_noise else None
            sums = carry.totals + ravel_pytree((square, totals))[0]
            return Carry(added, sums), sums[:, -1]

        mapped = parallel.map_over(
            self.mesh, accumulate, (REPLICATED, REPLICATED, SPLIT, SPLIT, SPLIT), (SPLIT, SPLIT)
        )
        return jax.jit(mapped, donate_argnums=2)

    @functools.cached_property
    def finish(self) -> Callable[..., tuple[TrainState, Metrics]]:
        """(state, carry, images, labels, numbers, flags) → (state, metrics): the last microbatch.

        ``numbers`` are the fields of `Rates` in one array, since each array costs the host time.
        ``carry`` is None if a step is one microbatch. ``flags`` is None, or a row for each device
        if there are several processes or a deadline (`has_control_flags`): whether its process has
        a request to stop, and the number of microbatches it has left out of ``carry``. Gradients
        and statistics are then means over what was computed. If nothing was left out, they are
        bitwise identical to those without flags.
        """

        def finish(
            state: TrainState,
            carry: Carry | None,
            images: Images,
            labels: jax.Array,
            numbers: jax.Array,
            flags: jax.Array | None = None,
        ) -> tuple[TrainState, Metrics]:
            rates = Rates(*numbers)
            held = None if carry is None else [g[0] for g in carry.gradients]
            trained = self.trained(state.params)

            def loss(handles: PyTree, square: jax.Array | None) -> tuple[jax.Array, PyTree]:
                hooked = self.update.hook(trained, handles, held, square)
                params = unflatten_paths(flatten_paths(state.params) | hooked)
                return self.objective.loss(params, state.stats, images, labels)

            handles = self.update.handles(trained)
            zero = jnp.zeros((), self.dtype) if self.measures_noise else None
            (gradients, square), totals = jax.grad(loss, argnums=(0, 1), has_aux=True)(
                handles, zero
            )
            if self.plan.loss_scale != 1:
                gradients = jax.tree.map(lambda g: g / self.plan.loss_scale, gradients)
            flat, unravel = ravel_pytree((square, totals))
            flat = flat if carry is None else flat + carry.totals[0]
            flat, summed = parallel.sum_over_devices((flat, None if flags is None else flags[0]))
            square, (batch, sums) = unravel(flat)
            microbatches = self.mesh.size * self.plan.microbatches
            if self.plan.config.batch.deadline_s:
                _, left_out = summed
                # Without a branch of its own the update would be compiled together with the factor
                # and round differently, also where it is 1.
                weight = microbatches / (microbatches - left_out)
                gradients = jax.lax.cond(
                    left_out > 0,
                    lambda tree: jax.tree.map(lambda g: g * weight, tree),
                    lambda tree: tree,
                    gradients,
                )
                microbatches = microbatches - left_out
            small_square = jnp.zeros((), self.dtype)
            if self.measures_noise:
                # Each gradient is that of a microbatch's share of the loss.
                share = self.plan.loss_scale / (self.mesh.size * self.plan.microbatches)
                small_square = square / share**2 / microbatches
            params, optimizer = self.update.apply(gradients, state.optimizer, trained, rates)
            params = with_leaves(state.params, params)
            spans = microbatches * self.plan.spans_per_microbatch
            stats = statistics.moving_average(
                self.trained(state.stats),
                jax.tree.map(lambda x: x / spans, batch),
                statistics.share_kept(rates.step, self.plan.norm_momentum),
            )
            stats = with_leaves(state.stats, stats)
            ema = None
            if state.ema is not None:
                kept_share = statistics.share_kept(rates.step, self.plan.ema_kept)
                old, now = (
                    Averages(*map(self.trained, each)) for each in (state.ema, (params, stats))
                )
                averaged = statistics.moving_average(old, now, kept_share)
                ema = Averages(*map(with_leaves, state.ema, averaged))
            new = TrainState(params, stats, optimizer, ema)
            measured = [sums.loss / sums.count, sums.top1 / sums.count, sums.top5 / sums.count]
            exchanged = () if summed is None else summed
            norm = global_norm(optimizer.report)
            metrics = Metrics(jnp.stack([*measured, norm, small_square, *exchanged]))
            if self.plan.config.health.policy == "skip":
                new = kept(state, new, metrics.loss, metrics.gradient_norm)
            return new, metrics

        mapped = parallel.map_over(
            self.mesh,
            finish,
            (self.specs, SPLIT, SPLIT, SPLIT, REPLICATED, SPLIT),
            (self.specs, REPLICATED),
        )
        return jax.jit(mapped, donate_argnums=0)

    @functools.cached_property
    def copy(self) -> Callable[[TrainState], TrainState]:
        """State → a copy on the devices, since ``finish`` donates its argument."""
        return jax.jit(
            lambda state: jax.tree.map(jnp.copy, state),
            out_shardings=parallel.placed(self.mesh, self.specs),
            compiler_options=self.fast_compile_options,
        )

    @functools.cached_property
    def difference(self) -> Callable[[PyTree, PyTree], jax.Array]:
        """Two trees → (devices, 2, arrays) float32: differing values, largest distance.

        The trees are {field of the state: …, "metrics": …}. Each device compares its own copies.
        """

        def difference(first: PyTree, second: PyTree) -> jax.Array:
            pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
            counts, distances = zip(*(_differing(a, b) for a, b in pairs), strict=True)
            return jnp.stack([jnp.stack(counts).astype(jnp.float32), jnp.stack(distances)])[None]

        specs = {**self.specs._asdict(), "metrics": REPLICATED}
        mapped = parallel.map_over(self.mesh, difference, (specs, specs), SPLIT)
        return jax.jit(mapped, compiler_options=self.fast_compile_options)

    @functools.cached_property
    def layer_report(self) -> Callable[[PyTree, PyTree], jax.Array]:
        """(the optimizer's report, stats) → all their numbers as one array.

        The state may be donated to the next step while the copy is on its way to the host.
        """
        return jax.jit(
            lambda report, stats: ravel_pytree((report, stats))[0],
            out_shardings=parallel.replicated(self.mesh),
            compiler_options=self.fast_compile_options,
        )

    @functools.cached_property
    def probe(self) -> Callable[[PyTree, PyTree, Images, jax.Array], jax.Array]:
        """(params, stats, images, labels) → (devices,) float32: a microbatch without collectives.

        Forward and backward as in a step, so that the time depends on this host alone. Where a span
        covers several devices, BatchNorm sees only this device's part. The result is the squared
        norm of the gradients of each device, which needs all of them and stores none.
        """
        # With one member a span needs no sum over devices.
        plan = dataclasses.replace(self.plan, members=1)
        alone = dataclasses.replace(self.objective, plan=plan)

        def probe(params: PyTree, stats: PyTree, images: Images, labels: jax.Array) -> jax.Array:
            gradients, _ = alone.gradients(params, stats, images, labels)
            return _squared_norm(gradients).astype(jnp.float32)[None]

        return jax.jit(
            parallel.map_over(self.mesh, probe, (REPLICATED, REPLICATED, SPLIT, SPLIT), SPLIT)
        )

    @functools.cached_property
    def evaluate(self) -> Callable[..., tuple[Sums, jax.Array | None]]:
        """(params, stats, images, labels, weights, flags) → sums over all devices.

        ``flags`` is None, or 1 for each device whose process has a request to stop.
        """

        def evaluate(
            params: PyTree,
            stats: PyTree,
            images: jax.Array,
            labels: jax.Array,
            weights: jax.Array,
            flags: jax.Array | None = None,
        ) -> tuple[Sums, jax.Array | None]:
            pixels = self.objective.pixels(images)
            flip = self.plan.config.data.evaluation_flip
            logits = self.model.evaluate(params, stats, pixels, flip=flip)
            sums = self.objective.sums(logits, labels, weights)
            return parallel.sum_over_devices((sums, None if flags is None else flags[0]))

        mapped = parallel.map_over(
            self.mesh, evaluate, (REPLICATED, REPLICATED, SPLIT, SPLIT, SPLIT, SPLIT), REPLICATED
        )
        return jax.jit(mapped)

    @functools.cached_property
    def measure_statistics(self) -> Callable[[PyTree, PyTree, Images], PyTree]:
        """(params, stats, images) → mean batch statistics over all spans, with squared means."""
        mode = dataclasses.replace(self.objective.mode, unbiased=False)

        def measure(params: PyTree, stats: PyTree, images: Images) -> PyTree:
            _, batch = self.model.apply_train(params, stats, self.objective.pixels(images), mode)
            sums = statistics.sum_over_spans(statistics.with_squared_means(batch))
            spans = self.mesh.size * self.plan.spans_per_microbatch
            return jax.tree.map(lambda x: x / spans, parallel.sum_over_devices(sums))

        mapped = parallel.map_over(self.mesh, measure, (REPLICATED, REPLICATED, SPLIT), REPLICATED)
        return jax.jit(mapped)


def _squared_norm(tree: PyTree) -> jax.Array:
    """Return the sum of the squares of all numbers."""
    return sum(jnp.sum(jnp.square(x)) for x in jax.tree.leaves(tree))


def _differing(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the number of values with different bits, and their largest absolute difference."""
    differs = _bits(a) != _bits(b)
    # Values with the same bits may be NaN, so only those that differ enter the distance.
    distance = jnp.where(differs, jnp.abs(a.astype(jnp.float32) - b.astype(jnp.float32)), 0)
    return jnp.sum(differs), jnp.max(distance, initial=0)


def _bits(x: jax.Array) -> jax.Array:
    """Return the bits as integers, so that NaN equals NaN and −0 differs from 0."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x
    return jax.lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}")


def steps_of(plan: StagePlan, mesh: Mesh, source: data.Dataset) -> Steps:
    """Return the step functions of a plan on a mesh; ``source`` has the mean and deviation."""
    model = model_of(plan, mesh.devices.flat[0].platform)
    rule = optimizer_of(plan.config, model.kinds())
    steps = Steps(plan, model, rule, mesh, source.mean, source.std)
    _ = steps.multipliers  # its errors precede compilation
    return steps


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
