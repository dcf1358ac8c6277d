"""Options of augmentation by random operations, erasing and mixing."""

import dataclasses
from typing import Literal

from largebatch.config.values import option


@dataclasses.dataclass(frozen=True)
class Augment:
    """Augmentation of training images after crop, shift and flip.

    Mixup and CutMix mix the images of sample positions 2i and 2i + 1, both with the same share.
    """

    policy: Literal["none", "randaugment", "trivialaugment"] = option(
        "none",
        "random operations on colours and geometry, on the host. randaugment: "
        "rand-mM-nN-mstdD-inc1 of timm (Cubuk et al. 2020, arXiv 1909.13719); trivialaugment: "
        "TrivialAugmentWide of torchvision (Müller & Hutter 2021, arXiv 2103.10158)",
    )
    magnitude: float = option(
        9.0, "randaugment only: strength of the operations (M), 0 to 10", within="at least 0"
    )
    magnitude_std: float = option(
        0.5, "randaugment only: standard deviation of the strength (D)", within="at least 0"
    )
    layers: int = option(
        2,
        "randaugment only: operations of an image (N), each applied with probability 1/2",
        within="above 0",
    )
    mixup: float = option(
        0.0,
        "α of mixup: an image becomes λ·image + (1 − λ)·partner, and so does its target, with λ "
        "from Beta(α, α) for each pair (Zhang et al. 2018, arXiv 1710.09412); 0: no mixup",
        within="at least 0",
    )
    cutmix: float = option(
        0.0,
        "α of CutMix: the partner fills a box of the share 1 − λ of the image, with λ from "
        "Beta(α, α) for each pair (Yun et al. 2019, arXiv 1905.04899); 0: no CutMix",
        within="at least 0",
    )
    switch_prob: float = option(
        0.5,
        "with mixup and CutMix: probability of CutMix for a pair (--mixup-switch-prob of timm)",
        within="at least 0 and below 1",
    )
    erase: float = option(
        0.0,
        "probability of erasing a random box of an image, which becomes the mean colour: 0.02 to "
        "0.33 of its area, aspect 0.3 to 3.3 (Zhong et al. 2020, arXiv 1708.04896)",
        within="at least 0 and below 1",
    )

    @property
    def mixes(self) -> bool:
        """Whether pairs of images are mixed."""
        return self.mixup > 0 or self.cutmix > 0
