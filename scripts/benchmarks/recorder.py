"""A profile of some training steps, and the compiled program that it is to be read with."""

from pathlib import Path

import jax

from benchmarks.xla import Stepper
from largebatch.tools.report.trace import PROGRAM

STEPS = 3


def record(directory: str, name: str, stepper: Stepper, program: jax.stages.Compiled) -> None:
    """Writes the profile of STEPS steps and the text of their program.

    Args:
        directory: Holds a folder for each competitor.
        name: Of the competitor.
        stepper: Its steps; one is taken first.
        program: What a step runs.
    """
    folder = Path(directory, name)
    folder.mkdir(parents=True, exist_ok=True)
    folder.joinpath(PROGRAM).write_text(program.as_text())
    stepper()
    stepper.wait()
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # calls of Python functions would slow the dispatch down
    with jax.profiler.trace(folder, profiler_options=options):
        for _ in range(STEPS):
            stepper()
        stepper.wait()
