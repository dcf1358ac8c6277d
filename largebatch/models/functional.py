"""The functional boundary: a network as pure functions of nested dicts of arrays.

Nothing outside this package imports Flax. Parameters and statistics are nested dicts whose
'/'-joined paths name them: ``stage1/block2/conv3/kernel``, ``stem/bn/scale``, ``stem/bn/mean``.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from largebatch.models.batch_norm import BatchMode
from largebatch.models.resnet import ResNet

PyTree = Any


@dataclasses.dataclass(frozen=True)
class Model:
    """A ResNet without arrays. Hashable, so that it may be a static argument."""

    name: str
    classes: int
    channels: int = 3
    width: int = 64
    stem: str = "conv7"
    epsilon: float = 1e-5
    gamma: float = 1.0
    last_gamma: float | None = None
    """None: as ``gamma``."""
    init_fan: str = "fan_out"
    head_deviation: float | None = None
    """None: the head is uniform in ±1/√fan-in."""
    blur_pool: bool = False
    dtype: str = "float32"
    pointwise: str = "matmul"
    remat: str = "none"

    def init(self, seed: int | jax.Array) -> tuple[PyTree, PyTree]:
        """Parameters and running statistics, float32.

        A function of the seed alone, so that every
        process computes the same without a broadcast (Yamazaki et al. 2019, arXiv 1903.12650,
        III-B).
        """
        _, params, stats = nnx.split(self._module(seed), nnx.Param, nnx.BatchStat)
        return nnx.to_pure_dict(params), nnx.to_pure_dict(stats)

    def apply(self, params: PyTree, stats: PyTree, images: jax.Array) -> jax.Array:
        """Logits (images, classes) in evaluation mode, at least float32.

        Args:
          params: parameters.
          stats: running statistics {…: {mean, var}}.
          images: normalised floats (images, height, width, channels).
        """
        logits, _ = self._call(params, stats, images, None)
        return logits

    def apply_train(
        self, params: PyTree, stats: PyTree, images: jax.Array, mode: BatchMode
    ) -> tuple[jax.Array, PyTree]:
        """Training mode: logits, and batch statistics {…: {mean, var}}, each (spans, features)."""
        return self._call(params, stats, images, mode)

    def parameter_paths(self) -> tuple[str, ...]:
        """The paths of all parameters, in the order of the forward pass."""
        paths: list[str] = []
        # Recorded while tracing: what nnx.eval_shape returns is rebuilt with sorted attributes.
        jax.eval_shape(lambda: paths.extend(_paths(self._module(0))))
        return tuple(paths)

    def _module(self, seed: int | jax.Array) -> ResNet:
        # float32 means the parameters' own type: with float64 parameters the arithmetic is float64,
        # in which tests prove equalities that rounding would hide.
        dtype = None if self.dtype == "float32" else jnp.dtype(self.dtype)
        return ResNet(
            self.name,
            classes=self.classes,
            channels=self.channels,
            width=self.width,
            stem=self.stem,
            epsilon=self.epsilon,
            gamma=self.gamma,
            last_gamma=self.gamma if self.last_gamma is None else self.last_gamma,
            init_fan=self.init_fan,
            head_deviation=self.head_deviation,
            blur_pool=self.blur_pool,
            dtype=dtype,
            pointwise=self.pointwise,
            remat=self.remat,
            rngs=nnx.Rngs(jax.random.key(seed)),
        )

    def _call(
        self, params: PyTree, stats: PyTree, images: jax.Array, mode: BatchMode | None
    ) -> tuple[jax.Array, PyTree]:
        abstract = nnx.eval_shape(lambda: self._module(0))
        module = nnx.merge(nnx.graphdef(abstract), nnx.State(params), nnx.State(stats))
        logits = module(images, mode)
        return logits, nnx.to_pure_dict(nnx.state(module, nnx.BatchStat))


def _paths(module: nnx.Module, prefix: str = "") -> Iterator[str]:
    """Parameter paths as the constructor made them, which is the order of the forward pass."""
    for name, value in vars(module).items():
        if isinstance(value, nnx.Param):
            yield prefix + name
        elif isinstance(value, nnx.Module):
            yield from _paths(value, f"{prefix}{name}/")
