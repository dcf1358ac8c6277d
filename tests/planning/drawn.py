"""A distribution of workers' times with corners, beside the smooth ones of the package."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Drawn:
    """Times as likely as each other, between two of them as a straight line; ascending."""

    seconds: tuple

    def cdf(self, seconds):
        return np.interp(seconds, self.seconds, np.linspace(0, 1, len(self.seconds)))

    def quantile(self, share):
        return np.interp(share, np.linspace(0, 1, len(self.seconds)), self.seconds)

    def draw(self, generator, shape):
        return self.quantile(generator.random(shape))
