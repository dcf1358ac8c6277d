"""The gradient noise scale: how far the batch can grow before more images buy few steps.

A gradient over B images is G plus noise of covariance Σ / B. The *noise scale* tr(Σ) / ‖G‖² is the
number of images at which the noise is as large as the gradient. A training with batch B needs about
1 + B / (noise scale) times the images of one with a small batch (McCandlish et al. 2018,
arXiv 1812.06162, section 2.2).

A data-parallel step has gradients over two numbers of images: those of its microbatches, and their
mean. From their squared norms follow unbiased estimates of ‖G‖² and tr(Σ) (appendix A.1 there):

    ‖G‖² = (B ‖g_B‖² − b ‖g_b‖²) / (B − b)
    tr(Σ) = (‖g_b‖² − ‖g_B‖²) / (1/b − 1/B)

for B images of a step and b of a microbatch. Both are averaged over steps before they are divided,
because a mean of ratios is biased.

BatchNorm couples the images of a span, so a span is what is drawn at random: tr(Σ) is then the
covariance of a span's mean gradient, times its images. It is exact for any number of spans in a
microbatch.
"""

import dataclasses
import math
from typing import NamedTuple


class Estimate(NamedTuple):
    """A noise scale."""

    images: float
    error: float
    """Standard error in images, as if the steps were independent."""

    def rows(self, batch: int) -> list[tuple[str, str]]:
        """Return rows (label, value): the noise scale, and what a batch costs according to it.

        The theory is that of SGD. In our trainings (docs/studies.md) the critical batch of LARS was
        6 to 12 times the noise scale. Where the gradient is lost in the noise, as at the end of
        many trainings, the cost is not said.
        """
        times = 1 + batch / self.images
        cost = f"{times:.3g} times the images of a small batch by SGD, fewer by LARS"
        if self.error > self.images / 2:
            cost = "unknown: the noise scale is too uncertain (metrics.jsonl)"
        found = f"{self.images:,.0f} ± {self.error:,.0f} images"
        return [("noise scale", found), (f"batch {batch:,}", cost)]


@dataclasses.dataclass
class NoiseScale:
    """Averages over the newest steps; a checkpoint holds them, so that a resume continues them."""

    window: float
    """The weight of a step is 1/e of that of a step this number of samples later."""
    weights: float = 0.0
    """Sum of the weights w."""
    squares: float = 0.0
    """Sum of w²."""
    noise: float = 0.0
    """Sum of w · tr(Σ)."""
    signal: float = 0.0
    """Sum of w · ‖G‖²."""
    noise_noise: float = 0.0
    """Sum of w² · tr(Σ)², as are the next two of w² · tr(Σ) · ‖G‖² and w² · ‖G‖⁴."""
    noise_signal: float = 0.0
    signal_signal: float = 0.0

    def add(self, small_square: float, square: float, small: float, batch: float) -> None:
        """Add a step; one whose gradient is not finite, or was not measured, is left out.

        Args:
          small_square: mean over the microbatches of the squared norm of their gradients.
          square: squared norm of the mean gradient.
          small: images of a microbatch.
          batch: images of the step.
        """
        if not (small_square > 0 and math.isfinite(small_square + square) and batch > small):
            return
        noise = (small_square - square) / (1 / small - 1 / batch)
        signal = (batch * square - small * small_square) / (batch - small)
        kept = math.exp(-batch / self.window)
        self.weights = kept * self.weights + 1
        self.noise = kept * self.noise + noise
        self.signal = kept * self.signal + signal
        kept *= kept
        self.squares = kept * self.squares + 1
        self.noise_noise = kept * self.noise_noise + noise * noise
        self.noise_signal = kept * self.noise_signal + noise * signal
        self.signal_signal = kept * self.signal_signal + signal * signal

    def estimate(self) -> Estimate | None:
        """Return the noise scale; None before two steps, or while ‖G‖² is lost in the noise."""
        if self.signal <= 0 or self.weights**2 < 1.5 * self.squares:
            return None
        ratio = self.noise / self.signal
        # The delta method: Var(X̄ / Ȳ) = Var(X − (X̄ / Ȳ) Y) / Ȳ².
        residual = self.noise_noise - 2 * ratio * self.noise_signal + ratio**2 * self.signal_signal
        count = self.weights**2 / self.squares
        return Estimate(ratio, math.sqrt(max(residual, 0) * count / (count - 1)) / self.signal)

    def columns(self) -> dict[str, float]:
        """Return the estimate as columns of the log; none if there is no estimate."""
        found = self.estimate()
        return {"noise_scale": found.images, "noise_scale_error": found.error} if found else {}

    def memory(self) -> dict[str, float]:
        """Return the sums for a checkpoint."""
        sums = dataclasses.asdict(self)
        del sums["window"]
        return sums
