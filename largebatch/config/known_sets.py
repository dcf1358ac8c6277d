"""Sizes of public data sets, for what is decided before they are opened or without them."""

from typing import NamedTuple


class KnownSet(NamedTuple):
    """What TFDS, or the set's page, says of it."""

    train: int
    validation: int
    classes: int
    side: int
    """Pixels a side at which its pictures are seen unless another size is asked for."""


KNOWN_SETS: dict[str, KnownSet] = {
    "tfds:imagenet2012": KnownSet(1_281_167, 50_000, 1_000, 224),
    "tfds:imagenette/320px-v2": KnownSet(9_469, 3_925, 10, 224),
    "folder:imagenette2-320": KnownSet(9_469, 3_925, 10, 224),
    "digits": KnownSet(1_437, 360, 10, 8),
}
