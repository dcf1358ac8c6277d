"""Properties of the dataset and the hardware that a plan depends on."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Facts:
    """Properties of the dataset and the hardware."""

    train_examples: int
    validation_examples: int
    classes: int
    image_shape: tuple[int, int, int]
    devices: int
    processes: int = 1
    stored_size: int = 0
    """Side in pixels of the decoded images that devices crop; 0: the host crops."""
    identity: int = 0
    """Hash of the names of the training examples, below 2⁶⁰; 0: unknown, not compared."""
