"""The noise scale of LARS's own steps: `python layers.py IMAGES RUN [RUN ...]`.

Where an update is P g, with a factor P for each layer, the noise scale of its steps is
Σ P tr(Σ) / Σ P ‖G‖² over the layers; that of SGD has P = 1. With LARS, P is the trust ratio. RUN is
a training of `trials.py`, whose newest checkpoint gives the weights. ‖G‖² and tr(Σ) of each layer
follow from the gradients of 96 microbatches of 32 images, as in `largebatch.training.noise_scale`.
"""

import sys

import jax
import numpy as np

from largebatch import parallel, weights
from largebatch.config import Facts, load
from largebatch.config.resolution import resolve
from largebatch.data.feed import train_rows
from largebatch.data.open import augment_of, open_split
from largebatch.data.order import Order
from largebatch.optim.lars import lars_of
from largebatch.parallel import REPLICATED, SPLIT
from largebatch.training.rules import optimizer_of
from largebatch.training.steps import Steps, model_of
from largebatch.trees import flatten_paths

IMAGES, MICROBATCHES = 32, 96


def noise_scales(images: str, run: str) -> tuple[float, float]:
    """Return the noise scale of SGD's and of LARS's steps at the end of a run, in images."""
    config = load("imagenette_batch:lars", [("data.source", f"folder:{images}")])
    train = open_split(config, "train")
    plan = resolve(config, Facts(len(train), 3925, 10, train.image_shape, devices=1))
    stage, model = plan.first_stage, model_of(plan)
    mesh = parallel.make_mesh(jax.devices()[:1], stage.members)
    rule = optimizer_of(config, model.kinds())
    steps = Steps(stage, model, rule, mesh, train.mean, train.std, "float32")
    gradients = jax.jit(
        parallel.map_over(
            mesh,
            lambda *arguments: steps.objective.gradients(*arguments)[0],
            (REPLICATED, REPLICATED, SPLIT, SPLIT),
            REPLICATED,
        )
    )
    begin, order, augment = weights.read(run), Order(77, len(train)), augment_of(config, train.mean)
    found = []
    for first in range(0, IMAGES * MICROBATCHES, IMAGES):
        rows = train_rows(train, order, augment, np.arange(first, first + IMAGES))
        found.append(gradients(begin.params, begin.stats, rows.images, rows.labels))
    layers = flatten_paths(jax.tree.map(lambda *each: np.stack(each).astype(np.float64), *found))
    sums = np.zeros((2, 2))
    settings, decay = lars_of(config.optimizer), config.optimizer.weight_decay
    for path, each in layers.items():
        each = each.reshape(MICROBATCHES, -1)
        small, large = (each**2).sum(1).mean(), (each.mean(0) ** 2).sum()
        signal = (MICROBATCHES * large - small) / (MICROBATCHES - 1)
        noise = (small - large) / (1 / IMAGES - 1 / (IMAGES * MICROBATCHES))
        ratio = 1.0
        if path.endswith("kernel"):  # the flavour leaves out the others
            weight = np.linalg.norm(flatten_paths(begin.params)[path])
            norm = np.sqrt(max(signal, 0)) + decay * weight
            ratio = settings.trust_coefficient * weight / norm
        sums += np.outer((1, ratio), (noise, signal))
    return tuple(sums[:, 0] / sums[:, 1])


if __name__ == "__main__":
    for name in sys.argv[2:]:
        plain, layerwise = noise_scales(sys.argv[1], name)
        print(f"{name}: noise scale {plain:,.0f}, of LARS's steps {layerwise:,.0f}", flush=True)
