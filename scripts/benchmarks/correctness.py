"""One step on this device against the same step in float64 on the CPU: loss and gradients.

    correctness --batch 16 --image_size 96 --dtype float32,bfloat16

Same parameters, same images, several batches; ‖g − reference‖ / ‖reference‖ over all parameters and
over the worst. A value that is not finite fails.
"""

import argparse
import dataclasses
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import step
from benchmarks.competitor import Competitor
from benchmarks.gradients import PLAIN, GradientWork, file
from benchmarks.measure import Result

# Rounding flips rectifiers near zero: the error is about the root of the format's own.
GOALS = {"float32": 2e-3, "float16": 0.1, "bfloat16": 0.25}
OVERRIDES = True


class Step(NamedTuple):
    """What one step computed."""

    loss: float
    gradients: dict[str, np.ndarray]
    """By parameter, float64."""


class Error(NamedTuple):
    """Relative errors of one step."""

    gradients: float
    worst: float
    of: str
    """The parameter with the worst."""
    loss: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the subcommand."""
    parser.add_argument("--batch", default="16", help="images (16)")
    step.add_work(parser)
    parser.set_defaults(dtype="float32,bfloat16", image_size=96)


def run(flags: argparse.Namespace) -> list[Result]:
    """Computes the reference and each format's steps, side by side: nothing is timed."""
    formats = flags.dtype.split(",")
    (batch, *_) = step.numbers(flags.batch, "--batch")
    flags.dtype = "float32"
    work = step.work_of(flags, batch)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as pool:
        reference = pool.submit(steps, work, Path(folder, "reference"), is_reference=True)
        found = {
            dtype: pool.submit(steps, dataclasses.replace(work, dtype=dtype), Path(folder, dtype))
            for dtype in formats
        }
        return [
            result
            for dtype, task in found.items()
            for result in compared(dtype, reference.result(), task.result())
        ]


def steps(work: step.StepWork, folder: Path, *, is_reference: bool = False) -> list[Step]:
    """The first steps on several batches, of a process of their own."""
    folder.mkdir()
    given = dataclasses.asdict(work)
    given["overrides"] = (*PLAIN, *work.overrides)
    task = GradientWork(**given, folder=str(folder), is_reference=is_reference)
    with Competitor("benchmarks.gradients", task) as competitor:
        losses = competitor.repeat().values()
    found = []
    for index, loss in enumerate(losses):
        with np.load(file(folder, index), allow_pickle=False) as read:
            gradients = {name: read[name].astype(np.float64) for name in read.files}
        found.append(Step(loss, gradients))
    return found


def compared(dtype: str, reference: Sequence[Step], found: Sequence[Step]) -> list[Result]:
    """Relative errors of losses and gradients, a repeat for each batch."""
    errors = [error(*pair) for pair in zip(reference, found, strict=True)]
    unit, goal = "relative error", GOALS.get(dtype)

    def result(what: str, values: Iterable[float], **more: Any) -> Result:
        return Result(f"{dtype}: {what}", unit, tuple(values), better="less", **more)

    return [
        result("gradients", (each.gradients for each in errors), goal=goal),
        result(
            "gradients of the worst parameter",
            (each.worst for each in errors),
            note=", ".join(each.of for each in errors),
        ),
        result("loss", (each.loss for each in errors), goal=goal),
    ]


def error(reference: Step, found: Step) -> Error:
    """Of one step."""
    norms = {name: np.linalg.norm(g) for name, g in reference.gradients.items()}
    errors = {
        name: np.linalg.norm(found.gradients[name] - g) for name, g in reference.gradients.items()
    }
    total = np.linalg.norm(list(errors.values())) / np.linalg.norm(list(norms.values()))
    # Some are zero but for rounding: such as a bias before the mean is taken off.
    floor = 1e-6 * max(norms.values())
    each = {name: errors[name] / max(norms[name], floor) for name in errors}
    worst = max(each, key=lambda name: (np.isnan(each[name]), each[name]))  # NaN before all
    loss = abs(found.loss - reference.loss) / abs(reference.loss)
    return Error(float(total), float(each[worst]), worst, loss)
