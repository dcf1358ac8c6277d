"""Pure functions of a network, with parameters as nested dicts of arrays, and users' own modules.

'/'-joined paths are the paths of Flax's state, such as ``stages/0/blocks/1/conv3/kernel``,
``stem/bn/scale`` and ``stem/bn/mean``. The graph of the module is traced once per mode.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from largebatch.config.registries import DEPTHS, MODELS
from largebatch.errors import ConfigError, UserError, one_line, own_line
from largebatch.models.batch_norm import BatchMode, BatchNorm
from largebatch.models.convolution import Conv, Form
from largebatch.registry import resolve
from largebatch.trees import flatten_paths, unflatten_paths

PyTree = Any
_NORMS = (nnx.BatchNorm, nnx.LayerNorm, nnx.RMSNorm, nnx.GroupNorm, nnx.InstanceNorm)
_CONVOLUTIONS = (nnx.Conv, nnx.ConvTranspose)


@dataclasses.dataclass(frozen=True)
class Model:
    """A network without arrays; hashable, so that it can be a static argument.

    ``width`` and the following fields apply only to `ResNet`, not to users' own modules.
    """

    name: str
    """One of `MODELS`, or a user's ``package.module:factory``."""
    classes: int
    channels: int = 3
    width: int = 64
    stem: str = "conv7"
    epsilon: float = 1e-5
    gamma: float = 1.0
    last_gamma: float | None = None
    """None: ``gamma``."""
    init_fan: str = "fan_out"
    head_deviation: float | None = None
    """None: initial values of the head are uniform in ±1/√fan-in."""
    blur_pool: bool = False
    dtype: str = "float32"
    form: Form = "products"
    """Implementation of convolutions, see `Conv`."""
    remat: str = "none"

    @classmethod
    def of_options(
        cls, model: Any, norm: Any, *, classes: int, channels: int, platform: str | None = None
    ) -> "Model":
        """Return the network of a configuration for a platform.

        Args:
          model: section ``model`` of the configuration.
          norm: section ``norm`` of the configuration.
          classes: number of logits.
          channels: channels of the images.
          platform: platform of the devices, such as ``gpu``; None: that of this process.
        """
        own = {"name": model.name, "classes": classes, "channels": channels, "dtype": model.dtype}
        if model.name not in DEPTHS:
            return cls(**own)
        options = {**vars(norm), **vars(model), "init_fan": model.init}
        names = {f.name for f in dataclasses.fields(cls)} - {*own, "form"}
        chosen = {n: None if options[n] == "auto" else options[n] for n in names}
        return cls(**own, **chosen).on(platform or jax.default_backend())

    def on(self, platform: str) -> "Model":
        """Return the same network in the form that is fast on a platform, such as ``gpu``."""
        return dataclasses.replace(self, form="products" if platform == "cpu" else "blocks")

    def for_evaluation(self) -> "Model":
        """Return the same network in float32, without options that only training uses."""
        kept = ("name", "classes", "channels", "width", "stem", "epsilon", "blur_pool")
        return Model(**{name: getattr(self, name) for name in kept})

    @property
    def title(self) -> str:
        """Display name of the network."""
        return f"{self.name}, width {self.width}" if self.is_resnet else self.name

    @property
    def is_resnet(self) -> bool:
        """Whether the network is a built-in ResNet."""
        return self.name in DEPTHS

    def build(self, rngs: nnx.Rngs) -> nnx.Module:
        """Return the module with initial parameters, in training mode.

        Raises:
          ConfigError: a user's module cannot be created or trained.
        """
        # None is the dtype of the parameters. With float64 parameters the arithmetic is float64,
        # which tests use to prove equalities without rounding errors.
        dtype = None if self.dtype == "float32" else jnp.dtype(self.dtype)
        if not self.is_resnet:
            return _build_own(self.name, classes=self.classes, rngs=rngs, dtype=dtype)
        return resolve(self.name, MODELS, "model.name")(
            classes=self.classes,
            rngs=rngs,
            dtype=dtype,
            channels=self.channels,
            width=self.width,
            stem=self.stem,
            gamma=self.gamma,
            last_gamma=self.last_gamma,
            kernel_init=nnx.initializers.variance_scaling(2.0, self.init_fan, "normal"),
            head_deviation=self.head_deviation,
            remat=self.remat,
            conv=functools.partial(Conv, form=self.form, blur=self.blur_pool),
            norm=functools.partial(BatchNorm, epsilon=self.epsilon),
        )

    def init(self, seed: int | jax.Array) -> tuple[PyTree, PyTree]:
        """Return initial parameters and running statistics in float32.

        They depend only on the seed, so that each process computes the same values without a
        broadcast (Yamazaki et al. 2019, arXiv 1903.12650, III-B).
        """
        module = self.build(nnx.Rngs(jax.random.key(seed)))
        return _tree(module, nnx.Param), _tree(module, nnx.BatchStat)

    def shapes(self) -> tuple[PyTree, PyTree]:
        """Return shapes and dtypes of parameters and running statistics; cached."""
        return jax.tree.map(lambda x: x, _shapes(self))

    def apply(self, params: PyTree, stats: PyTree, images: jax.Array) -> jax.Array:
        """Return logits (images, classes) of evaluation mode, in at least float32.

        Args:
          params: parameters.
          stats: running statistics {…: {mean, var}}; {} without BatchNorm.
          images: normalized floats (images, height, width, channels).
        """
        return _wide(self.module(params, stats)(images))

    def evaluate(
        self, params: PyTree, stats: PyTree, images: jax.Array, *, flip: bool
    ) -> jax.Array:
        """Return logits as from `apply`; with ``flip``, their mean with those of mirror images."""
        logits = self.apply(params, stats, images)
        return (logits + self.apply(params, stats, images[:, :, ::-1])) / 2 if flip else logits

    def apply_train(
        self, params: PyTree, stats: PyTree, images: jax.Array, mode: BatchMode
    ) -> tuple[jax.Array, PyTree]:
        """Return logits and batch statistics of training mode.

        The statistics are {…: {mean, var}} with arrays of shape (spans, features), without the
        layers of ``mode.frozen``.

        Raises:
          ConfigError: a BatchNorm layer was not called, or not with batch statistics, or a frozen
            one was called with them.
        """
        module = self.module(params, stats, mode)
        logits = module(images)
        batch = {}
        for where, layer in _batch_norms(module).items():
            if where in mode.frozen:
                if hasattr(layer, "batch_mean"):
                    raise ConfigError(
                        f"optimizer.lr_mults: {where} of model.name={self.name!r} is frozen but "
                        "called with batch statistics; call it without use_running_average"
                    )
                continue
            if not hasattr(layer, "batch_mean"):
                raise ConfigError(
                    f"model.name={self.name!r}: {where} is not called with batch statistics; "
                    "call it without use_running_average, or remove it"
                )
            batch[f"{where}/mean"] = layer.batch_mean[...]
            batch[f"{where}/var"] = layer.batch_var[...]
        return _wide(logits), unflatten_paths(batch)

    def values_per_image(
        self, image_shape: tuple[int, ...], frozen: frozenset[str] = frozenset()
    ) -> dict[str, int]:
        """Return how many values of one image each BatchNorm layer averages, by path; traces.

        Args:
          image_shape: height, width and channels.
          frozen: paths of layers to leave out.
        """
        found: dict[str, int] = {}

        def trace(params: PyTree, stats: PyTree, images: jax.Array) -> jax.Array:
            module = self.module(params, stats, BatchMode(1, frozen=frozen))
            logits = module(images)
            for path, layer in _batch_norms(module).items():
                if hasattr(layer, "batch_values"):
                    found[path] = layer.batch_values
            return logits

        images = jax.ShapeDtypeStruct((1, *image_shape), jnp.float32)
        jax.eval_shape(trace, *self.shapes(), images)
        return found

    def module(self, params: PyTree, stats: PyTree, mode: BatchMode | None = None) -> nnx.Module:
        """Return a module with these arrays.

        Args:
          params: parameters.
          stats: running statistics.
          mode: computation of batch statistics in training mode; None: evaluation mode.
        """
        graph, paths, _, _ = _traced(self, mode)
        flat = {**flatten_paths(params), **flatten_paths(stats)}
        return nnx.merge(graph, nnx.from_flat_state({paths[p]: x for p, x in flat.items()}))

    def parameter_paths(self) -> tuple[str, ...]:
        """Return the paths of all parameters, in the order in which the constructor set them.

        For a ResNet, this is the order of the forward pass.
        """
        return _traced(self, None)[2]

    def kinds(self) -> Mapping[str, str]:
        """Return the kind of each parameter by '/'-joined path, derived from its layer.

        ``bn``: scale and bias of normalization layers (batch, layer, group, instance and RMS norm).
        ``conv``: kernels of convolutions. ``bias``: other parameters named bias, and vectors
        outside Flax layers, also with further axes of length 1. ``fc``: all other parameters.
        """
        return _traced(self, None)[3]

    def check(self, image_shape: tuple[int, ...]) -> None:
        """Trace a user's module on images of shape (height, width, channels).

        Raises:
          ConfigError: the module raises, or its logits do not have the shape (images, classes).
        """
        if not self.is_resnet:
            _check(self, tuple(image_shape))


@functools.lru_cache(maxsize=128)
def _traced(
    model: Model, mode: BatchMode | None
) -> tuple[nnx.GraphDef, Mapping[str, tuple], tuple[str, ...], Mapping[str, str]]:
    """Return the graph, Flax's path of each path, the ordered parameter paths, and their kinds.

    The function sets the mode of the layers first, so that the graph contains it.
    """
    found: list[Any] = []

    def traced() -> nnx.Module:
        module = model.build(nnx.Rngs(0))
        paths = {_joined(path): path for path, _ in nnx.to_flat_state(nnx.state(module))}
        # Recorded here, because nnx.eval_shape rebuilds the module with sorted attributes.
        kinds = _kinds(module)
        order = [path for path in _paths(module) if path in kinds]
        found[:] = paths, tuple(dict.fromkeys([*order, *kinds])), kinds
        if mode is None:
            module.eval()
        else:
            module.train()
        for path, layer in _batch_norms(module).items():
            layer.batch_mode = mode
            if mode is not None and path in mode.frozen:
                layer.eval()
        return module

    graph = nnx.graphdef(nnx.eval_shape(traced))
    return graph, *found


@functools.lru_cache(maxsize=16)
def _shapes(model: Model) -> tuple[PyTree, PyTree]:
    return jax.eval_shape(model.init, 0)


@functools.lru_cache(maxsize=16)
def _check(model: Model, image_shape: tuple[int, ...]) -> None:
    images = jax.ShapeDtypeStruct((2, *image_shape), jnp.float32)
    params, stats = model.shapes()
    try:
        logits, _ = jax.eval_shape(
            lambda *a: model.apply_train(*a, BatchMode(1)), params, stats, images
        )
        evaluated = jax.eval_shape(model.apply, params, stats, images)
    except UserError:
        raise
    except Exception as error:  # user code may raise anything
        raise ConfigError(
            f"model.name={model.name!r}: calling the module with float images {images.shape} "
            f"raised {type(error).__name__}: {one_line(error)}{own_line(error)}; fix the module, "
            "data.image_size or data.evaluation_size"
        ) from error
    for found in (logits, evaluated):
        if found.shape != (2, model.classes):
            raise ConfigError(
                f"model.name={model.name!r}: expected logits of shape (images, {model.classes}), "
                f"got {found.shape} for 2 images; return one row of logits for each image"
            )


def _build_own(
    name: str, *, classes: int, rngs: nnx.Rngs, dtype: jax.typing.DTypeLike | None
) -> nnx.Module:
    """Call a user's factory, and replace each ``nnx.BatchNorm`` of the module by `BatchNorm`.

    Args:
      name: ``package.module:factory``.
      classes: number of logits.
      rngs: random generators for the initial values.
      dtype: dtype of the arithmetic; None: that of the parameters.

    Raises:
      ConfigError: the factory cannot be imported or called, or the training step cannot use the
        module.
    """
    try:
        module = resolve(name, MODELS, "model.name")(classes=classes, rngs=rngs, dtype=dtype)
    except ConfigError:
        raise
    except Exception as error:  # user code may raise anything
        raise ConfigError(
            f"model.name={name!r}: factory(classes={classes}, rngs=…, dtype=…) raised "
            f"{type(error).__name__}: {one_line(error)}{own_line(error)}; fix the factory"
        ) from error
    if not isinstance(module, nnx.Module):
        raise ConfigError(
            f"model.name={name!r}: expected a factory that returns an nnx.Module, got "
            f"{type(module).__name__}; return the module"
        )
    _convert_batch_norms(module, name)
    _check_variables(module, name)
    return module


def _kinds(module: nnx.Module) -> dict[str, str]:
    """Return the kind of each parameter by path, see `Model.kinds`."""
    layers = dict(nnx.iter_modules(module))
    found = {}
    for path, variable in nnx.to_flat_state(nnx.state(module, nnx.Param)):
        above = path[:-1]
        while above not in layers:
            above = above[:-1]
        layer = layers[above]
        if isinstance(layer, _NORMS):
            kind = "bn"
        elif path[-1] == "bias":
            kind = "bias"
        elif isinstance(layer, _CONVOLUTIONS):
            kind = "conv"
        elif type(layer).__module__.startswith("flax.") and variable.ndim > 1:
            kind = "fc"
        else:
            kind = "fc" if sum(side > 1 for side in variable.shape) > 1 else "bias"
        found[_joined(path)] = kind
    return found


def _batch_norms(module: nnx.Module) -> dict[str, BatchNorm]:
    """Return the `BatchNorm` layers of a module by '/'-joined path."""
    layers = nnx.iter_modules(module)
    return {_joined(path): layer for path, layer in layers if isinstance(layer, BatchNorm)}


def _convert_batch_norms(module: nnx.Module, name: str) -> None:
    for path, layer in nnx.iter_modules(module):
        if not isinstance(layer, nnx.BatchNorm):
            continue
        where = f"model.name={name!r}: {'.'.join(map(str, path)) or 'the module'}"
        if type(layer) not in (nnx.BatchNorm, BatchNorm):
            raise ConfigError(
                f"{where} is a {type(layer).__name__}, a subclass of nnx.BatchNorm, which cannot "
                "have statistics per worker; use nnx.BatchNorm"
            )
        if layer.mean.ndim != 1:
            raise ConfigError(
                f"{where}: expected statistics of one axis, got the shape {layer.mean.shape}, "
                "probably from nnx.vmap or nnx.scan; use an nnx.List of layers"
            )
        # Constructor and attributes are equal and only the computation differs. Therefore
        # parameters, paths and references to the layer remain valid.
        layer.__class__ = BatchNorm


def _check_variables(module: nnx.Module, name: str) -> None:
    """Raise a ConfigError for variables that are neither parameters nor BatchNorm statistics."""
    norms = _batch_norms(module)
    parameters = 0
    for path, variable in nnx.to_flat_state(nnx.state(module)):
        where = f"model.name={name!r}: {'.'.join(map(str, path))}"
        if any("/" in str(part) for part in path):
            raise ConfigError(f"{where} has '/' in its name, which separates names; rename it")
        if isinstance(variable, nnx.Param):
            parameters += 1
        elif isinstance(variable, nnx.RngState):
            raise ConfigError(
                f"{where} is a random state (nnx.Dropout has one), but a step must not depend "
                "on the number of devices; remove it from the module"
            )
        elif not isinstance(variable, nnx.BatchStat):
            raise ConfigError(
                f"{where}: expected an nnx.Param or a BatchNorm statistic, got "
                f"{type(variable).__name__}; use an nnx.Param or compute it in __call__"
            )
        elif _joined(path[:-1]) not in norms:
            raise ConfigError(
                f"{where} is a statistic outside of nnx.BatchNorm, without an average over "
                "workers; use nnx.BatchNorm or compute it in __call__"
            )
    if not parameters:
        raise ConfigError(f"model.name={name!r}: expected parameters (nnx.Param), got none")


def _tree(module: nnx.Module, kind: type[nnx.Variable]) -> PyTree:
    """Return the arrays of a variable type as nested dicts."""
    flat = nnx.to_flat_state(nnx.state(module, kind))
    return unflatten_paths({_joined(path): v[...] for path, v in flat})


def _paths(node: Any, prefix: str = "") -> Iterator[str]:
    """Yield parameter paths in the order in which attributes were set."""
    items = enumerate(node) if isinstance(node, nnx.List) else vars(node).items()
    for name, value in items:
        if isinstance(value, nnx.Param):
            yield f"{prefix}{name}"
        elif isinstance(value, nnx.Module):
            yield from _paths(value, f"{prefix}{name}/")


def _wide(logits: jax.Array) -> jax.Array:
    return logits.astype(jnp.promote_types(logits.dtype, jnp.float32))


def _joined(path: tuple) -> str:
    return "/".join(map(str, path))
