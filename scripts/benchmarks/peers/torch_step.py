"""The training step of a ResNet of torchvision's blocks, with torch's optimizer.

channels_last, autocast to the number format asked for, SGD with Nesterov momentum (on GPUs in one
fused kernel), label-smoothed cross-entropy. The images are normalised floats on the device.
"""

import itertools
import time
from collections.abc import Callable
from typing import Any

from benchmarks import training
from benchmarks.competitor import Figures
from benchmarks.measure import GIB
from benchmarks.peers.torch_network import load, resnet
from benchmarks.training import StepWork, timed_steps


def compiled(work: StepWork) -> tuple[Callable[[], Figures], str]:
    """The competitor through torch.compile."""
    return eager(work, "torch.compile")


def eager(work: StepWork, mode: str = "eager") -> tuple[Callable[[], Figures], str]:
    """The competitor in eager mode."""
    torch = load("torch")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = device.type == "cuda"
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    network = (
        resnet(work.network, work.width, work.classes)
        .to(device, memory_format=torch.channels_last)
        .train()
    )
    called = torch.compile(network) if mode == "torch.compile" else network
    optimizer = torch.optim.SGD(
        network.parameters(),
        training.LEARNING_RATE,
        momentum=training.MOMENTUM,
        nesterov=True,
        weight_decay=training.DECAY,
        **({"fused": True} if on_gpu else {"foreach": True}),
    )
    criterion = torch.nn.CrossEntropyLoss(label_smoothing=training.SMOOTHING)
    low, dtype = work.dtype != "float32", getattr(torch, work.dtype)

    def placed(images: Any, labels: Any) -> tuple[Any, Any]:
        nchw = torch.from_numpy(images).permute(0, 3, 1, 2).to(device, dtype)
        nchw = nchw.contiguous(memory_format=torch.channels_last)
        return nchw, torch.from_numpy(labels).to(device).long()

    feed = itertools.cycle([placed(*b) for b in training.batches(work, normalise=True)])
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
        if on_gpu:
            torch.cuda.synchronize()
        return float(losses[0])

    start = time.perf_counter()
    step()
    wait()
    cost = {training.COMPILE_S: time.perf_counter() - start}
    timed = timed_steps(step, wait, work)

    def repeat() -> Figures:
        figures = timed() | cost
        if on_gpu:
            figures[training.IN_USE_GIB] = torch.cuda.max_memory_allocated() / GIB
        return figures

    how = f"channels_last, autocast {work.dtype}, {mode}"
    return repeat, f"torchvision's blocks on torch {torch.__version__}, {how}"
