"""Fit images = S (1 + B / B_crit) to the trials: `python fit.py ROWS.csv FIGURE.png`.

Prints one table for each optimizer. S and B_crit minimize the sum of squared relative errors over
the seeds of all batches; their ranges are the central 90 % over 2,000 draws of three seeds with
replacement. The noise scale of a trial is the median over its evaluations after 12,288 images,
three times the warm-up.
"""

import csv
import sys
from collections import defaultdict

import matplotlib.pyplot as plt
import numpy as np
from trials import COLUMNS, TARGET, images_to

AFTER = 12_288  # images
COLORS = {"sgd": "#0072b2", "lars": "#d55e00"}
NAMES = {"sgd": "SGD", "lars": "LARS"}


def read(path: str) -> dict[tuple[str, ...], list[dict[str, float]]]:
    """Return the rows of each trial, by phase, optimizer, batch, learning rate and seed."""
    trials = defaultdict(list)
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            name = tuple(row.pop(column) for column in COLUMNS)
            trials[name].append({key: float(value) for key, value in row.items() if value})
    return trials


def noise_scale(rows: list[dict[str, float]]) -> float:
    """Return the median noise scale after the warm-up, in images."""
    late = [row["noise_scale"] for row in rows if row["samples"] > AFTER and "noise_scale" in row]
    return float(np.median(late))


def fit(batches: np.ndarray, images: np.ndarray) -> tuple[float, float]:
    """Return S and B_crit in images.

    Args:
      batches: [N], images.
      images: [N], images to the target.
    """
    columns = np.stack([1 / images, batches / images], axis=1)
    (least, slope), *_ = np.linalg.lstsq(columns, np.ones_like(images), rcond=None)
    return least, least / slope


def resampled(batches: np.ndarray, images: np.ndarray) -> np.ndarray:
    """Return [2, 2], the 5th and 95th percentile of S and B_crit over draws of the seeds.

    Args:
      batches: [N], as in `fit`; the draws are among the trials of a batch.
      images: [N].
    """
    rng = np.random.default_rng(0)
    groups = [np.flatnonzero(batches == batch) for batch in np.unique(batches)]
    found = []
    for _ in range(2000):
        drawn = np.concatenate([rng.choice(group, len(group)) for group in groups])
        found.append(fit(batches[drawn], images[drawn]))
    return np.percentile(found, [5, 95], axis=0)


def report(
    optimizer: str, trials: dict[tuple[str, ...], list[dict[str, float]]], axes: plt.Axes
) -> None:
    """Print the table of an optimizer and draw its points and curve."""
    finals = [
        (int(batch), images_to(TARGET, rows), noise_scale(rows), peak)
        for (phase, name, batch, peak, _), rows in trials.items()
        if phase == "final" and name == optimizer
    ]
    batches, images, scales = (np.array([each[i] for each in finals]) for i in range(3))
    peaks = {batch: peak for batch, *_, peak in finals}
    least, critical = fit(batches, images)
    low, high = resampled(batches, images)
    small = f"S = {least:,.0f} ({low[0]:,.0f} to {high[0]:,.0f}) images"
    large = f"B_crit = {critical:,.0f} ({low[1]:,.0f} to {high[1]:,.0f}) images"
    print(f"\n{NAMES[optimizer]}: {small}, {large}")
    print("| batch | learning rate | images | steps | of the fit | noise scale | 1 + B/N |")
    means, deviations = [], []
    for batch in sorted(peaks):
        took, scale = images[batches == batch], np.median(scales[batches == batch])
        means.append(took.mean())
        deviations.append(took.std(ddof=1))
        fitted = least * (1 + batch / critical)
        print(
            f"| {batch:,} | {peaks[batch]} | {means[-1]:,.0f} ± {deviations[-1]:,.0f} "
            f"| {means[-1] / batch:,.0f} | {means[-1] / fitted:.2f} "
            f"| {scale:,.0f} | {1 + batch / scale:.2f} |"
        )
    color = COLORS[optimizer]
    axes.errorbar(
        sorted(peaks),
        means,
        deviations,
        color=color,
        fmt="o",
        capsize=4,
        label=NAMES[optimizer],
    )
    line = np.geomspace(48, 5500)
    label = f"{least:,.0f} (1 + B / {critical:,.0f})"
    axes.plot(line, least * (1 + line / critical), color=color, label=label)
    measured = np.median(scales)
    label = f"{least:,.0f} (1 + B / {measured:,.0f}), the measured noise scale"
    axes.plot(line, least * (1 + line / measured), color=color, linestyle=":", label=label)


def main(rows: str, figure: str) -> None:
    """Print both tables and draw the figure."""
    trials = read(rows)
    _, axes = plt.subplots(figsize=(9.4, 5.5), layout="constrained")
    for optimizer in NAMES:
        report(optimizer, trials, axes)
    axes.set(xscale="log", yscale="log", xlabel="batch, images", ylabel="images to 55 % top-1")
    ticks = sorted({int(batch) for _, _, batch, _, _ in trials})
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    ticks = [20_000, 40_000, 100_000, 200_000, 400_000]
    axes.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    plt.savefig(figure, dpi=100)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
