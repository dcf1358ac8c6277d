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
from jax.flatten_util import ravel_pytree

from largebatch import parallel
from largebatch.fault_tolerance.health import kept
from largebatch.models.loss import Sums
from largebatch.optim import Rates, global_norm
from largebatch.parallel import REPLICATED, SPLIT
from largebatch.parallel.transfer import Images
from largebatch.training import statistics
from largebatch.training.layer_rows import LayerRows
from largebatch.training.state import Averages, Carry, Metrics, TrainState
from largebatch.training.step_context import StepContext
from largebatch.trees import flatten_paths, unflatten_paths, with_leaves

PyTree = Any


class Steps(StepContext):
    """The step functions of a plan on a mesh."""

    @functools.cached_property
    def init(self) -> Callable[[np.int32], TrainState]:
        """Seed → state. Every device computes it; nothing is sent."""

        def init(seed: jax.Array) -> TrainState:
            params, stats = jax.tree.map(lambda x: x.astype(self.dtype), self.model.init(seed))
            ema = Averages(params, stats) if self.plan.ema_kept else None
            return TrainState(params, stats, self.update.init(params), ema)

        # It runs once. Optimizing this program takes minutes on a CPU, running it unoptimized takes
        # a second.
        shardings = parallel.placed(self.mesh, self.specs)
        return jax.jit(init, out_shardings=shardings, compiler_options=self.fast_compile_options)

    @functools.cached_property
    def to_checkpoint(self) -> Callable[[TrainState], TrainState]:
        """State → the state as checkpoints hold it, the same for all devices and updates."""

        def stored(state: TrainState) -> TrainState:
            return state._replace(
                optimizer=self.update.to_checkpoint(state.optimizer, state.params)
            )

        return jax.jit(stored, out_shardings=parallel.replicated(self.mesh))

    @functools.cached_property
    def from_checkpoint(self) -> Callable[[TrainState], TrainState]:
        """The inverse of `to_checkpoint`."""

        def restored(state: TrainState) -> TrainState:
            return state._replace(
                optimizer=self.update.from_checkpoint(state.optimizer, state.params)
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
                for size in [*sizes, totals + len(Sums._fields)]
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
            flat = flatten_paths(gradients)
            added = tuple(
                held + parallel.flatten([flat[path] for path in bucket.paths])
                for held, bucket in zip(carry.gradients, self.buckets, strict=True)
            )
            sums = carry.totals + ravel_pytree(totals)[0]
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

            def loss(handles: PyTree) -> tuple[jax.Array, PyTree]:
                hooked = self.update.hook(state.params, handles, held)
                return self.objective.loss(unflatten_paths(hooked), state.stats, images, labels)

            handles = self.update.handles(state.params)
            gradients, totals = jax.grad(loss, has_aux=True)(handles)
            if self.plan.loss_scale != 1:
                gradients = jax.tree.map(lambda g: g / self.plan.loss_scale, gradients)
            flat, unravel = ravel_pytree(totals)
            flat = flat if carry is None else flat + carry.totals[0]
            flat, summed = parallel.sum_over_devices((flat, None if flags is None else flags[0]))
            batch, sums = unravel(flat)
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
            params, optimizer = self.update.apply(gradients, state.optimizer, state.params, rates)
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
            metrics = Metrics(jnp.stack([*measured, global_norm(optimizer.report), *exchanged]))
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
    def layer_rows(self) -> LayerRows:
        """Reads the result of `layer_report`."""
        params, stats = self.model.shapes()
        report = jax.eval_shape(self.update.init, params).report
        return LayerRows(report, self.trained(params), stats)

    def evaluate(self, shape: tuple[int, int]) -> Callable[..., tuple[Sums, jax.Array | None]]:
        """(params, stats, images, labels, weights, flags) → sums over all devices.

        ``flags`` is None, or 1 for each device whose process has a request to stop.

        Args:
          shape: height and width at which the images are seen.
        """

        def evaluate(
            params: PyTree,
            stats: PyTree,
            images: Images,
            labels: jax.Array,
            weights: jax.Array,
            flags: jax.Array | None = None,
        ) -> tuple[Sums, jax.Array | None]:
            pixels = self.objective.pixels(images, shape)
            logits = self.model.apply(params, stats, pixels)
            if self.plan.config.data.evaluation_flip:
                mirrored = self.model.apply(params, stats, pixels[:, :, ::-1])
                logits = (logits + mirrored) / 2
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
