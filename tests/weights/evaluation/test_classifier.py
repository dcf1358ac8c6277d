"""The program of an evaluation against the plain network, on one and on eight devices."""

import jax
import numpy as np
import pytest

from largebatch import parallel
from largebatch.errors import ConfigError
from largebatch.parallel import from_local
from largebatch.parallel.transfer import OnDevices
from largebatch.weights.evaluation.classifier import Classifier
from largebatch.weights.evaluation.run import batch_size
from tests.weights.evaluation import cases, networks


@pytest.fixture(scope="module", autouse=True)
def _quick_compilation():
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


OF = networks.weights(("a", "b", "c", "d", "e", "f"))
IMAGES = np.random.default_rng(0).integers(0, 256, (8, 24, 24, 3), np.uint8)
LABELS = np.array([0, 1, 0, 1, 1, 0, 0, 1], np.int32)
EVERY = np.arange(6, dtype=np.int32)


def made(devices, outputs=EVERY, *, only=False, most=5, **changes):
    mesh = parallel.make_mesh(jax.devices()[:devices], 1)
    return Classifier(OF, networks.settings(OF, **changes), mesh, outputs, only=only, most=most)


def found_by(classifier):
    images, labels = (from_local(classifier.mesh, a) for a in (IMAGES, LABELS))
    return jax.device_get(classifier(OnDevices(images, labels, shape=(24, 24))))


def plain(images=IMAGES):
    pixels = (images.astype(np.float32) - np.float32(OF.mean)) / np.float32(OF.std)
    return np.asarray(jax.jit(OF.model.apply)(OF.params, OF.stats, pixels))


@pytest.fixture(scope="module")
def logits():
    return plain()


@pytest.mark.parametrize("devices", [1, 8])
def test_logits_are_the_networks(devices, logits):
    assert np.ptp(logits, axis=1).min() > 0.1
    # float32 sums in another order.
    np.testing.assert_allclose(made(devices).logits(IMAGES), logits, rtol=2e-5, atol=2e-5)


def test_labels_are_looked_up_and_classes_left_out(logits):
    outputs = np.array([4, 2], np.int32)
    for only in (False, True):
        found = found_by(made(1, outputs, only=only, most=2))
        expected = cases.kept(*(logits[:, outputs], LABELS) if only else (logits, outputs[LABELS]))
        np.testing.assert_array_equal(found.top, expected.top[:, :2])
        np.testing.assert_array_equal(found.top1, expected.top1)
        np.testing.assert_allclose(found.loss, expected.loss, rtol=1e-4, atol=1e-5)


def test_the_mirror_image_is_half_of_the_mean(logits):
    found = made(1, flip=True).logits(IMAGES)
    expected = (logits + plain(IMAGES[:, :, ::-1])) / 2
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


def test_the_arithmetic_is_that_which_is_asked_for(logits):
    found = made(1, dtype="bfloat16").logits(IMAGES)
    assert found.dtype == np.float32
    apart = np.abs(found - logits).max() / np.abs(logits).max()
    assert 1e-4 < apart < 0.1  # bfloat16 has 8 bits


def test_rows_of_a_batch():
    assert batch_size(1000, 8) == 512
    assert batch_size(1000, 8, 100) == 104
    assert batch_size(3, 8, 100) == 8
    assert batch_size(3, 1) == 3
    with pytest.raises(ConfigError, match=r"^--batch=-1 must be above 0"):
        batch_size(3, 1, -1)
