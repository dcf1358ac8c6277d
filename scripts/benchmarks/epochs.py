"""Trainings on class folders as competitors: their common work, the clock, and our training."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.competitor import FailedError, Figures, Work
from benchmarks.measure import GIB, RATE, TOP1
from largebatch.tracking import read_rows

SECONDS, MEMORY = "s since the start", "GiB without files, at the end of an epoch"
_TRAIN = Path(__file__).parents[2] / "train.py"
_POLL_S = 0.005


@dataclass(frozen=True)
class EpochWork(Work):
    """The training of a recipe on class folders; a repeat is an epoch and its evaluation.

    Peers get plain numbers, so that their processes need not import JAX.

    Attributes:
        folder: Class folders in train/ and val/.
        workdir: Directory for the files of our training.
        recipe: Recipe of our training.
        overrides: Further options of our training, as (key, text).
        network: Key of `largebatch.models.DEPTHS`.
        width: Channels of the first stage.
        classes: Outputs of the network.
        batch: Images of a step.
        image_size: Side of a training image in pixels.
        crop_area: Least and greatest area of a training crop, as a share.
        crop_ratio: Least and greatest width / height of a training crop.
        evaluation_crop: Side of the centre crop of evaluation, as a share of the shorter side.
        label_smoothing: Label smoothing of the loss.
        momentum: Momentum of SGD, with Nesterov's form.
        weight_decay: Weight decay of convolution and dense kernels.
        seed: Seed of the initial values.
        learning_rates: Learning rate of each step.
        order: int64 array of the training image at each sample position, as files are sorted.
        evaluate_after: Numbers of the steps, from 1, that an evaluation follows.
        flax_examples: Checkout of google/flax; empty without one.
    """

    folder: str
    workdir: str
    recipe: str
    overrides: tuple[tuple[str, str], ...]
    network: str
    width: int
    classes: int
    batch: int
    image_size: int
    crop_area: tuple[float, float]
    crop_ratio: tuple[float, float]
    evaluation_crop: float
    label_smoothing: float
    momentum: float
    weight_decay: float
    seed: int
    learning_rates: tuple[float, ...]
    order: np.ndarray
    evaluate_after: tuple[int, ...]
    flax_examples: str = ""


def timed_epochs(
    epochs: Iterator[tuple[int, float]], memory: Callable[[], float], start: float
) -> Callable[[], Figures]:
    """The repeat of a training.

    Args:
        epochs: Trains and evaluates one epoch after the other; yields the number of its images and
            the top-1 accuracy.
        memory: GiB in use.
        start: `time.perf_counter()` before anything was built or compiled.
    """
    used = time.perf_counter() - start

    def repeat() -> Figures:
        nonlocal used
        begun = time.perf_counter()
        images, top1 = next(epochs)
        in_use = memory()  # before the clock stops, because processes continue meanwhile
        seconds = time.perf_counter() - begun
        used += seconds
        return {RATE: images / seconds, TOP1: 100 * top1, SECONDS: used, MEMORY: in_use}

    return repeat


def ours(work: EpochWork) -> tuple[Callable[[], Figures], str]:
    """Ours: train.py itself, in a process of its own, with its log and its checkpoints."""
    start = time.perf_counter()
    workdir = Path(work.workdir)
    command = [sys.executable, str(_TRAIN), f"--config={work.recipe}", f"--workdir={workdir}"]
    command += [f"--config.{key}={text}" for key, text in work.overrides]
    with open(workdir / "output.txt", "w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)

    def epochs() -> Iterator[tuple[int, float]]:
        before = 0
        for row in _evaluations(workdir, process):
            yield row["samples"] - before, row["validation/top1"]
            before = row["samples"]

    about = "train.py with its log and checkpoints"
    return timed_epochs(epochs(), lambda: memory_gib(excluded=os.getpid()), start), about


def _evaluations(workdir: Path, process: subprocess.Popen[bytes]) -> Iterator[Mapping[str, Any]]:
    """The rows of the log with an evaluation, as soon as each is written.

    Raises:
        FailedError: The training ended before.
    """
    log = workdir / "metrics.jsonl"
    size = read = 0
    while True:
        ended = process.poll() is not None
        if log.is_file() and log.stat().st_size > size:
            size = log.stat().st_size
            found = [row for row in read_rows(log) if "validation/top1" in row]
            yield from found[read:]
            read = len(found)
        elif ended:
            printed = (workdir / "output.txt").read_text()[-2000:]
            raise FailedError(f"train.py ended with code {process.returncode}: {printed}")
        time.sleep(_POLL_S)


def memory_gib(*, excluded: int = 0) -> float:
    """Return the memory of the processes of this session without mapped files, in GiB.

    Memory that several processes share counts once. Mapped files, such as libraries, are left out,
    because processes of other competitors may share them.

    Args:
        excluded: Number of a process that is not counted.
    """
    session, kib = os.getsid(0), 0
    for folder in Path("/proc").glob("[0-9]*"):
        number = int(folder.name)
        try:
            if number == excluded or os.getsid(number) != session:
                continue
            lines = (folder / "smaps_rollup").read_text().splitlines()
        except OSError:  # it has ended
            continue
        kib += sum(int(x.split()[1]) for x in lines if x.startswith(("Pss_Anon:", "Pss_Shmem:")))
    return kib * 1024 / GIB
