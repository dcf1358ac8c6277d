"""Large-batch training of ResNet-50 on ImageNet, equivalent on any number of devices."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:  # importing JAX and Flax takes seconds
    from flax import nnx
    from ml_collections import ConfigDict

    from largebatch.config import Config
    from largebatch.tracking import Callback, Summary

__all__ = ["Callback", "load", "train"]

__version__ = "0.1.0"


def train(
    config: "str | Path | ConfigDict | Config",
    *,
    workdir: str | Path,
    overrides: Mapping[str, Any] | None = None,
    resume: Literal["auto", "never", "must", "extend"] = "auto",
    callbacks: "Sequence[Callback]" = (),
    quiet: bool = False,
) -> "Summary":
    """Train in this process, as ``train.py`` does; the same call again resumes.

    Args:
      config: name or path of a recipe (``digits``, ``configs/x.py:ARGUMENT``), the result of a
        recipe's ``get_config()``, or a ``Config``.
      workdir: the run directory.
      overrides: options such as ``{"run.seed": 1}``. For ``model.name``, ``optimizer.name`` and
        ``data.source`` also the factory itself, a function or class at the top level of a module,
        as in ``{"model.name": Net, "optimizer.name": optax.lion}``.
      resume: ``auto`` resumes from the newest checkpoint if there is one, ``never`` archives an
        earlier run, ``must`` fails without a checkpoint, ``extend`` resumes with other options
        ``schedule.*``, also a complete run.
      callbacks: objects that are called with rows of the log, evaluations, checkpoints and the
        summary, by process 0. They are not called if the run is complete already.
      quiet: print only warnings and the last line.

    Returns:
      The summary, with the content of ``WORKDIR/summary.json``.

    The call never ends the interpreter, and leaves nothing behind in the process: no thread, signal
    handler, environment variable, entry of ``sys.path``, or setting of warnings or of JAX.

    Raises:
      UserError: an option, the dataset or a checkpoint is invalid, or another process took over the
        run directory; the message has the fix.
    """
    from largebatch.environment import restored

    with restored():  # imports change the environment too
        from largebatch.config import Config, adjusted, freeze
        from largebatch.config.load import load as load_recipe
        from largebatch.errors import ConfigError
        from largebatch.parallel import compile_cache
        from largebatch.tracking import Callback
        from largebatch.training import agreement, session

        for each in callbacks:
            if not isinstance(each, Callback):
                raise ConfigError(
                    "callbacks: expected objects of subclasses of largebatch.Callback, got "
                    f"{each!r}"
                )
        chosen = tuple((key, _text(key, value)) for key, value in (overrides or {}).items())
        notes: list[str] = []
        recipe = Path(config) if isinstance(config, str | Path) else None
        if recipe is not None:
            resolved = load_recipe(recipe, chosen, notes.append)
        else:
            base = config if isinstance(config, Config) else freeze(config)
            resolved = adjusted(base, chosen, notes.append)
        request = session.Request(
            recipe,
            Path(workdir),
            chosen,
            resume=resume,
            quiet=quiet,
            callbacks=tuple(callbacks),
            notes=tuple(notes),
        )
        agreement.check(resolved, request.shared)
        with compile_cache.used(resolved.run.compile_cache):
            return session.run(resolved, request)


def load(
    run: str | Path, *, best: bool = False, ema: bool = False, trust: str | Sequence[str] = ()
) -> "nnx.Module":
    """Load a trained network as a Flax module in evaluation mode.

    Args:
      run: a run directory, a checkpoint or a weights file.
      best: the checkpoint of a run with the greatest validation accuracy instead of the newest.
      ema: the averaged weights of a run or checkpoint (``schedule.ema``).
      trust: modules of the user's own networks, such as ``mine`` or ``folder/mine.py``, which may
        be imported if ``run`` names them. No other module is imported.

    Returns:
      The module. It maps float images of shape (images, height, width, channels) to logits of shape
      (images, classes). Images must be normalized with the mean and the standard deviation that
      ``largebatch.weights.read(run)`` returns.

    Raises:
      UserError: ``run`` has no weights, or they cannot be read.
    """
    from largebatch.environment import restored

    with restored():
        from largebatch import weights

        found = weights.read(run, best=best, ema=ema, trust=trust)
        return found.model.module(found.params, found.stats)


def __getattr__(name: str) -> Any:
    """Import `Callback` on first use, so that importing the package stays fast."""
    if name == "Callback":
        from largebatch.tracking import Callback

        return Callback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _text(option: str, value: Any) -> str:
    """Format an option's value for the command line."""
    from largebatch.registry import reference_of

    if callable(value):
        return reference_of(value, option)
    return str(value).lower() if isinstance(value, bool) else str(value)
