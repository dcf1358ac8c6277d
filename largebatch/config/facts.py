"""Properties of the dataset and the hardware that a plan depends on; sizes of public datasets."""

import dataclasses
from pathlib import Path
from typing import NamedTuple


@dataclasses.dataclass(frozen=True)
class Facts:
    """Properties of the dataset and the hardware."""

    train_examples: int
    validation_examples: int
    classes: int
    image_shape: tuple[int, int, int]
    devices: int
    processes: int = 1
    identity: int = 0
    """Hash of the names of the training examples, below 2⁶⁰; 0: unknown, not compared."""
    validation_identity: int = 0
    """Likewise of the validation examples."""
    content: int = 0
    """Hash of both identities and of the stored bytes and labels of some examples of both splits,
    below 2⁶⁰; 0: unknown, so that data at another path are not known to be the same."""


class KnownSet(NamedTuple):
    """Sizes of a public dataset, from TFDS or the dataset's web page."""

    train: int
    validation: int
    classes: int
    side: int
    """Default image size in pixels."""


KNOWN_SETS: dict[str, KnownSet] = {
    "tfds:imagenet2012": KnownSet(1_281_167, 50_000, 1_000, 224),
    "tfds:imagenette/320px-v2": KnownSet(9_469, 3_925, 10, 224),
    "folder:imagenette2-320": KnownSet(9_469, 3_925, 10, 224),
    "folder:cifar10": KnownSet(50_000, 10_000, 10, 32),
    "digits": KnownSet(1_437, 360, 10, 8),
}

_NAMES = {"imagenet": "tfds:imagenet2012", "imagenette": "tfds:imagenette/320px-v2"}
_SYNTHETIC = "synthetic"


def full_source(text: str) -> str:
    """Expand a short ``data.source``: the name of a public dataset, or a path without a scheme.

    Args:
      text: the option's value. A value with a scheme, or an unknown name, does not change.
    """
    if ":" in text or text in (*KNOWN_SETS, _SYNTHETIC):
        return text
    is_path = text.startswith((".", "~")) or "/" in text
    if is_path or Path(text).is_dir():
        return f"folder:{Path(text).expanduser()}"
    return _NAMES.get(text.lower(), text)
