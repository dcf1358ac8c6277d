"""One step on this device compared with the same step in float64 on the CPU: loss and gradients.

    correctness --batch 16 --image_size 96 --dtype float32,bfloat16

Same parameters, same images, several batches; ‖g − reference‖ / ‖reference‖ over all parameters and
over the worst.
"""

import argparse
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks import training
from benchmarks.competitor import Competitor
from benchmarks.measure import Result, numbers
from benchmarks.training import StepWork
from largebatch.training.dispatch import run_step
from largebatch.training.stage import Stage
from largebatch.trees import flatten_paths

OVERRIDES = True
# Rounding flips rectifiers near zero: the error is about the root of the format's own.
LIMITS = {"float32": 2e-3, "float16": 0.1, "bfloat16": 0.25}
# The velocity after the first step is then the gradient, in the parameters' own format.
PLAIN = (
    *(("optimizer.name", "sgd"), ("optimizer.nesterov", "false")),
    ("optimizer.weight_decay", "0"),
    # Without it, the first gradients of fifty layers depend on every rounding: they differ by 2 %
    # between float32 and float64, and in bfloat16 have nothing in common with either.
    ("norm.last_gamma", "0"),
)


class Step(NamedTuple):
    """Loss of one step, and its gradients by parameter."""

    loss: float
    gradients: Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Reference(StepWork):
    """The step in float64 on the CPU."""

    @property
    def environment(self) -> Mapping[str, str]:
        """No device, and 64 bits."""
        return super().environment | {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the subcommand."""
    parser.add_argument("--batch", default="16", help="images (16)")
    training.add_work(parser)
    parser.set_defaults(dtype="float32,bfloat16", image_size=96)


def run(flags: argparse.Namespace) -> list[Result]:
    """Compute the reference and each format's steps, at the same time: nothing is timed."""
    formats, (batch, *_) = flags.dtype.split(","), numbers("--batch", flags.batch)
    same = {"batch": batch, "overrides": (*PLAIN, *flags.overrides)}
    works = [Reference.of(flags, dtype="float32", **same)]
    works += [StepWork.of(flags, dtype=dtype, **same) for dtype in formats]
    with ThreadPoolExecutor() as pool:
        reference, *found = pool.map(_in_process, works)
    pairs = zip(formats, found, strict=True)
    return [result for dtype, steps in pairs for result in compared(dtype, reference, steps)]


def _in_process(work: StepWork) -> list[Step]:
    with Competitor(first_steps, work) as competitor:
        return competitor.repeat()


def first_steps(work: StepWork) -> tuple[Callable[[], Any], str]:
    """The repeat returns our first step on each batch, from the same initial state."""
    run = training.build_run(training.config(work))
    stage = run.first_stage
    if isinstance(work, Reference):
        stage = Stage(dataclasses.replace(stage.steps, dtype="float64"))
    steps = []
    for batch in training.placed_batches(run, work):
        state = stage.init(np.int32(0))
        state, metrics = run_step(stage, state, iter([batch]), run.plan.rates(1))
        velocities = flatten_paths(jax.device_get(state.optimizer.momentum))
        steps.append(Step(float(metrics.loss), velocities))
    return lambda: steps, ""


def compared(dtype: str, reference: Sequence[Step], found: Sequence[Step]) -> list[Result]:
    """Relative errors of losses and gradients, a repeat for each batch."""
    errors = [error(*pair) for pair in zip(reference, found, strict=True)]
    totals, worst, losses, names = zip(*errors, strict=True)
    unit, limit = "relative error", LIMITS.get(dtype)
    passed = limit is None or all(each <= limit for each in (*totals, *losses))  # NaN fails
    verdict = "" if limit is None else f"expected at most {limit:g}: {'yes' if passed else 'NO'}"
    return [
        Result(f"{dtype}: gradients", unit, totals, note=verdict),
        Result(f"{dtype}: gradients of the worst parameter", unit, worst, note=", ".join(names)),
        Result(f"{dtype}: loss", unit, losses),
    ]


def error(reference: Step, found: Step) -> tuple[float, float, float, str]:
    """Relative errors of all gradients, the worst parameter and the loss; the worst one's name."""
    exact = {name: np.asarray(g, np.float64) for name, g in reference.gradients.items()}
    norms = {name: float(np.linalg.norm(g)) for name, g in exact.items()}
    errors = {name: float(np.linalg.norm(found.gradients[name] - g)) for name, g in exact.items()}
    total = np.linalg.norm(list(errors.values())) / np.linalg.norm(list(norms.values()))
    # Some are zero but for rounding: such as a bias before the mean is subtracted.
    floor = 1e-6 * max(norms.values())
    each = {name: errors[name] / max(norms[name], floor) for name in errors}
    worst = max(each, key=lambda name: (np.isnan(each[name]), each[name]))  # NaN before all
    loss = abs(found.loss - reference.loss) / abs(reference.loss)
    return float(total), each[worst], loss, worst
