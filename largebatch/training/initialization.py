"""The state with which a run starts: fresh parameters, or those of ``model.init_from``."""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from largebatch.errors import UserError
from largebatch.parallel import processes
from largebatch.training.run import Run
from largebatch.training.state import Averages, TrainState

if TYPE_CHECKING:  # few runs begin with weights
    from largebatch.weights import Weights

PyTree = Any


def initial_state(run: Run, weights_read: "Weights | None" = None) -> TrainState:
    """Return fresh parameters, or those of ``model.init_from``, for the first stage.

    Every process reads the file itself; a digest checks that all have read the same weights.

    Args:
      run: ready to train.
      weights_read: the weights of ``model.init_from``, if they have been read already.

    Raises:
      UserError: the weights cannot be read, or are of another network.
    """
    options, first = run.plan.config, run.first_stage
    state = first.programs.init(np.int32(options.run.seed))
    if not options.model.init_from:
        return state
    from largebatch import weights

    fresh, source = jax.device_get((state.params, state.stats)), first.train_source

    def begun() -> tuple[weights.Weights, PyTree, PyTree, str]:
        read = weights_read or weights.read(Path(options.model.init_from))
        return read, *weights.initial(read, *fresh, classes=source.classes)

    read, params, stats, text = processes.each_process_does(begun)
    if not processes.agree(_digest((params, stats))):
        raise UserError(
            f"model.init_from={options.model.init_from}: processes have read different weights; "
            "use a file that all processes share"
        )
    run.console.note(f"starts with {text}")
    for option, theirs, ours in (
        ("norm.epsilon", read.model.epsilon, options.norm.epsilon),
        ("the data's mean", read.mean, tuple(source.mean)),
        ("the data's deviation", read.std, tuple(source.std)),
    ):
        if not np.allclose(theirs, ours, rtol=1e-3):
            run.console.warn(f"{option} is {ours}, the weights were trained with {theirs}")
    ema = state.ema and Averages(params, stats)
    return first.placed(state._replace(params=params, stats=stats, ema=ema))


def _digest(tree: PyTree) -> int:
    """Return a digest of all bits as a number below 2⁵⁶."""
    found = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        found.update(np.ascontiguousarray(leaf).tobytes())
    return int.from_bytes(found.digest()[:7], "big")
