"""torchvision's ResNet through torch.compile, see `torch_step`."""

from collections.abc import Callable

from benchmarks.peers import torch_step
from benchmarks.runner import Figures
from benchmarks.step_work import StepWork


def prepare(work: StepWork) -> Callable[[], Figures]:
    """As of `benchmarks.runner`."""
    return torch_step.prepare(work, torch_step.need().compile)


def about(work: StepWork) -> str:
    """How it is done."""
    return f"{torch_step.about(work)}, torch.compile"
