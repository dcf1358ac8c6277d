"""When a training is killed."""

import dataclasses
import random
from typing import Literal

SHARES = {"any time": 0.55, "save": 0.3, "start-up": 0.15}
"""How often each aim is taken."""
_SAVE_S = 0.1
"""Longer than the checkpoint of a tiny network takes to write: also just after it."""
_SAVES = 4


@dataclasses.dataclass(frozen=True)
class Moment:
    """The moment of one kill.

    Attributes:
        aim: what it is aimed at.
        after_s: seconds after the start of the process; aimed at a save, after that has begun.
        saves: aimed at a save, which one after the start of the process, from 1; else 0.
    """

    aim: Literal["any time", "save", "start-up"]
    after_s: float
    saves: int = 0


def draw(rng: random.Random, *, start_s: float, left_s: float, saves_left: int) -> Moment:
    """A random moment in the life of a process.

    Args:
        rng: where chance comes from.
        start_s: seconds from its start to its first step.
        left_s: seconds of training after that.
        saves_left: checkpoints that it has still to write; 0 is never aimed at.
    """
    aims = [aim for aim in SHARES if aim != "save" or saves_left]
    (aim,) = rng.choices(aims, [SHARES[name] for name in aims])
    if aim == "save":
        return Moment(aim, rng.uniform(0, _SAVE_S), rng.randint(1, min(_SAVES, saves_left)))
    return Moment(aim, rng.uniform(0, start_s + (left_s if aim == "any time" else 0)))
