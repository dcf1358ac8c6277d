"""The configuration of a run.

Each option is declared once, in a section. ``mathematics=False`` marks options that change speed,
memory or reporting, but not the numbers that training computes, up to the order of floating-point
sums. Only these options may differ between a checkpoint and the run that resumes from it.
"""

import dataclasses

from largebatch.config.sections import (
    Batch,
    Comm,
    Data,
    Health,
    Loss,
    Model,
    Norm,
    Optimizer,
    Run,
    Schedule,
)


@dataclasses.dataclass(frozen=True)
class Config:
    """All options of a run, by section."""

    model: Model = dataclasses.field(default_factory=Model)
    norm: Norm = dataclasses.field(default_factory=Norm)
    batch: Batch = dataclasses.field(default_factory=Batch)
    data: Data = dataclasses.field(default_factory=Data)
    optimizer: Optimizer = dataclasses.field(default_factory=Optimizer)
    schedule: Schedule = dataclasses.field(default_factory=Schedule)
    loss: Loss = dataclasses.field(default_factory=Loss)
    comm: Comm = dataclasses.field(default_factory=Comm)
    run: Run = dataclasses.field(default_factory=Run)
    health: Health = dataclasses.field(default_factory=Health)
