"""The state that a training begins with."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import numpy as np

from largebatch.errors import UserError
from largebatch.parallel import processes
from largebatch.training.setup import Run
from largebatch.training.state import TrainState

if TYPE_CHECKING:  # few runs begin with weights
    from largebatch.weights import Weights

PyTree = Any
T = TypeVar("T")


def initial_state(run: Run, weights_read: "Weights | None" = None) -> TrainState:
    """Fresh parameters, or those of ``model.init_from``, as the first stage expects them.

    Every process reads the file by itself, as each computes fresh parameters by itself; that all
    have the same is checked.

    Args:
      run: whose state it is.
      weights_read: what ``model.init_from`` holds, if it has been read already.

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

    read, params, stats, text = _on_all(begun)
    if not processes.agree(_digest((params, stats))):
        raise UserError(
            f"model.init_from={options.model.init_from} holds other weights for some processes; "
            "put it where all see the same file"
        )
    run.console.note(f"begins with {text}")
    for option, theirs, ours in (
        ("norm.epsilon", read.model.epsilon, options.norm.epsilon),
        ("the data's mean", read.mean, tuple(source.mean)),
        ("the data's deviation", read.std, tuple(source.std)),
    ):
        if not np.allclose(theirs, ours, rtol=1e-3):
            run.console.warn(f"{option} is {ours}, the weights were trained with {theirs}")
    return first.placed(state._replace(params=params, stats=stats))


def _on_all(action: Callable[[], T]) -> T:
    """What ``action`` returns, if it succeeds on all processes; where one fails, none waits."""
    result, failure = None, None
    try:
        result = action()
    except UserError as error:
        failure = error
    if not processes.agreed_minimum(int(failure is None)):
        raise failure or UserError("another process cannot read model.init_from; it says why")
    return result


def _digest(tree: PyTree) -> int:
    """Of all bits, as a number that processes can compare."""
    found = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        found.update(np.ascontiguousarray(leaf).tobytes())
    return int.from_bytes(found.digest()[:7], "big")
