"""A batch that grows with the noise scale, against fixed batches, at equal images of photographs.

    python scripts/sweep.py --sweep configs/imagenette_growth.py --config.data.source=folder:PATH

The recipe is imagenette_batch. Its trainings at a batch of 256 measured a noise scale of 237, 520,
835 and 2,428 images at epochs 4, 8, 12 and 16 with SGD, and of 196, 111, 202 and 795 with LARS
(records/2026-11-27_noise_scale_imagenette_cpu). The batch becomes the nearest power of two at those
epochs, never a smaller one; the learning rate grows with it by the recipe's rule, linearly for SGD
and as the square root for LARS. Beside it stand a fixed batch of 256 and, with about as many steps
as the growing one, of 448 (SGD) or 320 (LARS). 6 trials.
Expected (three seeds): SGD 76.0 % at 256 images, 74.8 % at 448, 75.6 % growing, in 740, 423 and 426
steps; LARS 73.8 to 73.9 %. All trials of a seed take 36 minutes on one CPU core
(records/2026-11-27_imagenette_growth_cpu/README.md).
Not a published run; the idea is that of Smith et al. 2018 (arXiv 1711.00489).
"""

from pathlib import Path

from ml_collections import ConfigDict

from largebatch.config.recipe_file import execute
from largebatch.errors import ConfigError, did_you_mean
from largebatch.tools.sweep.space import Values, rounded

_POWER = {"sgd": 1.0, "lars": 0.5}  # of the batch, in the rule of the learning rate
_GROWTH = {"sgd": {8: 16, 12: 32, 16: 64}, "lars": {16: 32}}  # epoch: workers of 32 images
_EQUAL_STEPS = {"sgd": 14, "lars": 10}  # workers


def get_config(optimizer: str = "sgd") -> ConfigDict:
    """imagenette_batch at 256 images, with the batch that grows.

    Args:
      optimizer: ``sgd`` or ``lars``.
    """
    if optimizer not in _GROWTH:
        raise ConfigError(f"unknown optimizer {optimizer!r}; {did_you_mean(optimizer, _GROWTH)}")
    config, fixed = execute(Path(__file__).with_name(f"imagenette_batch.py:{optimizer}"))
    config.batch.stages = _stages(optimizer)
    config.norm.precise_batches = fixed.precise_batches(max(_GROWTH[optimizer].values()))
    return config


def sweep() -> Values:
    """Optimizer with its momentum and decay; batch with peak, statistics and stages."""
    optimizer = ("optimizer.name", "optimizer.nesterov", "optimizer.weight_decay")
    points = []
    for name, power in _POWER.items():
        config, fixed = execute(Path(__file__).with_name(f"imagenette_batch.py:{name}"))
        growing = get_config(name)
        options = (name, config.optimizer.nesterov, config.optimizer.weight_decay)
        peak, equal = config.schedule.peak, _EQUAL_STEPS[name]
        scaled = rounded(peak * (equal / 8) ** power)
        points += [
            (*options, 8, peak, config.norm.precise_batches, ()),
            (*options, equal, scaled, fixed.precise_batches(equal), ()),
            (*options, 8, peak, growing.norm.precise_batches, growing.batch.stages),
        ]
    batch = ("batch.workers", "schedule.peak", "norm.precise_batches", "batch.stages")
    return {(*optimizer, *batch): points}


def _stages(optimizer: str) -> tuple[str, ...]:
    """Return the changes of the batch, with the learning rate's factor over that of 256 images."""
    return tuple(
        f"{epoch} epochs: batch.workers={workers} "
        f"rate={rounded((workers / 8) ** _POWER[optimizer])}"
        for epoch, workers in _GROWTH[optimizer].items()
    )
