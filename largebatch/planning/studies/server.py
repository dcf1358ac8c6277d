"""An exact parameter server: from gradients of some workers to new parameters.

A worker's step is k microbatches, each with its own BatchNorm statistics. Workers that read the
same parameters are computed together. A microbatch that is not counted has weight 0 in the loss, so
the gradient is the mean of the others, as if it had never been computed.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from largebatch.models import BatchMode, Model
from largebatch.models.loss import Sums, classification_sums
from largebatch.optim import Rates
from largebatch.training import statistics
from largebatch.training.state import TrainState

PyTree = Any


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
