"""Images to a fixed validation accuracy at six batches: `python trials.py sgd|lars IMAGES OUT`.

IMAGES has Imagenette's `train` and `val`, OUT receives the trainings and `OUT/rows.csv`. Run it in
the root of the repository. First the learning rate of each batch, in factors of two, on nine tenths
of the training images (phase `tune`: seed 0; accuracy on the tenth; a trial stops at 1.2 times the
images of the best one). Then seeds 0 to 2 at the best learning rate (phase `final`; accuracy on the
validation images). The learning rate is constant after a warm-up of 4,096 images. Started again, it
continues.
"""

import csv
import json
import math
import sys
from pathlib import Path

import largebatch
from largebatch.errors import UserError

TARGET = 0.55
EVERY = 4096
MOST = 60 * 9469
WORKERS = (2, 8, 19, 32, 64, 128)
FIRST = {
    "sgd": (0.1, 0.2, 0.4, 0.4, 0.2, 0.2),
    "lars": (1.0, 2.0, 4.0, 4.0, 8.0, 8.0),
}
COLUMNS = ("phase", "optimizer", "batch", "peak", "seed")
LOGGED = ("samples", "validation/top1", "noise_scale", "noise_scale_error")


class Stop(largebatch.Callback):
    """Ends a training at the target, or when it cannot be the best one any more."""

    def __init__(self, batch: int, most: float) -> None:
        self.batch = batch
        self.most = most

    def on_evaluation(self, step: int, result: dict[str, float]) -> bool:
        return result["top1"] >= TARGET or step * self.batch > self.most


def trial(
    phase: str,
    optimizer: str,
    workers: int,
    peak: float,
    seed: int,
    images: Path,
    out: Path,
    most: float,
) -> float:
    """Train unless it was done, and return the images that it took."""
    name = f"{phase}-{optimizer}-{32 * workers}-{peak:g}-{seed}"
    done = out / f"{name}.json"
    if not done.exists():
        tune = phase == "tune"
        overrides = {
            "data.source": f"folder:{images / 'train' if tune else images}",
            "data.validation_split": 0.1 if tune else 0.0,
            "data.threads": 1,
            "batch.workers": workers,
            "schedule.peak": peak,
            "schedule.length": f"{MOST + 10 * EVERY} samples",
            "schedule.warmup": f"{EVERY} samples",
            "schedule.decay": "constant",
            "norm.precise_batches": max(1, round(32 / workers)),
            "run.seed": seed,
            "run.log_every": f"{EVERY} samples",
            "run.evaluate_every": f"{EVERY} samples",
            "run.checkpoint_every": "5 epochs",
            "run.keep_checkpoints": 1,
        }
        failed = ""
        try:
            largebatch.train(
                f"configs/imagenette_batch.py:{optimizer}",
                workdir=out / name,
                overrides=overrides,
                callbacks=[Stop(32 * workers, most)],
                quiet=True,
            )
        except UserError as error:
            failed = str(error)
        rows = (out / name / "metrics.jsonl").read_text().splitlines()
        done.write_text(json.dumps({"failed": failed, "rows": [json.loads(row) for row in rows]}))
    return images_to(TARGET, json.loads(done.read_text())["rows"])


def images_to(target: float, rows: list[dict[str, float]]) -> float:
    """Return the images at which top-1 first reached the target, interpolated, or inf."""
    before, accuracy = 0, 0.1
    for row in rows:
        now = row.get("validation/top1")
        if now is not None:
            if now >= target:
                part = (target - accuracy) / (now - accuracy)
                return before + (row["samples"] - before) * part
            before, accuracy = row["samples"], now
    return math.inf


def best_rate(optimizer: str, workers: int, first: float, images: Path, out: Path) -> float:
    """Return the learning rate with the fewest images: less than twice and half of it take."""
    found = {}

    def run(peak: float) -> None:
        if peak not in found:
            most = 1.2 * min([MOST, *found.values()])
            found[peak] = trial("tune", optimizer, workers, peak, 0, images, out, most)

    peak = first
    while True:
        run(peak)
        run(2 * peak)
        run(peak / 2)
        best = min(found, key=found.get)
        if best == peak or math.isinf(found[best]):
            print(optimizer, 32 * workers, found, flush=True)
            return best
        peak = best


def collect(out: Path) -> None:
    """Write the rows of all trials with an evaluation to one table."""
    with (out / "rows.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow((*COLUMNS, *LOGGED))
        for path in sorted(out.glob("*.json")):
            for row in json.loads(path.read_text())["rows"]:
                if "validation/top1" in row:
                    values = [f"{row[key]:.6g}" if key in row else "" for key in LOGGED]
                    table.writerow((*path.stem.split("-"), *values))


def main(optimizer: str, images: Path, out: Path) -> None:
    """Find the learning rates, train three seeds of each batch, write the table."""
    best = {
        workers: best_rate(optimizer, workers, first, images, out)
        for workers, first in zip(WORKERS, FIRST[optimizer], strict=True)
    }
    for seed in range(3):
        for workers, peak in best.items():
            took = trial("final", optimizer, workers, peak, seed, images, out, MOST)
            print(optimizer, 32 * workers, peak, seed, took, flush=True)
    collect(out)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
