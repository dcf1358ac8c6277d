"""Accuracy against batch on photographs at equal epochs: SGD, LARS and LAMB.

    python scripts/sweep.py --sweep configs/imagenette_batch.py --config.data.source=folder:PATH

Batches from 64 to 9,216 of the 9,469 training images, 0.7 to 97 % of an epoch; 608 is the share of
the record. Every worker has 32 images and batch statistics of its own. The peak rate grows with the
batch, linearly for SGD (Goyal et al. 2017, arXiv 1706.02677) and as its square root for LARS and
LAMB (You et al. 2020, arXiv 1904.00962). The learning rates were chosen on nine tenths of the
training images at batches of 256 and 1,024 (records/2026-11-23_learning_rates_imagenette_cpu.md):
LARS's follow its rule, LAMB's do not contradict it, and SGD's is the best one at 256, since linear
scaling already failed at 1,024. Each evaluation recomputes the BatchNorm statistics from about
9,000 training images. 18 trials.
Expected: 74.5 to 76.6 % at a batch of 64, 72.7 to 74.2 % at 608; from 4,096 on SGD does not train
and the others reach 17.7 to 59.7 % (means of three seeds). All trials of a seed take 64 minutes on
two CPU cores with --jobs=2 (records/2026-11-24_imagenette_batch_cpu/README.md).
Not a published run. `imagenette_batch.py:sgd` is one of the optimizers, at a batch of 256.
"""

from pathlib import Path

from ml_collections import ConfigDict

from largebatch.config.recipe_file import execute
from largebatch.errors import ConfigError, did_you_mean
from largebatch.tools.sweep.space import Values, rounded

_IMAGES = 32  # of a worker
_WORKERS = (2, 8, 19, 32, 128, 288)
# Peak rate at a batch of 256, exponent of the batch, weight decay.
_OPTIMIZERS = {"sgd": (0.4, 1.0, 5e-4), "lars": (4.0, 0.5, 5e-5), "lamb": (0.016, 0.5, 0.02)}


def get_config(optimizer: str = "lars") -> ConfigDict:
    """The network and the images of imagenette_laptop for 20 epochs, at a batch of 256.

    Args:
      optimizer: ``sgd``, ``lars`` or ``lamb``.
    """
    if optimizer not in _OPTIMIZERS:
        raise ConfigError(
            f"unknown optimizer {optimizer!r}; {did_you_mean(optimizer, _OPTIMIZERS)}"
        )
    config, _ = execute(Path(__file__).with_name("imagenette_laptop.py"))
    config.norm.span = 1
    config.batch.workers = 8
    config.batch.images_per_worker = _IMAGES
    config.batch.microbatch = 1  # little memory at every batch, and as fast as more on CPUs
    config.optimizer.name = optimizer
    config.optimizer.nesterov = optimizer == "sgd"
    config.schedule.peak, _, config.optimizer.weight_decay = _OPTIMIZERS[optimizer]
    config.schedule.length = "20 epochs"
    config.schedule.warmup = "4 epochs"
    config.schedule.decay = "polynomial"
    config.norm.statistics = "precise"  # not to compare moving averages of 21 and 2,960 steps
    config.norm.precise_batches = precise_batches(config.batch.workers)
    config.run.evaluate_every = "10 epochs"
    return config


def sweep() -> Values:
    """Optimizer with its momentum and decay; batch with peak and images for precise statistics."""
    keys = ("optimizer.name", "optimizer.nesterov", "optimizer.weight_decay")
    points = []
    for name, (peak, power, decay) in _OPTIMIZERS.items():
        for workers in _WORKERS:
            scaled = rounded(peak * (workers * _IMAGES / 256) ** power)
            precise = precise_batches(workers)
            points.append((name, name == "sgd", decay, workers, scaled, precise))
    return {(*keys, "batch.workers", "schedule.peak", "norm.precise_batches"): points}


def precise_batches(workers: int) -> int:
    """Return the number of batches with about as many images as the largest batch."""
    return round(_WORKERS[-1] / workers)
