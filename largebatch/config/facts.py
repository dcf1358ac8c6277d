"""What a plan needs to know of the world."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Facts:
    """What the plan needs to know of the data and the hardware."""

    train_examples: int
    validation_examples: int
    classes: int
    image_shape: tuple[int, int, int]
    devices: int
    processes: int = 1
    stored_size: int = 0
    """Pixels a side of the decoded pictures that devices cut their crops from; 0: they do not."""
    identity: int = 0
    """Hash of the names in the training set, below 2⁶⁰; 0: unknown, and not compared."""
