"""Creation and checks of users' own modules, and the kinds of a module's parameters."""

import jax
from flax import nnx

from largebatch.config.registries import MODELS
from largebatch.errors import ConfigError, one_line, own_line
from largebatch.models.batch_norm import BatchNorm
from largebatch.registry import resolve

_NORMS = (nnx.BatchNorm, nnx.LayerNorm, nnx.RMSNorm, nnx.GroupNorm, nnx.InstanceNorm)
_CONVOLUTIONS = (nnx.Conv, nnx.ConvTranspose)


def build_module(
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


def kinds(module: nnx.Module) -> dict[str, str]:
    """Return the kind of each parameter by '/'-joined path, derived from its layer.

    ``bn``: scale and bias of normalization layers (batch, layer, group, instance and RMS norm).
    ``conv``: kernels of convolutions. ``bias``: other parameters named bias, and vectors outside
    Flax layers, also with further axes of length 1. ``fc``: all other parameters.
    """
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
        found["/".join(map(str, path))] = kind
    return found


def batch_norms(module: nnx.Module) -> dict[tuple, BatchNorm]:
    """Return the `BatchNorm` layers of a module by path."""
    return {path: m for path, m in nnx.iter_modules(module) if isinstance(m, BatchNorm)}


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
        if layer.axis not in (-1, (-1,), [-1]):
            raise ConfigError(
                f"{where}: expected axis=-1, got axis={layer.axis}; put features last"
            )
        if layer.axis_name is not None:
            raise ConfigError(
                f"{where}: expected axis_name=None, got axis_name={layer.axis_name!r}; use "
                "norm.span to share statistics"
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
    norms = batch_norms(module)
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
        elif path[:-1] not in norms:
            raise ConfigError(
                f"{where} is a statistic outside of nnx.BatchNorm, without an average over "
                "workers; use nnx.BatchNorm or compute it in __call__"
            )
    if not parameters:
        raise ConfigError(f"model.name={name!r}: expected parameters (nnx.Param), got none")
