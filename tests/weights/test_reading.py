"""A file of unknown content gives weights or a one-line error, and is never executed."""

import json
import os
import pickle
import struct

import ml_dtypes
import numpy as np
import pytest
from safetensors import flax as flax_safetensors
from safetensors.numpy import save

from largebatch.weights import WeightsError, export, names, read, reading
from largebatch.weights.weights import by_path, encode
from tests.weights.samples import TINY, same, sample


def foreign(weights, style="torchvision"):
    """Arrays by the names of other libraries, in their layout."""
    return {
        names.foreign_name(path, style): names.to_foreign(path, array, style)
        for path, array in by_path(weights).items()
    }


def written(path, arrays):
    path.write_bytes(save(arrays))
    return path


def error_of(path):
    """The error, which is one line that names the file."""
    with pytest.raises(WeightsError) as caught:
        read(path)
    text = str(caught.value)
    assert "\n" not in text
    assert str(path) in text
    return text


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    path = tmp_path_factory.mktemp("exported") / "x.safetensors"
    export(sample(), path, "torchvision")
    return path.read_bytes()


@pytest.mark.parametrize("style", ["torchvision", "huggingface", "flax"])
def test_a_file_without_metadata_has_the_usual_preprocessing(style, tmp_path):
    weights = sample(TINY)
    arrays = foreign(weights, style)
    if style == "torchvision":  # with what wrappers for several devices and torch.compile add
        arrays = {f"module._orig_mod.{name}": array for name, array in arrays.items()}
        arrays["module._orig_mod.bn1.num_batches_tracked"] = np.asarray(5)
    found = read(written(tmp_path / "x.safetensors", arrays))
    assert same(found, weights)
    assert found.model == TINY
    assert found.classes == ()
    np.testing.assert_allclose(found.mean, [123.675, 116.28, 103.53])
    np.testing.assert_allclose(found.std, [58.395, 57.12, 57.375])
    assert (found.image_shape, found.evaluation_crop) == ((224, 224, 3), 0.875)
    assert (found.resampling, found.data) == ("antialias", "")


@pytest.mark.parametrize("dtype", [np.float16, np.float64, ml_dtypes.bfloat16])
def test_other_floats(dtype, tmp_path):
    arrays = {name: array.astype(dtype) for name, array in foreign(sample(TINY)).items()}
    path = tmp_path / "x.safetensors"
    if dtype == ml_dtypes.bfloat16:
        path.write_bytes(flax_safetensors.save(arrays))
    else:
        written(path, arrays)
    expected = arrays["fc.bias"].astype(np.float32)
    np.testing.assert_array_equal(read(path).params["head"]["bias"], expected, strict=True)


def without(name):
    return lambda arrays: arrays.pop(name)


def extra(name, *shape, dtype="f4"):
    return lambda arrays: arrays.update({name: np.ones(shape, dtype)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("layer3.4.bn2.running_var"), r"layer3\.4\.bn2\.running_var"),
        (lambda arrays: arrays.clear(), "conv1.weight"),
        (extra("layer1.0.se.fc1.weight", 2), "squeeze-and-excitation"),
        (extra("layer4.3.conv1.weight", 2), r"\(3, 4, 6, 4\)"),
        (extra("layer2.0.conv1.weight", 7, 16, 1, 1), r"layer2\.0\.conv1.*\(7, 16, 1, 1\)"),
        (extra("bn1.weight", 4, dtype="i4"), "int32"),
        (extra("conv1.weight", 4, 3, 5, 5), "7×7 .* 3×3"),
        (extra("conv1.weight"), "7×7 .* 3×3"),
    ],
)
def test_every_array_is_accounted_for(change, message, tmp_path):
    arrays = foreign(sample(TINY))
    change(arrays)
    with pytest.raises(WeightsError, match=message):
        read(written(tmp_path / "x.safetensors", arrays))
    error_of(tmp_path / "x.safetensors")


MODEL = {"name": "resnet10", "classes": 5, "channels": 1, "width": 4}
MODEL |= {"stem": "small", "epsilon": 1e-5}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("largebatch", "2"),
        ("model", '{"name": "resnet10"}'),
        ("model", json.dumps(MODEL | {"width": 0})),
        ("model", json.dumps(MODEL | {"width": 8})),
        ("model", json.dumps(MODEL | {"stem": "conv7"})),
        ("classes", '["a"]'),
        ("mean", None),
        ("mean", "[NaN]"),
        ("std", "[0]"),
        ("image_shape", "[16, 0, 1]"),
        ("image_shape", "[16, 16, 3]"),
        ("evaluation_crop", "1.5"),
        ("resampling", '"cubic"'),
    ],
)
def test_wrong_metadata(name, text, tmp_path):
    path = tmp_path / "x.safetensors"
    weights = sample()
    arrays, about = foreign(weights), encode(weights)
    assert json.loads(about["model"]) == MODEL
    path.write_bytes(save(arrays, about))
    assert same(read(path), weights)
    del about[name]
    path.write_bytes(save(arrays, about if text is None else about | {name: text}))
    error_of(path)


def test_damage_of_the_header_or_a_short_file(exported, tmp_path):
    """Whatever a byte becomes, there are weights or one line; never another exception."""
    rng = np.random.default_rng(0)
    (size,) = struct.unpack("<Q", exported[:8])
    path, lines = tmp_path / "x.safetensors", []
    error_of(tmp_path)  # nothing is there
    error_of(path)
    for end in (0, 7, 8, 500, len(exported) - 1):
        path.write_bytes(exported[:end])
        error_of(path)
    for at, value in zip(rng.integers(8 + size, size=60), rng.integers(256, size=60), strict=True):
        content = bytearray(exported)
        content[at] = value
        path.write_bytes(content)
        try:
            read(path)
        except WeightsError as error:
            lines.append(str(error).count("\n"))
    assert lines
    assert not any(lines)


class Bomb:
    """What a malicious file would do on loading."""

    def __reduce__(self):
        return (exec, ("import os; os.environ['LARGEBATCH_BOMB'] = 'exploded'",))


def test_a_malicious_pickle_is_refused(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.delenv("LARGEBATCH_BOMB", raising=False)
    for suffix in reading.PICKLED:
        path = tmp_path / f"x{suffix}"
        path.write_bytes(pickle.dumps({"fc.weight": Bomb()}, protocol=2))
        error_of(path)
    torch.save({"fc.weight": Bomb()}, path)
    error_of(path)
    assert "LARGEBATCH_BOMB" not in os.environ


@pytest.mark.parametrize("version", ["", "2.5.1"])
def test_a_pickle_is_not_opened_without_a_torch_that_is_safe(version, tmp_path, monkeypatch):
    def installed(name):
        if not version:
            raise reading.importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(reading.importlib.metadata, "version", installed)
    monkeypatch.delenv("LARGEBATCH_BOMB", raising=False)
    (tmp_path / "x.pth").write_bytes(pickle.dumps({"fc.weight": Bomb()}, protocol=2))
    assert "torch 2.6" in error_of(tmp_path / "x.pth")
    assert "LARGEBATCH_BOMB" not in os.environ


@pytest.mark.parametrize("nest", ["", "state_dict"])
def test_a_state_dict(nest, tmp_path):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    weights = sample(TINY)
    state = {name: torch.from_numpy(array.copy()) for name, array in foreign(weights).items()}
    state["fc.bias"] = torch.nn.Parameter(state["fc.bias"])  # as some save them
    path = tmp_path / "x.pth"
    torch.save({nest: state, "epoch": 3} if nest else state, path)
    assert same(read(path), weights)
