"""Files are written completely or not at all; what a format cannot hold is refused."""

import dataclasses
import errno
import importlib.util
import json
import sys
import types

import numpy as np
import pytest

from largebatch.models import Model
from largebatch.weights import (
    WeightsError,
    architecture,
    check_read_back,
    compare,
    export,
    format_of,
    read,
    reading,
    verification,
)
from largebatch.weights.architecture import shapes
from largebatch.weights.weights import by_path
from tests.weights.samples import SMALL, TINY, sample

# What `len(torchvision.models.NAME().state_dict())` is.
ENTRIES = {"resnet18": 122, "resnet34": 218, "resnet50": 320, "resnet101": 626}


def named(model, style):
    params, stats = shapes(model)
    return {architecture.foreign_name(path, style) for path in params | stats}


@pytest.mark.parametrize("depth", ENTRIES)
def test_names_are_as_many_as_theirs(depth):
    found = named(Model(depth, classes=10), "torchvision")
    norms = [name for name in found if name.endswith("running_var")]
    assert len(found) + len(norms) == ENTRIES[depth]  # with a counter each
    assert len(named(Model(depth, classes=10), "huggingface")) == len(found)


def test_some_names_letter_by_letter():
    for path, torchvision, huggingface in (
        ("stem/conv/kernel", "conv1.weight", "resnet.embedder.embedder.convolution.weight"),
        ("stem/bn/var", "bn1.running_var", "resnet.embedder.embedder.normalization.running_var"),
        (
            "stages/1/blocks/0/downsample_conv/kernel",
            "layer2.0.downsample.0.weight",
            "resnet.encoder.stages.1.layers.0.shortcut.convolution.weight",
        ),
        (
            "stages/1/blocks/0/downsample_bn/bias",
            "layer2.0.downsample.1.bias",
            "resnet.encoder.stages.1.layers.0.shortcut.normalization.bias",
        ),
        (
            "stages/3/blocks/2/bn2/mean",
            "layer4.2.bn2.running_mean",
            "resnet.encoder.stages.3.layers.2.layer.1.normalization.running_mean",
        ),
        ("head/kernel", "fc.weight", "classifier.1.weight"),
    ):
        assert architecture.foreign_name(path, "torchvision") == torchvision
        assert architecture.foreign_name(path, "huggingface") == huggingface
        assert architecture.own_names("torchvision")[torchvision] == path
        assert architecture.own_names("huggingface")[huggingface] == path


def test_layouts():
    kernel = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    theirs = architecture.to_foreign("stem/conv/kernel", kernel)
    assert (
        theirs.shape == (5, 4, 2, 3) == architecture.foreign_shape("stem/conv/kernel", kernel.shape)
    )
    assert theirs[4, 3, 1, 2] == kernel[1, 2, 3, 4]
    np.testing.assert_array_equal(architecture.to_own("stem/conv/kernel", theirs), kernel)
    head = np.arange(6).reshape(2, 3)
    assert architecture.to_foreign("head/kernel", head)[2, 1] == head[1, 2]


@pytest.mark.parametrize(
    ("target", "asked", "form"),
    [
        ("x.safetensors", None, "torchvision"),
        ("x.safetensors", "timm", "timm"),
        ("x.onnx", None, "onnx"),
        ("x", None, "huggingface"),
        ("x", "timm", "timm"),
        ("x.v1", "huggingface", "huggingface"),
    ],
)
def test_formats(target, asked, form, tmp_path):
    assert format_of(tmp_path / target, asked) == form


@pytest.mark.parametrize(
    ("target", "asked", "message"),
    [
        ("x.pth", None, "unknown suffix '.pth'; use .safetensors, .onnx"),
        ("x", "onnx", r"--format=onnx does not fit .*--to=.*/x\.onnx"),
        ("x.safetensors", "huggingface", "does not fit .*--to=.*/x$"),
        ("x.onnx", "torchvision", r"--to=.*/x\.safetensors"),
    ],
)
def test_formats_that_do_not_fit(target, asked, message, tmp_path):
    with pytest.raises(WeightsError, match=message):
        format_of(tmp_path / target, asked)


def test_nothing_is_replaced_unless_asked(tmp_path):
    path = tmp_path / "deep" / "x.safetensors"
    export(sample(seed=1), path, "torchvision")
    before = path.read_bytes()
    with pytest.raises(WeightsError, match="exists; use another --to, or --force"):
        export(sample(seed=2), path, "torchvision")
    assert path.read_bytes() == before
    export(sample(seed=2), path, "torchvision", force=True)
    assert path.read_bytes() != before
    assert [p.name for p in path.parent.iterdir()] == ["x.safetensors"]
    folder = tmp_path / "folder"
    folder.mkdir()
    export(sample(TINY), folder, "huggingface")  # an empty one is free
    (folder / "mine.txt").write_text("mine")
    with pytest.raises(WeightsError, match="exists"):
        export(sample(TINY), folder, "huggingface")
    export(sample(TINY, seed=2), folder, "huggingface", force=True)
    assert (folder / "mine.txt").read_text() == "mine"
    (folder / "checkpoints").mkdir()
    with pytest.raises(WeightsError, match="is a run"):
        export(sample(TINY), folder, "huggingface", force=True)
    with pytest.raises(WeightsError, match="is a file, not a folder"):
        export(sample(TINY), folder / "mine.txt", "huggingface", force=True)


def test_nothing_of_another_format_stays(tmp_path):
    weights = sample(Model("resnet10", classes=3, width=64))
    export(weights, tmp_path, "huggingface")
    assert (tmp_path / "preprocessor_config.json").is_file()
    (tmp_path / "README.md").write_text("mine")
    written = export(weights, tmp_path, "timm", force=True)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"config.json", "model.safetensors", "README.md"}
    check_read_back(written)


def test_a_failure_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "x.safetensors"
    export(sample(), path, "torchvision")
    before = path.read_bytes()

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(WeightsError, match=r"cannot be written \(No space left on device\)"):
        export(sample(seed=2), path, "torchvision", force=True)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("model", "form", "message"),
    [
        (dataclasses.replace(SMALL, blur_pool=True), "torchvision", "model.blur_pool=True"),
        (SMALL, "huggingface", "model.stem=small"),
        (dataclasses.replace(SMALL, width=64), "timm", "model.stem=conv7.*got model.stem=small"),
        (TINY, "timm", "model.width=64.*got .*model.width=4"),
    ],
)
def test_what_a_format_cannot_hold(model, form, message, tmp_path):
    with pytest.raises(WeightsError, match=message):
        export(sample(model), tmp_path / "x", form)
    assert not list(tmp_path.iterdir())


def test_another_epsilon_stays_the_same_function(tmp_path):
    """Running variances take up the difference: rounding of one float32 sum, 6e-8 of it."""
    model = dataclasses.replace(SMALL, epsilon=1e-2)
    weights = sample(model)
    written = export(weights, tmp_path / "x.safetensors", "torchvision")
    found = read(written.path)
    assert found.model.epsilon == 1e-5
    assert "norm.epsilon=0.01" in written.notes[0]
    images = verification.random_images(weights)
    ours, theirs = verification.logits(weights, images), verification.logits(found, images)
    np.testing.assert_allclose(theirs, ours, atol=1e-5)
    check_read_back(written)
    if importlib.util.find_spec("onnx"):
        assert read(export(weights, tmp_path / "y.onnx", "onnx").path).model == model
    negative = dataclasses.replace(model, epsilon=1e-9)
    least = {path: np.zeros_like(x) for path, x in weights.stats["stem"]["bn"].items()}
    stats = weights.stats | {"stem": {"bn": least}}
    with pytest.raises(WeightsError, match=r"stem/bn/var has a variance below 9\.999e-06"):
        export(
            dataclasses.replace(weights, model=negative, stats=stats),
            tmp_path / "z.safetensors",
            "torchvision",
        )


def test_reading_back_sees_every_difference(tmp_path):
    written = export(sample(), tmp_path / "x.safetensors", "torchvision")
    check_read_back(written)
    for change, message in (
        ({"classes": ()}, "another classes"),
        ({"mean": (1.0,)}, "another mean"),
        ({"stats": sample(seed=2).stats}, "another .*/mean"),
    ):
        other = dataclasses.replace(written.weights, **change)
        with pytest.raises(WeightsError, match=message):
            check_read_back(dataclasses.replace(written, weights=other))
    assert compare(written) is None  # torchvision has no such network
    assert not verification.Comparison("x", "1", float("nan"), 1.0).is_equal


def test_the_lines_for_torchvision_are_those_that_verify(tmp_path, monkeypatch):
    """torchvision itself may be absent: a module of the same names stands for it."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from tests.weights.torch_reference import ResNet

    models = types.SimpleNamespace(resnet18=lambda num_classes: ResNet(18, num_classes))
    monkeypatch.setitem(sys.modules, "torchvision", types.SimpleNamespace(models=models))
    monkeypatch.setattr(verification.importlib.metadata, "version", lambda name: "0")
    weights = sample(Model("resnet18", classes=3))
    written = export(weights, tmp_path / "it's.safetensors", "torchvision")
    seen = compare(written)
    assert seen.is_equal
    assert seen.difference > 0
    assert torch is not None
    # And a wrong file would be seen.
    other = sample(Model("resnet18", classes=3), seed=5)
    assert not compare(dataclasses.replace(written, weights=other)).is_equal


def test_an_absent_library_is_named(tmp_path, monkeypatch):
    written = export(sample(TINY), tmp_path / "x", "huggingface")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(WeightsError, match="pip install torch transformers"):
        compare(written)


def test_metadata_are_read_by_others(tmp_path):
    export(sample(), tmp_path / "x.safetensors", "torchvision")
    _, texts = reading.read_safetensors(tmp_path / "x.safetensors")
    assert texts["format"] == "pt"  # which transformers asks for
    assert json.loads(texts["mean"]) == [100.0]
    assert json.loads(texts["classes"])[0] == "class 0 ä"
    assert by_path(sample()).keys() == by_path(read(tmp_path / "x.safetensors")).keys()
