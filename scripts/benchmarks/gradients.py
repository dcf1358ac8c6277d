"""The gradients of our first step on several batches, written to files, to be compared."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

import jax
import numpy as np

from benchmarks.runner import Figures
from benchmarks.step_work import StepWork, batches
from benchmarks.training import one_device
from largebatch.parallel import from_local
from largebatch.parallel.transfer import OnDevices
from largebatch.training.programs import Programs, run_step
from largebatch.trees import flatten_paths

# The velocity after the first step is then the gradient, in the parameters' own format.
PLAIN = (
    *("optimizer.name=sgd", "optimizer.nesterov=false", "optimizer.weight_decay=0"),
    # Without it, the first gradients of fifty layers depend on every rounding: they differ by 2 %
    # between float32 and float64, and in bfloat16 have nothing in common with either.
    "norm.last_gamma=0",
)


@dataclasses.dataclass(frozen=True)
class GradientWork(StepWork):
    """One step from the first state, for each of BATCHES batches.

    Attributes:
        folder: For the files of the gradients, by parameter.
        is_reference: Everything in float64, on the CPU.
    """

    folder: str = ""
    is_reference: bool = False

    @property
    def environment(self) -> Mapping[str, str]:
        """The reference knows neither the device nor 32 bits."""
        alone = {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1"} if self.is_reference else {}
        return super().environment | alone


def prepare(work: GradientWork) -> Callable[[], Figures]:
    """As of `benchmarks.runner`."""
    run = one_device(work)
    programs = run.first_stage.programs
    if work.is_reference:
        programs = Programs(dataclasses.replace(programs.steps, dtype="float64"))
    losses = {}
    for index, batch in enumerate(batches(work)):
        placed = OnDevices(*(from_local(run.first_stage.mesh, array) for array in batch))
        state, metrics = run_step(
            programs, programs.init(np.int32(0)), iter([placed]), run.plan.rates(1)
        )
        velocities = flatten_paths(jax.device_get(state.optimizer.momentum))
        np.savez(file(work.folder, index), **velocities)
        losses[f"loss {index}"] = float(metrics.loss)
    return lambda: losses


def file(folder: str | Path, index: int) -> Path:
    """Of the gradients of one batch."""
    return Path(folder, f"{index}.npz")
