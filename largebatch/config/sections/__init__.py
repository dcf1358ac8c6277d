"""The sections of a configuration, one dataclass each."""

from largebatch.config.sections.augment import Augment
from largebatch.config.sections.batch import Batch, Comm
from largebatch.config.sections.data import Data
from largebatch.config.sections.health import Health
from largebatch.config.sections.model import Model, Norm
from largebatch.config.sections.optimizer import Loss, Optimizer, Schedule
from largebatch.config.sections.run import Run

__all__ = [
    "Augment",
    "Batch",
    "Comm",
    "Data",
    "Health",
    "Loss",
    "Model",
    "Norm",
    "Optimizer",
    "Run",
    "Schedule",
]
