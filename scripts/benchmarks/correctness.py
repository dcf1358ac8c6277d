"""One step on this device against the same step in float64 on the CPU: loss and gradients.

    correctness --batch 16 --image_size 96 --dtype float32,bfloat16

Same parameters, same images; ‖g − reference‖ / ‖reference‖ over all parameters and over the worst.
A value that is not finite fails.
"""

import argparse
import dataclasses
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks import step
from benchmarks.competitor import Competitor
from benchmarks.gradients import PLAIN, GradientWork
from benchmarks.measure import Result

# Rounding flips rectifiers near zero: the error is about the root of the format's own.
GOALS = {"float32": 2e-3, "float16": 0.1, "bfloat16": 0.25}
OVERRIDES = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the subcommand."""
    parser.add_argument("--batch", default="16", help="images (16)")
    step.add_work(parser)
    parser.set_defaults(dtype="float32,bfloat16", image_size=96)


def run(flags: argparse.Namespace) -> list[Result]:
    """Computes the reference and each format's step, side by side: nothing is timed."""
    formats = flags.dtype.split(",")
    (batch, *_) = step.numbers(flags.batch, "--batch")
    flags.dtype = "float32"
    work = step.work_of(flags, batch)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as pool:
        reference = pool.submit(gradients, work, Path(folder, "reference.npz"), is_reference=True)
        found = {
            dtype: pool.submit(
                gradients, dataclasses.replace(work, dtype=dtype), Path(folder, f"{dtype}.npz")
            )
            for dtype in formats
        }
        return [
            result
            for dtype, task in found.items()
            for result in compared(dtype, *reference.result(), *task.result())
        ]


def gradients(
    work: step.StepWork, path: Path, *, is_reference: bool = False
) -> tuple[float, dict[str, np.ndarray]]:
    """The loss, and the gradients by parameter, of a process of their own."""
    given = dataclasses.asdict(work)
    given["overrides"] = (*PLAIN, *work.overrides)
    task = GradientWork(**given, path=str(path), is_reference=is_reference)
    with Competitor("benchmarks.gradients", task) as competitor:
        loss = competitor.repeat()["loss"]
    with np.load(path) as found:
        return loss, {name: found[name].astype(np.float64) for name in found.files}


def compared(
    dtype: str,
    reference_loss: float,
    reference: Mapping[str, np.ndarray],
    loss: float,
    found: Mapping[str, np.ndarray],
) -> list[Result]:
    """Relative errors of loss and gradients."""
    errors = {name: np.linalg.norm(found[name] - reference[name]) for name in reference}
    norms = {name: np.linalg.norm(reference[name]) for name in reference}
    total = np.linalg.norm(list(errors.values())) / np.linalg.norm(list(norms.values()))
    # Some are zero but for rounding: such as a bias before the mean is taken off.
    floor = 1e-6 * max(norms.values())
    each = {name: errors[name] / max(norms[name], floor) for name in reference}
    # A NaN is the worst of all.
    worst = max(each, key=lambda name: (np.isnan(each[name]), each[name]))
    unit = "relative error"
    return [
        Result(f"{dtype}: gradients", unit, (float(total),), better="less", goal=GOALS.get(dtype)),
        Result(
            f"{dtype}: gradients of the worst parameter",
            unit,
            (float(each[worst]),),
            better="less",
            note=worst,
        ),
        Result(
            f"{dtype}: loss",
            unit,
            (abs(loss - reference_loss) / abs(reference_loss),),
            better="less",
            goal=GOALS.get(dtype),
        ),
    ]
