"""What our train step needs on the device, by the compiler's own account; nothing is run."""

from collections.abc import Callable

from benchmarks.runner import Figures
from benchmarks.step_work import StepWork
from benchmarks.training import one_device


def prepare(work: StepWork) -> Callable[[], Figures]:
    """As of `benchmarks.runner`."""
    programs = one_device(work).first_stage.programs
    _ = programs.finish
    needed = float(programs.bytes["train step"])
    return lambda: {"program_bytes": needed, "compile_s": programs.compile_s}
