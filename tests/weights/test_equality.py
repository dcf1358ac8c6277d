"""The same logits as PyTorch, timm, transformers and ONNX Runtime, in both directions.

The limit of 1e-4 is five times the largest difference that has been seen, 2.1e-5 of logits of 25:
roundings of float32 sums in another order, through 50 layers. The least of mistakes, another
epsilon, makes more than 1e-3 in networks of these values.
"""

import dataclasses
import importlib.util

import numpy as np
import pytest
from PIL import Image

from largebatch.models import Model
from largebatch.trees import flatten_paths
from largebatch.weights import export, hub, read, reading, verification
from tests.weights import libraries
from tests.weights.libraries import CASES, MAKERS, NETWORKS
from tests.weights.samples import TINY, sample


def needs(library):
    """Skip with the reason, unless it is installed."""
    for package in {library, *({"torch"} if library in MAKERS else ())}:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    if library == "timm":
        libraries.import_timm()


@pytest.mark.parametrize(("network", "library"), CASES)
def test_ours_is_theirs(network, library, tmp_path):
    needs(library)
    written, seen = libraries.ours_to_theirs(library, NETWORKS[network], tmp_path)
    assert seen.difference <= 1e-4
    assert seen.largest > 0.1
    # And back to the bit.
    found = read(written.path)
    for part in ("params", "stats"):
        ours, theirs = (flatten_paths(getattr(w, part)) for w in (written.weights, found))
        assert list(ours) == list(theirs)
        assert all(ours[path].tobytes() == theirs[path].tobytes() for path in ours)


@pytest.mark.parametrize(("network", "library"), [c for c in CASES if c[1] in MAKERS])
def test_theirs_is_ours(network, library, tmp_path):
    needs(library)
    weights, module, seen = libraries.theirs_to_ours(library, NETWORKS[network], tmp_path)
    assert weights.model == NETWORKS[network]
    assert seen.difference <= 1e-4
    assert seen.largest > 0.1
    # And back to the bit, every array of theirs accounted for.
    form, name = libraries.FORMATS[library]
    path = export(weights, tmp_path / name, form).path
    arrays, _ = reading.read_safetensors(path / hub.TENSORS if path.is_dir() else path)
    state = {key: tensor.numpy() for key, tensor in module.state_dict().items()}
    assert arrays.keys() == state.keys()
    for key, array in state.items():
        if not key.endswith("num_batches_tracked"):
            np.testing.assert_array_equal(arrays[key], array, strict=True)


def test_timm_builds_what_it_has_no_name_for(tmp_path):
    """Ten layers and one channel, as a folder and as a file."""
    needs("timm")
    weights = sample(Model("resnet10", classes=10, channels=1))
    images = libraries.images_of(weights.model)
    for name in ("folder", "x.safetensors"):
        written = export(weights, tmp_path / name, "timm")
        space = {}
        exec("\n".join(written.loading), space)
        theirs = verification.foreign_logits(space["model"], images)
        np.testing.assert_allclose(theirs, verification.logits(weights, images), atol=1e-4)


def test_transformers_is_told_classes_and_preprocessing(tmp_path):
    needs("transformers")
    import transformers

    weights = sample(TINY, image_shape=(32, 32, 3), data="")
    path = export(weights, tmp_path / "x", "huggingface").path
    model = transformers.AutoModelForImageClassification.from_pretrained(path)
    assert tuple(model.config.id2label[i] for i in range(7)) == weights.classes
    process = transformers.AutoImageProcessor.from_pretrained(path)
    grey = np.full((50, 40, 3), 200, np.uint8)
    planes = process(Image.fromarray(grey), return_tensors="np")["pixel_values"]
    expected = (200 - np.array(weights.mean)) / np.array(weights.std)
    assert planes.shape == (1, 3, 32, 32)
    np.testing.assert_allclose(planes[0, :, 5, 5], expected, rtol=1e-5)


def test_a_wrong_epsilon_would_be_seen():
    """The limit is far below what the least of mistakes makes."""
    weights = sample()
    images = libraries.images_of(weights.model)
    ours = verification.logits(weights, images)
    other = dataclasses.replace(weights, model=dataclasses.replace(weights.model, epsilon=1e-3))
    assert np.abs(verification.logits(other, images) - ours).max() > 1e-3
