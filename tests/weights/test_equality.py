"""The same logits as PyTorch, timm, transformers and ONNX Runtime, in both directions.

The limit of 1e-4 is five times the largest difference that has been seen, 2.1e-5 of logits of 25:
roundings of float32 sums in another order, through 50 layers. Another epsilon makes more than 1e-3
in networks of these values.
"""

import dataclasses

import numpy as np
import pytest
from PIL import Image

from largebatch.models import Model
from largebatch.weights import WeightsError, export, hub, read, reading, verification
from tests.weights.samples import SMALL, TINY, same, sample
from tests.weights.torchvision_stand_in import import_timm

LIMIT = 1e-4
NETWORKS = {
    "small": SMALL,
    "tiny": TINY,
    "resnet18": Model("resnet18", classes=1000),
    "resnet50": Model("resnet50", classes=1000),
}
FORMATS = {
    "torch": ("torchvision", "exported.safetensors"),
    "timm": ("timm", "timm"),
    "transformers": ("huggingface", "huggingface"),
    "onnxruntime": ("onnx", "exported.onnx"),
}
CASES = [
    ("small", "torch"),
    ("small", "onnxruntime"),
    ("tiny", "torch"),
    ("tiny", "transformers"),
    ("tiny", "onnxruntime"),
    ("resnet18", "timm"),
    ("resnet50", "timm"),
]


def needs(library):
    if library == "timm":
        import_timm()
    pytest.importorskip(library, reason=f"{library} is not installed")


def module_of(library, model):
    """The network as a module of the library, with its own initialization."""
    if library == "torch":
        from tests.weights.torch_reference import ResNet

        depth = int(model.name.removeprefix("resnet"))
        return ResNet(depth, model.classes, model.channels, model.width, model.stem == "small")
    if library == "timm":
        import timm

        return timm.create_model(model.name, num_classes=model.classes)
    import transformers

    config = transformers.ResNetConfig(
        num_channels=model.channels,
        embedding_size=model.width,
        hidden_sizes=[4 * model.width * 2**i for i in range(4)],
        depths=(3, 4, 6, 3),
        layer_type="bottleneck",
        num_labels=model.classes,
    )
    return transformers.ResNetForImageClassification(config)


def randomized(module):
    """The module in evaluation mode, every array random, as in `samples.drawn`."""
    import torch

    torch.manual_seed(0)
    for part in module.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(part.weight, 0.5, 1.0)
            torch.nn.init.normal_(part.bias, std=0.1)
            part.running_mean.normal_(std=0.1)
            part.running_var.uniform_(0.5, 1.5)
        elif isinstance(part, torch.nn.Conv2d):
            torch.nn.init.kaiming_normal_(part.weight, mode="fan_in", nonlinearity="relu")
    return module.eval()


def images_of(model):
    side = 16 if model.stem == "small" else 64
    shape = (2, side, side, model.channels)
    return np.random.default_rng(1).standard_normal(shape, np.float32)


def check_logits(weights, module):
    images = images_of(weights.model)
    ours = verification.logits(weights, images)
    np.testing.assert_allclose(verification.foreign_logits(module, images), ours, atol=LIMIT)
    assert np.abs(ours).max() > 0.1


def loaded(written):
    """The network that the lines printed for the user load."""
    space = {}
    exec("\n".join(written.loading), space)
    return space["model"]


@pytest.mark.parametrize(("network", "library"), CASES)
def test_exported_weights_in_the_library(network, library, tmp_path):
    needs(library)
    form, name = FORMATS[library]
    written = export(sample(NETWORKS[network]), tmp_path / name, form)
    if library == "torch":
        from safetensors.torch import load_file

        module = module_of(library, written.weights.model).eval()
        module.load_state_dict(load_file(written.path))
    else:
        module = loaded(written)
    check_logits(written.weights, module)
    assert same(read(written.path), written.weights)


@pytest.mark.parametrize(("network", "library"), [c for c in CASES if c[1] != "onnxruntime"])
def test_weights_of_the_library(network, library, tmp_path):
    needs(library)
    import torch

    module = randomized(module_of(library, NETWORKS[network]))
    path = tmp_path / "foreign.pth"
    if library == "transformers":
        path = tmp_path / "foreign"
        module.save_pretrained(path)
    else:
        torch.save(module.state_dict(), path)
    weights = read(path)
    assert weights.model == NETWORKS[network]
    check_logits(weights, module)
    # Exported again, every array is bitwise that of the library.
    form, name = FORMATS[library]
    path = export(weights, tmp_path / name, form).path
    arrays, _ = reading.read_safetensors(path / hub.TENSORS if path.is_dir() else path)
    state = {key: tensor.numpy() for key, tensor in module.state_dict().items()}
    assert arrays.keys() == state.keys()
    for key, array in state.items():
        if not key.endswith("num_batches_tracked"):
            np.testing.assert_array_equal(arrays[key], array, strict=True)


def test_the_lines_for_torchvision_verify_its_files(tmp_path, monkeypatch):
    needs("torchvision")
    model = Model("resnet18", classes=3)
    written = export(sample(model), tmp_path / "it's.safetensors", "torchvision")
    assert "logits differ by" in verification.verify(written)
    monkeypatch.setattr(verification, "check_read_back", lambda _: None)
    for seed, factor in ((5, 1), (0, np.nan)):
        other = sample(model, seed=seed)
        other.params["head"]["bias"][:] *= factor
        with pytest.raises(WeightsError, match="not what was exported"):
            verification.verify(dataclasses.replace(written, weights=other))


def test_timm_builds_a_network_that_it_has_no_name_for(tmp_path):
    """Ten layers and one channel, as a folder and as a file."""
    needs("timm")
    weights = sample(Model("resnet10", classes=10, channels=1))
    for name in ("folder", "x.safetensors"):
        check_logits(weights, loaded(export(weights, tmp_path / name, "timm")))


def test_transformers_reads_classes_and_preprocessing(tmp_path):
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


def test_the_limit_is_far_below_the_effect_of_another_epsilon():
    weights, images = sample(), images_of(SMALL)
    other = dataclasses.replace(weights, model=dataclasses.replace(SMALL, epsilon=1e-3))
    apart = verification.logits(other, images) - verification.logits(weights, images)
    assert np.abs(apart).max() > 10 * LIMIT
