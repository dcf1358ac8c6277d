"""What the host gives an update at each step."""

from typing import Any, NamedTuple


class Rates(NamedTuple):
    """Numbers of one step that schedules decide; scalars, on the host Python floats."""

    learning_rate: Any
    weight_decay: Any = 0.0
    momentum: Any = 0.9
    sgd_share: Any = 1.0
    """Of an RMSprop–SGD blend: the share of SGD."""
    step: Any = 1.0
    """Number of this update, from 1; what bias corrections count."""
