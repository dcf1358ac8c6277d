"""The training step of torchvision's ResNet, or timm's: their network, torch's optimizer, called.

channels_last, autocast to the number format asked for, SGD with Nesterov momentum in one fused
kernel, label-smoothed cross-entropy. The images are normalised floats on the device.
"""

import itertools
import time
from collections.abc import Callable
from typing import Any

from benchmarks.pace import timed_steps
from benchmarks.runner import Figures
from benchmarks.step_work import DECAY, MOMENTUM, RATE, SMOOTHING, StepWork, normalised
from benchmarks.workload import Absent


def prepare(work: StepWork, compiler: Callable[[Any], Any]) -> Callable[[], Figures]:
    """As of `benchmarks.runner`.

    Args:
        work: The step.
        compiler: Makes of the network what is called instead.
    """
    torch = need()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    if device.type == "cpu" and work.cores:
        torch.set_num_threads(len(work.cores))
    torch.manual_seed(0)
    raw = network(work).to(device, memory_format=torch.channels_last).train()
    called = compiler(raw)
    fused = {"fused": True} if device.type == "cuda" else {"foreach": True}
    optimizer = torch.optim.SGD(
        raw.parameters(), RATE, momentum=MOMENTUM, nesterov=True, weight_decay=DECAY, **fused
    )
    criterion = torch.nn.CrossEntropyLoss(label_smoothing=SMOOTHING)
    low = work.dtype != "float32"
    dtype = getattr(torch, work.dtype)
    feed = itertools.cycle([_on(torch, device, dtype, *batch) for batch in normalised(work)])
    losses = []

    def step() -> None:
        images, labels = next(feed)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, dtype=dtype if low else None, enabled=low):
            loss = criterion(called(images), labels)
        loss.backward()
        optimizer.step()
        losses[:] = [loss.detach()]

    def wait() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize()
        return float(losses[0])

    start = time.perf_counter()
    step()
    wait()
    cost = {"compile_s": time.perf_counter() - start}
    timed = timed_steps(step, wait, work)

    def repeat() -> Figures:
        figures = timed() | cost
        if device.type == "cuda":
            figures["peak_bytes"] = float(torch.cuda.max_memory_allocated())
        return figures

    return repeat


def about(work: StepWork) -> str:
    """Whose network, and the version."""
    torch = need()
    origin = network(work).__class__.__module__.partition(".")[0]
    return f"{origin} on torch {torch.__version__}, channels_last, autocast {work.dtype}"


def need() -> Any:
    """Torch.

    Raises:
        Absent: It is not installed.
    """
    try:
        import torch
    except Exception as error:  # its binary part may also fail to load
        raise Absent(f"torch cannot be imported ({type(error).__name__}: {error})") from error
    return torch


def network(work: StepWork) -> Any:
    """The network of torchvision, else of timm.

    Raises:
        Absent: Neither can be imported, or they have it only at the width of 64.
    """
    if work.width != 64:
        raise Absent(f"torchvision and timm have {work.network} at width 64, not {work.width}")
    reasons = []
    for library, make in (("torchvision", _torchvision), ("timm", _timm)):
        try:
            return make(work)
        except Exception as error:  # its binary part may not match torch's
            reasons.append(f"{library}: {type(error).__name__}: {error}")
    raise Absent(f"no network could be had; {'; '.join(reasons)}")


def _torchvision(work: StepWork) -> Any:
    from torchvision import models

    return getattr(models, work.network)(num_classes=work.classes)


def _timm(work: StepWork) -> Any:
    import timm

    return timm.create_model(work.network, num_classes=work.classes)


def _on(torch: Any, device: Any, dtype: Any, images: Any, labels: Any) -> tuple[Any, Any]:
    nchw = torch.from_numpy(images).permute(0, 3, 1, 2).to(device, dtype)
    labels = torch.from_numpy(labels).to(device).long()
    return nchw.contiguous(memory_format=torch.channels_last), labels
