"""The state that a training begins with."""

from pathlib import Path

import jax
import numpy as np

from largebatch.train.build import Run
from largebatch.train.state import TrainState


def initial_state(run: Run) -> TrainState:
    """Fresh parameters, or those of ``model.init_from``, as the first stage expects them.

    Every process reads the file by itself, as each computes fresh parameters by itself; that all
    have the same is checked where they are put on the devices.

    Raises:
      UserError: the weights cannot be read, or are of another network.
    """
    options = run.plan.config
    state = run.programs.init(np.int32(options.run.seed))
    if not options.model.init_from:
        return state
    from largebatch import weights

    read = weights.read(Path(options.model.init_from))
    fresh, source = jax.device_get((state.params, state.stats)), run.train_source
    params, stats, text = weights.initial(read, *fresh, classes=source.classes)
    run.console.note(f"begins with {text}")
    for option, theirs, ours in (
        ("norm.epsilon", read.model.epsilon, options.norm.epsilon),
        ("the data's mean", read.mean, tuple(source.mean)),
        ("the data's deviation", read.std, tuple(source.std)),
    ):
        if not np.allclose(theirs, ours, rtol=1e-3):
            run.console.warn(f"{option} is {ours}, the weights were trained with {theirs}")
    return run.placed(state._replace(params=params, stats=stats))
