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
    fresh = jax.device_get((state.params, state.stats))
    params, stats, text = weights.initial(read, *fresh)
    run.console.note(text)
    return run.placed(state._replace(params=params, stats=stats))
