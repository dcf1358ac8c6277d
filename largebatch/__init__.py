"""ResNet-50 on ImageNet at very large batch, the same mathematics on any number of devices."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:  # JAX and Flax take seconds to import
    from flax import nnx
    from ml_collections import ConfigDict

    from largebatch.config import Config
    from largebatch.tracking import Summary

__all__ = ["load", "train"]

__version__ = "0.1.0"


def train(
    config: "str | Path | ConfigDict | Config",
    *,
    workdir: str | Path,
    overrides: Mapping[str, Any] | None = None,
    resume: Literal["auto", "never", "must"] = "auto",
) -> "Summary":
    """Train in this process, as ``train.py`` does; the same call again resumes.

    Args:
      config: name or path of a recipe (``digits``, ``configs/x.py:ARGUMENT``), what a recipe's
        ``get_config()`` returns, or a checked ``Config``.
      workdir: the run directory.
      overrides: options such as ``{"run.seed": 1}``.
      resume: ``auto`` resumes from the newest checkpoint if there is one, ``never`` archives an
        earlier run, ``must`` refuses to start without a checkpoint.

    Returns:
      The summary, as in ``WORKDIR/summary.json``.

    Raises:
      UserError: an option, the data or a checkpoint is wrong; one line with the fix.
    """
    from largebatch.config import Config, adjusted, freeze
    from largebatch.config.load import load as load_recipe
    from largebatch.parallel import compile_cache
    from largebatch.training import session

    chosen = tuple((key, _text(value)) for key, value in (overrides or {}).items())
    recipe = Path(config) if isinstance(config, str | Path) else None
    if recipe is not None:
        resolved = load_recipe(recipe, chosen)
    else:
        resolved = adjusted(config if isinstance(config, Config) else freeze(config), chosen)
    compile_cache.use(resolved.run.compile_cache)
    request = session.Request(recipe, Path(workdir), chosen, resume=resume)
    return session.run(resolved, request)


def load(run: str | Path) -> "nnx.Module":
    """Load a trained network as a Flax module in evaluation mode.

    Args:
      run: a run directory, a checkpoint or a file of weights.

    Returns:
      The module: it maps float images (images, height, width, channels), normalized with the mean
      and deviation that ``largebatch.weights.read(run)`` holds, to logits (images, classes).

    Raises:
      UserError: there are no weights at ``run``, or they cannot be read.
    """
    from largebatch import weights

    found = weights.read(Path(run))
    return found.model.module(found.params, found.stats)


def _text(value: Any) -> str:
    """An option's value as it is written on the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)
