"""The state with which a run starts: fresh parameters, or those of ``model.init_from``."""

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from largebatch.errors import UserError, counted
from largebatch.parallel import processes
from largebatch.training.run import Run
from largebatch.training.state import Averages, TrainState
from largebatch.trees import flatten_paths

if TYPE_CHECKING:  # few runs begin with weights
    from largebatch.weights import Weights

PyTree = Any


def initial_state(run: Run, weights_read: "Weights | None" = None) -> TrainState:
    """Return fresh parameters, or those of ``model.init_from``, for the first stage.

    Every process reads the file itself; the processes have compared their weights
    (`agreement.opened_by_all`).

    Args:
      run: ready to train.
      weights_read: the weights of ``model.init_from``, if they have been read already.

    Raises:
      UserError: the weights cannot be read, or are of another network.
    """
    options, first = run.plan.config, run.first_stage
    state = first.init(np.int32(options.run.seed))
    frozen = first.steps.frozen
    if not options.model.init_from:
        if frozen:
            run.console.warn(
                f"optimizer.lr_mults freezes {counted(len(frozen), 'array')} of initial values; "
                "use --init_from=WEIGHTS"
            )
        return state
    from largebatch import weights

    fresh, source = jax.device_get((state.params, state.stats)), first.splits.train

    def begun() -> tuple[weights.Weights, PyTree, PyTree, str]:
        read = weights_read or weights.beginning(options.model)
        return read, *weights.initial(read, *fresh, classes=source.classes)

    read, params, stats, text = processes.each_process_does(begun)
    heads = (flatten_paths(tree) for tree in (params, fresh[0]))
    taken, random = (flat.get("head/kernel") for flat in heads)
    if "head/kernel" in frozen and taken is random:
        raise UserError(
            "optimizer.lr_mults freezes head/kernel, whose values are random, because the weights "
            "have another number of classes; use 'head/.*: 1' before the other patterns"
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
