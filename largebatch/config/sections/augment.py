"""Options of augmentation by random operations, erasing and mixing."""

import dataclasses
import re
from typing import NamedTuple

from largebatch.config.values import option
from largebatch.errors import ConfigError, shown

_PART = re.compile(r"(mstd|m|n)([0-9]+(?:\.[0-9]+)?)")
MAX_MAGNITUDE = 10


class RandAugment(NamedTuple):
    """The numbers of a policy such as ``rand-m9-n2-mstd0.5-inc1``."""

    magnitude: float = 9.0
    """Strength of the operations (M), 0 to 10."""
    deviation: float = 0.0
    """Standard deviation of the strength (D)."""
    layers: int = 2
    """Operations of an image (N), each applied with probability 1/2."""


@dataclasses.dataclass(frozen=True)
class Augment:
    """Augmentation of training images after crop, shift and flip.

    Mixup and CutMix mix the images of sample positions 2i and 2i + 1, both with the same share.
    """

    policy: str = option(
        "none",
        "random operations on colours and geometry. rand-mM-nN-mstdD-inc1: RandAugment of timm, N "
        "operations (2) of strength M (0 to 10; 9) with deviation D (0), each with probability "
        "1/2 (Cubuk et al. 2020, arXiv 1909.13719); trivialaugment: TrivialAugmentWide (Müller & "
        "Hutter 2021, arXiv 2103.10158)",
    )
    mixup: float = option(
        0.0,
        "α of mixup: images and targets become λ·x + (1 − λ)·partner, with λ from Beta(α, α) for "
        "each pair (Zhang et al. 2018, arXiv 1710.09412)",
        within="at least 0",
    )
    cutmix: float = option(
        0.0,
        "α of CutMix: the partner fills a box of the share 1 − λ (Yun et al. 2019, arXiv "
        "1905.04899); with mixup, each pair has one of them with probability 1/2",
        within="at least 0",
    )
    erase: float = option(
        0.0,
        "probability that a random box of an image becomes the mean colour: 0.02 to 0.33 of its "
        "area, aspect 0.3 to 3.3 (Zhong et al. 2020, arXiv 1708.04896)",
        within="at least 0 and below 1",
    )

    def __post_init__(self) -> None:
        _ = self.rand

    @property
    def rand(self) -> RandAugment | None:
        """The numbers of RandAugment; None with another policy.

        Raises:
          ConfigError: the policy is unknown.
        """
        name, *parts = self.policy.split("-")
        if self.policy in ("none", "trivialaugment"):
            return None
        found = [_PART.fullmatch(part) for part in parts if part != "inc1"]
        numbers = {match[1]: float(match[2]) for match in found if match}
        made = RandAugment(
            numbers.get("m", 9.0), numbers.get("mstd", 0.0), int(numbers.get("n", 2))
        )
        if name != "rand" or "inc1" not in parts or None in found or made.layers < 1:
            raise ConfigError(
                "augment.policy: expected none, trivialaugment or a text such as "
                f"rand-m9-n2-mstd0.5-inc1, got {shown(self.policy)}; use one of them"
            )
        if made.magnitude > MAX_MAGNITUDE:
            raise ConfigError(
                f"augment.policy={self.policy}: expected a strength m0 to m{MAX_MAGNITUDE}, got "
                f"m{made.magnitude:g}; use m{MAX_MAGNITUDE} or less"
            )
        return made

    @property
    def mixes(self) -> bool:
        """Whether pairs of images are mixed."""
        return self.mixup > 0 or self.cutmix > 0
