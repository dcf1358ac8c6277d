"""Training on mixed and erased images: the same mathematics everywhere, and resumed bitwise."""

import jax
import numpy as np
import pytest

from largebatch.config import Facts
from largebatch.config.plan import microbatch_candidates
from largebatch.config.resolution import resolve
from largebatch.data.mixing import erased_boxes, mixtures
from largebatch.errors import ConfigError
from largebatch.parallel.transfer import Augmented
from largebatch.training.stage import Stage
from tests import reference
from tests.training import test_equality as equality
from tests.training import worlds
from tests.training.worlds import EQUAL, RATES, assert_equal, trained

LOSSES = {
    "softmax": {"label_smoothing": 0.1},
    "sigmoid": {"kind": "sigmoid", "label_smoothing": 0.1},
    "threshold": {"kind": "sigmoid", "label_smoothing": 0.1, "target_threshold": 0.2},
}
AUGMENT = {"mixup": 0.8, "cutmix": 1.0, "erase": 0.5}


def programs(devices, microbatch, loss, images=2):
    made = worlds.config(
        model=worlds.RESNET,
        optimizer=equality.SGD,
        batch={"images_per_worker": images},
        loss=LOSSES[loss],
        augment=AUGMENT,
    )
    return Stage(worlds.steps(made, devices, microbatch))


def batch(step, images):
    """Images with what is erased and mixed, and labels."""
    pixels, labels = worlds.batch(step, images)
    positions, shape = np.arange(images) + step * images, worlds.SHAPE[:2]
    zeros = np.zeros(images, np.int64)
    boxes = erased_boxes(shape, 0.5, seed=0, epochs=zeros, ids=positions)
    found = mixtures(shape, mixup=0.8, cutmix=1.0, seed=0, positions=positions)
    return Augmented(pixels, boxes, found), labels


def by_hand(params, stats, images, labels, workers, loss):
    """The mean loss of a global batch, image by image, with a target for every class."""
    pixels = (images.images.astype(np.float64) - worlds.MEAN) / worlds.STD
    for image, (top, left, bottom, right) in zip(pixels, images.erased, strict=True):
        image[top:bottom, left:right] = 0
    mixed, targets = pixels.copy(), np.zeros((len(labels), worlds.CLASSES))
    for row, found in enumerate(images.mixtures.astype(np.float64)):
        partner = row ^ 1
        mixed[row] = found[1] * pixels[row] + (1 - found[1]) * pixels[partner]
        top, left, bottom, right = found[2:].astype(int)
        mixed[row, top:bottom, left:right] = pixels[partner, top:bottom, left:right]
        targets[row, labels[row]] += found[0]
        targets[row, labels[partner]] += 1 - found[0]
    targets = 0.9 * targets + 0.1 / worlds.CLASSES
    total = 0.0
    for part, target in zip(np.split(mixed, workers), np.split(targets, workers), strict=True):
        logits, _ = reference.forward(params, stats, part, depth=6, epsilon=1e-5, train=True)
        logits = np.asarray(logits)
        if loss == "softmax":
            total -= (target * np.log(np.exp(logits) / np.exp(logits).sum(1)[:, None])).sum()
        else:
            target = (target > 0.2).astype(float) if loss == "threshold" else target
            p = 1 / (1 + np.exp(-logits))
            total -= (target * np.log(p) + (1 - target) * np.log(1 - p)).mean(1).sum()
    return total / len(labels)


@pytest.mark.parametrize(
    "loss", ["threshold", *(pytest.param(x, marks=pytest.mark.slow) for x in LOSSES if x[1] != "h")]
)
def test_a_step_equals_the_definition_on_any_devices(loss):
    """In float64, as `test_equality`; with one device alone, four devices, and microbatches."""
    with jax.enable_x64(True):
        state = equality.initial("sgd")
        whole = trained(programs(1, 8, loss), state, RATES[:2], batch)
        images, labels = batch(0, 16)
        expected = by_hand(state.params, state.stats, images, labels, 8, loss)
        np.testing.assert_allclose(whole[1][0].loss, expected, rtol=EQUAL)
        assert_equal(trained(programs(4, 1, loss), state, RATES[:2], batch), whole)


def plan(microbatch, images, *, workers=8, devices=2, stages=(), mixup=0.2):
    batch = {"images_per_worker": images, "microbatch": microbatch, "workers": workers}
    made = worlds.config(
        batch=batch | {"stages": stages}, augment={"mixup": mixup}, schedule={"length": "2 epochs"}
    )
    return resolve(made, Facts(1000, 100, worlds.CLASSES, worlds.SHAPE, devices)).first_stage


def test_a_microbatch_holds_whole_pairs():
    assert plan("auto", 3).microbatch == 4
    assert plan(2, 3).microbatch == 2
    assert plan(1, 2).microbatch == 1
    assert plan(1, 3, mixup=0.0).microbatch == 1
    mixed = worlds.config(batch={"images_per_worker": 3, "workers": 8}, augment={"mixup": 0.2})
    facts = Facts(1000, 100, worlds.CLASSES, worlds.SHAPE, devices=2)
    assert microbatch_candidates(mixed, facts) == (2, 4)
    with pytest.raises(ConfigError, match=r"augment\.mixup.*images_per_worker=3.*worker=4$"):
        plan(1, 3)
    with pytest.raises(ConfigError, match=r"augment\.mixup.*images_per_worker=3.*worker=4$"):
        plan("auto", 3, workers=6)  # each device has three: no microbatch is even
    stages = ("999 samples: batch.images_per_worker=2 augment.mixup=0.1",)
    with pytest.raises(ConfigError, match=r"batch\.stages.* 999"):
        plan(1, 3, workers=1, devices=1, stages=stages, mixup=0.0)
