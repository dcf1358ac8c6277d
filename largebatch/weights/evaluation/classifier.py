"""Some weights on the devices, with the program that makes of each image what is kept of it."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from largebatch import parallel
from largebatch.data.device_crops import crop_and_resize
from largebatch.models import Model
from largebatch.parallel.transfer import Images, OnDevices
from largebatch.weights import Weights
from largebatch.weights.evaluation.outcomes import TOP, Kept, kept_of
from largebatch.weights.evaluation.settings import Settings

PyTree = Any


class Classifier:
    """A network in evaluation mode, computed as evaluation during training does.

    Attributes:
        mesh: Its devices.
    """

    def __init__(
        self,
        weights: Weights,
        settings: Settings,
        mesh: Mesh,
        outputs: np.ndarray,
        *,
        only: bool = False,
        most: int = TOP,
    ) -> None:
        """Sends the weights to the devices.

        Args:
            weights: What to compute with.
            settings: How images are prepared.
            mesh: Devices, all of this process.
            outputs: int32 (labels,): the network's output that each label of the data is.
            only: Whether to look at these outputs alone, which then are classes 0, 1, …
            most: How many of the most probable classes are kept.
        """
        self.mesh = mesh
        self._settings = settings
        self._most = most
        self._model = model_for(weights.model, settings.dtype, mesh.devices.flat[0].platform)
        everywhere = parallel.replicated(mesh)
        self._trees = jax.device_put((weights.params, weights.stats), everywhere)
        columns = outputs if only else np.arange(weights.model.classes, dtype=np.int32)
        places = np.arange(len(outputs), dtype=np.int32) if only else outputs.astype(np.int32)
        self._columns, self._places = jax.device_put((columns, places), everywhere)

    def __call__(self, batch: OnDevices) -> Kept:
        """What is kept of each row, padding included, on the devices; compiled once a shape."""
        arguments = (*self._trees, self._columns, self._places, batch.images, batch.labels)
        return self._kept(*arguments, shape=batch.shape)

    def logits(self, images: np.ndarray) -> np.ndarray:
        """Logits of images as they are fed.

        Args:
            images: uint8 (n, height, width, channels); n a multiple of the devices.

        Returns:
            float32 (n, classes), of all outputs.
        """
        sent = parallel.from_local(self.mesh, images)
        return np.asarray(self._logits(*self._trees, sent))

    @functools.cached_property
    def _kept(self) -> Callable[..., Kept]:
        def kept(
            params: PyTree,
            stats: PyTree,
            columns: jax.Array,
            places: jax.Array,
            images: Images,
            labels: jax.Array,
            shape: tuple[int, int],
        ) -> Kept:
            logits = self._compute(params, stats, images, shape)
            smoothing = self._settings.label_smoothing
            return kept_of(logits[:, columns], places[labels], smoothing, self._most)

        return jax.jit(self._split(kept, 4, 2), static_argnames="shape")

    @functools.cached_property
    def _logits(self) -> Callable[..., jax.Array]:
        return jax.jit(self._split(self._compute, 2, 1))

    def _split(self, function: Callable, same: int, split: int) -> Callable:
        """Run by every device on its own rows: of the last ``split`` arguments."""
        specs = (parallel.REPLICATED,) * same + (parallel.SPLIT,) * split

        def run(*arguments: Any, **static: Any) -> Any:
            part = functools.partial(function, **static)
            return parallel.map_over(self.mesh, part, specs, parallel.SPLIT)(*arguments)

        return run

    def _compute(
        self,
        params: PyTree,
        stats: PyTree,
        images: Images,
        shape: tuple[int, int] | None = None,
    ) -> jax.Array:
        settings = self._settings
        if isinstance(images, tuple):
            pictures, crops = images
            flips = crops[:, 4] != 0
            resampling = settings.options.resampling
            images = crop_and_resize(pictures, crops[:, :4], flips, shape, resampling=resampling)
        mean, std = (jnp.asarray(x, jnp.float32) for x in (settings.mean, settings.std))
        pixels = (images.astype(jnp.float32) - mean) / std
        logits = self._model.apply(params, stats, pixels)
        if settings.flip:
            logits = (logits + self._model.apply(params, stats, pixels[:, :, ::-1])) / 2
        return logits


def model_for(model: Model, dtype: str, platform: str) -> Model:
    """The same network in an arithmetic, in the form that suits a platform."""
    pointwise = "matmul" if platform == "cpu" else "convolution"
    return dataclasses.replace(model, dtype=dtype, pointwise=pointwise)
