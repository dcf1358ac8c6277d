"""Files are written completely or not at all; what a format cannot hold is refused."""

import dataclasses
import errno
import importlib.util

import numpy as np
import pytest

from largebatch.models import Model
from largebatch.weights import (
    WeightsError,
    export,
    format_of,
    names,
    read,
    verification,
    verify,
)
from tests.weights.samples import SMALL, TINY, sample


@pytest.mark.parametrize(
    ("path", "torchvision", "huggingface"),
    [
        (
            "stages/1/blocks/0/downsample_conv/kernel",
            "layer2.0.downsample.0.weight",
            "resnet.encoder.stages.1.layers.0.shortcut.convolution.weight",
        ),
        (
            "stages/3/blocks/2/bn2/mean",
            "layer4.2.bn2.running_mean",
            "resnet.encoder.stages.3.layers.2.layer.1.normalization.running_mean",
        ),
    ],
)
def test_names_in_other_libraries(path, torchvision, huggingface):
    for style, name in (("torchvision", torchvision), ("huggingface", huggingface)):
        assert names.foreign_name(path, style) == name
        assert names.own_names(style)[name] == path


@pytest.mark.parametrize(
    ("target", "requested", "form"),
    [
        ("x.safetensors", None, "torchvision"),
        ("x.safetensors", "timm", "timm"),
        ("x.onnx", None, "onnx"),
        ("x", None, "huggingface"),
        ("x", "onnx", None),
        ("x.safetensors", "huggingface", None),
    ],
)
def test_formats_of_paths(target, requested, form, tmp_path):
    if form:
        assert format_of(tmp_path / target, requested) == form
    else:
        with pytest.raises(WeightsError):
            format_of(tmp_path / target, requested)


def test_folders_are_replaced_only_with_force(tmp_path):
    export(sample(TINY), tmp_path, "huggingface")  # an empty one is free
    (tmp_path / "mine.txt").write_text("mine")
    before = (tmp_path / "model.safetensors").read_bytes()
    with pytest.raises(WeightsError, match="--force"):
        export(sample(TINY, seed=2), tmp_path, "huggingface")
    assert (tmp_path / "model.safetensors").read_bytes() == before
    export(sample(TINY, seed=2), tmp_path, "huggingface", force=True)
    assert (tmp_path / "model.safetensors").read_bytes() != before
    assert (tmp_path / "mine.txt").read_text() == "mine"
    # Files of the previous format would be read beside the new tensors.
    wide = sample(Model("resnet10", classes=3, width=64))
    verification.check_read_back(export(wide, tmp_path, "timm", force=True))
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"config.json", "model.safetensors", "mine.txt"}
    with pytest.raises(WeightsError, match="is a file"):
        export(sample(TINY), tmp_path / "mine.txt", "huggingface", force=True)
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(WeightsError, match="is a run"):
        export(sample(TINY), tmp_path, "huggingface", force=True)


def test_a_failure_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "x.safetensors"
    export(sample(), path, "torchvision")
    before = path.read_bytes()

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(WeightsError, match="No space left on device"):
        export(sample(seed=2), path, "torchvision", force=True)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("model", "form", "message"),
    [
        (dataclasses.replace(SMALL, blur_pool=True), "torchvision", "model.blur_pool=True"),
        (SMALL, "huggingface", "model.stem=small"),
        (TINY, "timm", "model.width=64.*got .*model.width=4"),
    ],
)
def test_networks_that_a_format_cannot_hold(model, form, message, tmp_path):
    with pytest.raises(WeightsError, match=message):
        export(sample(model), tmp_path / "x", form)
    assert not list(tmp_path.iterdir())


def test_another_epsilon_gives_the_same_logits(tmp_path):
    """The running variances contain the difference: rounding of one float32 sum, 6e-8 of it."""
    model = dataclasses.replace(SMALL, epsilon=1e-2)
    weights = sample(model)
    written = export(weights, tmp_path / "x.safetensors", "torchvision")
    found = read(written.path)
    assert found.model.epsilon == 1e-5
    assert "norm.epsilon=0.01" in written.notes[0]
    images = verification.random_images(weights)
    ours, theirs = verification.logits(weights, images), verification.logits(found, images)
    np.testing.assert_allclose(theirs, ours, atol=1e-5)
    if importlib.util.find_spec("onnx"):
        assert read(export(weights, tmp_path / "y.onnx", "onnx").path).model == model


def test_an_epsilon_that_variances_cannot_contain(tmp_path):
    weights = sample(dataclasses.replace(SMALL, epsilon=1e-9))
    zeros = {path: np.zeros_like(x) for path, x in weights.stats["stem"]["bn"].items()}
    weights = dataclasses.replace(weights, stats=weights.stats | {"stem": {"bn": zeros}})
    with pytest.raises(WeightsError, match=r"stem/bn/var .*--format=onnx"):
        export(weights, tmp_path / "z.safetensors", "torchvision")


def test_reading_back_finds_every_difference(tmp_path):
    written = export(sample(), tmp_path / "x.safetensors", "torchvision")
    verification.check_read_back(written)
    for change in ({"classes": ()}, {"mean": (1.0,)}, {"stats": sample(seed=2).stats}):
        other = dataclasses.replace(written.weights, **change)
        with pytest.raises(WeightsError, match="was read back"):
            verification.check_read_back(dataclasses.replace(written, weights=other))
    assert "no such network" in verify(written)
