"""A training of PyTorch on class folders: torchvision's layers, transforms and options."""

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.competitor import Figures
from benchmarks.epochs import EpochWork, memory_gib, timed_epochs
from benchmarks.peers.torch_network import load, resnet

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def torchvision(work: EpochWork) -> tuple[Callable[[], Figures], str]:
    """ImageFolder in a DataLoader with a worker process for each core; channels_last, eager.

    As in torchvision's reference script, without its averages of weights: random crop and flip on
    Pillow images, SGD with Nesterov momentum, no weight decay on biases and BatchNorm, smoothed
    labels. The order of the images and the learning rate of each step are ours.
    """
    start = time.perf_counter()
    torch, datasets = load("torch"), load("torchvision.datasets")
    loaders = {kind: loader(work, torch, datasets, kind) for kind in ("train", "val")}
    torch.manual_seed(work.seed)
    network = resnet(work.network, work.width, work.classes).to(memory_format=torch.channels_last)
    decayed = [p for p in network.parameters() if p.ndim > 1]
    others = [p for p in network.parameters() if p.ndim <= 1]
    optimizer = torch.optim.SGD(
        [
            {"params": decayed, "weight_decay": work.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ],
        lr=work.learning_rates[0],
        momentum=work.momentum,
        nesterov=True,
    )
    criterion = torch.nn.CrossEntropyLoss(label_smoothing=work.label_smoothing)

    def evaluate() -> float:
        network.eval()
        with torch.inference_mode():
            right, total = 0, 0
            for images, labels in loaders["val"]:
                found = network(images.contiguous(memory_format=torch.channels_last)).argmax(1)
                right, total = right + int((found == labels).sum()), total + len(labels)
        network.train()
        return right / total

    def epochs() -> Iterator[tuple[int, float]]:
        images_before = 0
        network.train()
        for step, (images, labels) in enumerate(loaders["train"], start=1):
            for group in optimizer.param_groups:
                group["lr"] = work.learning_rates[step - 1]
            optimizer.zero_grad(set_to_none=True)
            inputs = images.contiguous(memory_format=torch.channels_last)
            criterion(network(inputs), labels).backward()
            optimizer.step()
            if step in work.evaluate_after:
                yield step * work.batch - images_before, evaluate()
                images_before = step * work.batch

    about = f"torchvision's blocks, Pillow and DataLoader on torch {torch.__version__}, eager"
    return timed_epochs(epochs(), memory_gib, start), about


def loader(work: EpochWork, torch: Any, datasets: Any, kind: str) -> Any:
    """The DataLoader of a split; of the training split, all positions in our order."""
    transforms = load("torchvision.transforms")
    size = work.image_size
    if kind == "train":
        steps = [
            transforms.RandomResizedCrop(size, scale=work.crop_area, ratio=work.crop_ratio),
            transforms.RandomHorizontalFlip(),
        ]
    else:
        resized = round(size / work.evaluation_crop)
        steps = [transforms.Resize(resized), transforms.CenterCrop(size)]
    steps += [transforms.PILToTensor(), transforms.ConvertImageDtype(torch.float32)]
    made = transforms.Compose([*steps, transforms.Normalize(MEAN, STD)])
    return torch.utils.data.DataLoader(
        datasets.ImageFolder(os.path.join(work.folder, kind), made),
        batch_size=work.batch,
        sampler=work.order.tolist() if kind == "train" else None,
        num_workers=len(os.sched_getaffinity(0)),
        persistent_workers=True,
        drop_last=kind == "train",
    )
