"""The networks that ``model.name`` selects, and users' own modules made fit for training."""

import jax
from flax import nnx

from largebatch.config.models import MODELS
from largebatch.errors import ConfigError, one_line
from largebatch.models.batch_norm import BatchNorm

_NORMS = (nnx.BatchNorm, nnx.LayerNorm, nnx.RMSNorm, nnx.GroupNorm, nnx.InstanceNorm)
_CONVOLUTIONS = (nnx.Conv, nnx.ConvTranspose)


def made(
    name: str, *, classes: int, rngs: nnx.Rngs, dtype: jax.typing.DTypeLike | None
) -> nnx.Module:
    """Return a user's module, with `BatchNorm` in the place of each ``nnx.BatchNorm``.

    Args:
      name: ``package.module:factory``.
      classes: number of logits.
      rngs: of the initial values.
      dtype: of the arithmetic; None: that of the parameters.

    Raises:
      ConfigError: the factory cannot be imported or called, or makes something that the training
        step cannot compute.
    """
    try:
        module = MODELS[name](classes=classes, rngs=rngs, dtype=dtype)
    except ConfigError:
        raise
    except Exception as error:  # whatever the user's code raises
        raise ConfigError(
            f"model.name={name!r}: factory(classes={classes}, rngs=…, dtype=…) raised "
            f"{type(error).__name__}: {one_line(error)}; fix the factory"
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
    """Return the kind of each parameter, by its '/'-joined path, from the layer it is in.

    ``bn``: scale and bias of norm layers (batch, layer, group, instance and RMS norm). ``conv``:
    kernels of convolutions. ``bias``: every other parameter called bias, and vectors outside of
    Flax's layers, also with axes of length 1. ``fc``: the other ones.
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
    """Return the layers with batch statistics, by path."""
    return {path: m for path, m in nnx.iter_modules(module) if isinstance(m, BatchNorm)}


def _convert_batch_norms(module: nnx.Module, name: str) -> None:
    for path, layer in nnx.iter_modules(module):
        if not isinstance(layer, nnx.BatchNorm):
            continue
        where = f"model.name={name!r}: {'.'.join(map(str, path)) or 'the module'}"
        if type(layer) not in (nnx.BatchNorm, BatchNorm):
            raise ConfigError(
                f"{where} is a subclass {type(layer).__name__} of nnx.BatchNorm, whose statistics "
                "cannot be kept per worker; use nnx.BatchNorm"
            )
        if layer.axis not in (-1, (-1,), [-1]):
            raise ConfigError(
                f"{where} has axis={layer.axis}, only axis=-1 can be trained; put features last"
            )
        if layer.axis_name is not None:
            raise ConfigError(
                f"{where} has axis_name={layer.axis_name!r}; leave it out and choose who shares "
                "statistics with norm.span"
            )
        if layer.mean.ndim != 1:
            raise ConfigError(
                f"{where} holds statistics of shape {layer.mean.shape}, as of nnx.vmap or "
                "nnx.scan; keep such layers in an nnx.List"
            )
        # Constructor and attributes are the same; only the computation differs. So parameters,
        # paths and whoever else holds the layer stay as they are.
        layer.__class__ = BatchNorm


def _check_variables(module: nnx.Module, name: str) -> None:
    """Refuse what a step function of parameters, statistics and images cannot be given."""
    norms = batch_norms(module)
    parameters = 0
    for path, variable in nnx.to_flat_state(nnx.state(module)):
        where = f"model.name={name!r}: {'.'.join(map(str, path))}"
        if any("/" in str(part) for part in path):
            raise ConfigError(f"{where} has '/' in its name, which separates names; use another")
        if isinstance(variable, nnx.Param):
            parameters += 1
        elif isinstance(variable, nnx.RngState):
            raise ConfigError(
                f"{where} is a random state, as of nnx.Dropout: a step must give the same numbers "
                "on any number of devices; make the module without it"
            )
        elif not isinstance(variable, nnx.BatchStat):
            raise ConfigError(
                f"{where} is a {type(variable).__name__} outside of parameters and BatchNorm "
                "statistics; make it an nnx.Param or compute it in __call__"
            )
        elif path[:-1] not in norms:
            raise ConfigError(
                f"{where} is a statistic outside of nnx.BatchNorm, which has no average over "
                "workers; use nnx.BatchNorm or compute it in __call__"
            )
    if not parameters:
        raise ConfigError(f"model.name={name!r}: the module has no nnx.Param; nothing to train")
