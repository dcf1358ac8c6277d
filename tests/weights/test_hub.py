"""Folders for Hugging Face's hub, as transformers and timm write them."""

import dataclasses
import json

import numpy as np
import pytest
from safetensors.numpy import save

from largebatch.models import Model
from largebatch.weights import WeightsError, export, hub, read
from tests.weights.samples import TINY, sample
from tests.weights.test_reading import foreign

# Of a published ResNet-50, with a smaller width.
TRANSFORMERS = {
    "depths": [3, 4, 6, 3],
    "downsample_in_first_stage": False,
    "embedding_size": 4,
    "hidden_sizes": [16, 32, 64, 128],
    "id2label": {str(i): f"name {i}" for i in range(7)},
    "layer_type": "bottleneck",
    "model_type": "resnet",
    "num_channels": 3,
}
PREPROCESSOR = {
    "crop_pct": 0.95,
    "do_normalize": True,
    "image_mean": [0.5, 0.25, 0.125],
    "image_std": [0.2, 0.4, 0.8],
    "resample": 3,
    "size": 160,
}
TIMM = {
    "architecture": "resnet50",
    "num_classes": 7,
    "pretrained_cfg": {
        "input_size": [3, 192, 192],
        "test_input_size": [3, 288, 288],
        "interpolation": "bicubic",
        "crop_pct": 0.9,
        "test_crop_pct": 0.95,
        "mean": [0.485, 0.456, 0.406],
        "std": [0.25, 0.5, 1.0],
    },
}


def folder(path, config, style, preprocessor=None):
    (path / "config.json").write_text(json.dumps(config))
    if preprocessor is not None:
        (path / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    (path / "model.safetensors").write_bytes(save(foreign(sample(TINY), style), {"format": "pt"}))
    return path


def test_transformers(tmp_path):
    found = read(folder(tmp_path, TRANSFORMERS, "huggingface", PREPROCESSOR))
    assert found.model == TINY
    assert found.classes == tuple(f"name {i}" for i in range(7))
    np.testing.assert_allclose(found.mean, [127.5, 63.75, 31.875])
    np.testing.assert_allclose(found.std, [51.0, 102.0, 204.0])
    assert found.image_shape == (160, 160, 3)
    assert found.evaluation_crop == 0.95
    assert found.resampling == "antialias"
    assert found.origin == f"{tmp_path} (trained with bicubic resizing)"


def test_a_preprocessor_that_does_not_rescale_or_normalize(tmp_path):
    stated = PREPROCESSOR | {"do_rescale": False, "size": {"shortest_edge": 96}, "resample": 2}
    found = read(folder(tmp_path, TRANSFORMERS, "huggingface", stated))
    np.testing.assert_allclose(found.mean, [0.5, 0.25, 0.125])
    assert found.image_shape == (96, 96, 3)
    stated = PREPROCESSOR | {"do_normalize": False}
    labels = {str(i): f"LABEL_{i}" for i in range(7)}
    found = read(folder(tmp_path, TRANSFORMERS | {"id2label": labels}, "huggingface", stated))
    assert found.mean == (0, 0, 0)
    np.testing.assert_allclose(found.std, [255] * 3)
    assert found.classes == ()  # transformers' own


def test_timm(tmp_path):
    found = read(folder(tmp_path, TIMM | {"label_names": list("abcdefg")}, "torchvision"))
    assert found.model == TINY
    assert found.classes == tuple("abcdefg")
    np.testing.assert_allclose(found.mean, [123.675, 116.28, 103.53])
    np.testing.assert_allclose(found.std, [63.75, 127.5, 255.0])
    assert found.image_shape == (288, 288, 3)
    assert found.evaluation_crop == 0.95


@pytest.mark.parametrize(
    ("config", "changed"),
    [
        (TRANSFORMERS | {"downsample_in_bottleneck": True}, {}),
        (TRANSFORMERS | {"model_type": "vit"}, {}),
        (TRANSFORMERS | {"id2label": {"0": "a"}}, {}),
        (TRANSFORMERS | {"num_channels": "3"}, {}),
        (TRANSFORMERS, {"rescale_factor": 0}),
        (TRANSFORMERS, {"size": "big"}),
        (TIMM | {"architecture": "resnetblur50"}, {}),
        (TIMM | {"model_args": {"aa_layer": "blurpool"}}, {}),
        (TIMM | {"pretrained_cfg": {"mean": 3, "std": 4}}, {}),
        ([1], {}),
    ],
)
def test_other_networks_and_damaged_files_are_refused(config, changed, tmp_path):
    style = "huggingface" if "depths" in config else "torchvision"
    with pytest.raises(WeightsError) as caught:
        read(folder(tmp_path, config, style, PREPROCESSOR | changed))
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_configuration_files_agree_with_our_metadata(tmp_path):
    weights = dataclasses.replace(sample(Model("resnet10", classes=7)), origin="x", data="")
    for form in ("huggingface", "timm"):
        export(weights, tmp_path / form, form)
        stated = hub.described(tmp_path / form)
        assert stated["classes"] in (weights.classes, list(weights.classes))
        np.testing.assert_allclose(stated["mean"], weights.mean, rtol=1e-10)
        np.testing.assert_allclose(stated["std"], weights.std, rtol=1e-10)
        assert stated["image_shape"] == weights.image_shape
        assert stated["evaluation_crop"] == weights.evaluation_crop
