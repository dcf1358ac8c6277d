"""What is known of public data sets, for plans where they are not at hand. Nothing can be read."""

import dataclasses

from largebatch.config.known_sets import KNOWN_SETS
from largebatch.data.photos import MEAN, STD
from largebatch.data.sources import Split


@dataclasses.dataclass(frozen=True)
class KnownSplit:
    """The facts of a split: as of `Source`, without its examples."""

    name: str
    examples: int
    classes: tuple[str, ...]
    image_shape: tuple[int, int, int]
    mean: tuple[float, ...] = MEAN
    std: tuple[float, ...] = STD

    def __len__(self) -> int:
        return self.examples


def known_split(spec: str, split: Split, image_size: int = 0) -> KnownSplit | None:
    """A split of a public set of photographs, as it would be opened; None if it is not known.

    Args:
        spec: As of `open_source`.
        split: `train` or `validation`.
        image_size: Pixels a side; 0 is the photographs' default.
    """
    if not spec.startswith("tfds:") or spec not in KNOWN_SETS:
        return None
    known = KNOWN_SETS[spec]
    side = image_size or known.side
    examples = known.train if split == "train" else known.validation
    return KnownSplit(spec, examples, tuple(map(str, range(known.classes))), (side, side, 3))
