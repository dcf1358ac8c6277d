"""The program of an evaluation against the plain network, on one and on eight devices."""

import jax
import numpy as np
import pytest

from largebatch import parallel
from largebatch.parallel import from_local
from largebatch.parallel.transfer import OnDevices
from largebatch.weights.evaluation.classes import Matching
from largebatch.weights.evaluation.inference import Evaluator
from largebatch.weights.evaluation.options import with_flags
from tests.weights.evaluation import cases

OF = cases.weights(("a", "b", "c", "d", "e", "f"))
IMAGES = np.random.default_rng(0).integers(0, 256, (8, 24, 24, 3), np.uint8)
LABELS = np.array([0, 1, 0, 1, 1, 0, 0, 1], np.int32)


def found_by(devices, outputs=range(6), *, only=False, **flags):
    """Outputs for all rows, with all classes."""
    mesh = parallel.make_mesh(jax.devices()[:devices], 1)
    matching = Matching.of(OF.classes, outputs, "")
    matching = matching.restricted() if only else matching
    evaluator = Evaluator(*with_flags(OF, flags), matching, mesh=mesh, top=6)
    images, labels = (from_local(mesh, a) for a in (IMAGES, LABELS))
    return jax.device_get(evaluator(OnDevices(images, labels)))


def plain(images=IMAGES):
    pixels = (images.astype(np.float32) - np.float32(OF.mean)) / np.float32(OF.std)
    return np.asarray(jax.jit(OF.model.apply)(OF.params, OF.stats, pixels))


@pytest.fixture(scope="module")
def logits():
    return plain()


def check(found, logits, labels, rtol=1e-4):
    expected = cases.outputs_of(logits, labels, 0.0, 6)
    np.testing.assert_array_equal(found.top[:, 0], expected.top[:, 0])
    np.testing.assert_array_equal(found.top1, expected.top1)
    # float32 sums in another order.
    np.testing.assert_allclose(found.probabilities, expected.probabilities, rtol=rtol, atol=1e-5)
    np.testing.assert_allclose(found.loss, expected.loss, rtol=rtol, atol=1e-5)


@pytest.mark.parametrize("devices", [1, 8])
def test_outputs_are_the_networks(devices, logits):
    assert np.ptp(logits, axis=1).min() > 0.1
    check(found_by(devices), logits, LABELS)


def test_labels_are_looked_up_and_classes_left_out(logits):
    outputs = np.array([4, 2], np.int32)
    check(found_by(1, outputs), logits, outputs[LABELS])
    check(found_by(1, outputs, only=True), logits[:, outputs], LABELS)


def test_the_mirror_image_is_half_of_the_mean(logits):
    check(found_by(1, flip=True), (logits + plain(IMAGES[:, :, ::-1])) / 2, LABELS)


def test_the_arithmetic_is_the_requested_one(logits):
    found, expected = found_by(1, dtype="bfloat16"), cases.outputs_of(logits, LABELS)
    assert found.loss.dtype == np.float32
    apart = np.abs(found.loss - expected.loss).max()
    assert 1e-5 < apart < 0.1  # bfloat16 has 8 bits
