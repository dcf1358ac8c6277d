"""Files of unknown content end in weights or in one line, and are never executed."""

import dataclasses
import json
import os
import pickle
import struct

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save

from largebatch.weights import WeightsError, architecture, export, read, reading
from largebatch.weights.weights import by_path
from tests.weights.samples import SMALL, TINY, sample


def foreign(weights, style="torchvision"):
    """Arrays by foreign names, as other programs have them."""
    return {
        architecture.foreign_name(path, style): architecture.to_foreign(path, array)
        for path, array in by_path(weights).items()
    }


def written(path, arrays, texts=None):
    path.write_bytes(save(arrays, texts))
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


def test_a_foreign_file(tmp_path):
    weights = sample(TINY)
    for style in ("torchvision", "huggingface"):
        found = read(written(tmp_path / f"{style}.safetensors", foreign(weights, style)))
        ours, theirs = by_path(weights), by_path(found)
        assert list(ours) == list(theirs)
        assert all(ours[path].tobytes() == theirs[path].tobytes() for path in ours)
        assert found.model == TINY
        assert found.classes == ()
        np.testing.assert_allclose(found.mean, [123.675, 116.28, 103.53])
        np.testing.assert_allclose(found.std, [58.395, 57.12, 57.375])
        assert (found.image_shape, found.evaluation_crop) == ((224, 224, 3), 0.875)
        assert (found.resampling, found.data) == ("antialias", "")


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod."])
def test_wrappers_of_the_whole_are_seen_through(prefix, tmp_path):
    weights = sample(TINY)
    arrays = {prefix + name: array for name, array in foreign(weights).items()}
    arrays[f"{prefix}bn1.num_batches_tracked"] = np.asarray(5)
    assert read(written(tmp_path / "x.safetensors", arrays)).model == TINY


@pytest.mark.parametrize("dtype", [np.float16, np.float64, ml_dtypes.bfloat16])
def test_other_floats(dtype, tmp_path):
    arrays = {name: array.astype(dtype) for name, array in foreign(sample(TINY)).items()}
    if dtype == ml_dtypes.bfloat16:  # of which safetensors' NumPy has no word
        torch = pytest.importorskip("torch", reason="torch is not installed")
        from safetensors.torch import save as torch_save

        tensors = {n: torch.from_numpy(a.astype(np.float32)).bfloat16() for n, a in arrays.items()}
        (tmp_path / "x.safetensors").write_bytes(torch_save(tensors))
        found = read(tmp_path / "x.safetensors")
    else:
        found = read(written(tmp_path / "x.safetensors", arrays))
    np.testing.assert_array_equal(
        found.params["head"]["bias"], arrays["fc.bias"].astype(np.float32), strict=True
    )


def without(name):
    return lambda arrays: arrays.pop(name)


def extra(name, array):
    return lambda arrays: arrays.update({name: array})


def cut(name):
    return lambda arrays: arrays.update({name: np.ascontiguousarray(arrays[name][:-1])})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("layer3.4.bn2.running_var"), "resnet50 needs layer3.4.bn2.running_var, which is"),
        (without("fc.weight"), "has no fc.weight, so it is not a ResNet"),
        (without("conv1.weight"), "has no conv1.weight, so it is not a ResNet"),
        (extra("layer1.0.se.fc1.weight", np.ones(2)), "squeeze-and-excitation"),
        (extra("conv1.0.weight", np.ones(2)), "a deep stem"),
        (extra("layer2.1.downsample.0.weight", np.ones(2, "f4")), "is no part of resnet50"),
        (extra("layer4.3.conv1.weight", np.ones(2, "f4")), r"bottleneck blocks, \(3, 4, 6, 4\)"),
        (
            cut("layer2.0.conv1.weight"),
            r"layer2.0.conv1.weight: .*got \(7, 16, 1, 1\)",
        ),
        (cut("layer1.0.bn1.running_mean"), r"layer1.0.bn1.running_mean: .*got \(3,\)"),
        (extra("bn1.weight", np.ones(4, np.int32)), "bn1.weight: expected floats, got int32"),
        (extra("conv1.weight", np.ones((4, 3, 5, 5), "f4")), "first convolution: .* 7×7 .* 3×3"),
        (extra("conv1.weight", np.ones((), "f4")), "first convolution: .* 7×7 .* 3×3"),
        (extra("fc.weight", np.ones(7, "f4")), "fc.weight: expected shape"),
        (lambda arrays: arrays.clear(), "has no conv1.weight, so it is not a ResNet"),
    ],
)
def test_every_array_is_accounted_for(change, message, tmp_path):
    arrays = foreign(sample(TINY))
    change(arrays)
    with pytest.raises(WeightsError, match=message):
        read(written(tmp_path / "x.safetensors", arrays))
    error_of(tmp_path / "x.safetensors")


def test_truncated_anywhere(exported, tmp_path):
    path = tmp_path / "x.safetensors"
    for size in (0, 1, 7, 8, 9, 500, len(exported) // 2, len(exported) - 1):
        path.write_bytes(exported[:size])
        assert "not a valid safetensors file" in error_of(path)


def header(content):
    (size,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def rebuilt(head, body):
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    return struct.pack("<Q", len(text)) + text + body


def bias(**fields):
    return lambda head: head["fc.bias"].update(fields)


def text_of(name, value):
    return lambda head: head["__metadata__"].update({name: value})


@pytest.mark.parametrize(
    "change",
    [
        bias(dtype="I32"),
        bias(dtype="Q7"),
        bias(shape=[3]),
        bias(data_offsets=[0, 1 << 40]),
        text_of("largebatch", "2"),
        text_of("model", "{"),
        text_of("model", "[" * 100_000),
        text_of("model", '{"name": "resnet10"}'),
        text_of("model", "3"),
        text_of("classes", '["a"]'),
        text_of("classes", "7"),
        text_of("mean", "[1, 2]"),
        text_of("mean", "[NaN]"),
        text_of("std", "[0]"),
        text_of("image_shape", "[16, 16, 3]"),
        text_of("image_shape", "[16, -1, 1]"),
        text_of("evaluation_crop", "1.5"),
        text_of("evaluation_crop", '"1"'),
        text_of("resampling", '"cubic"'),
        text_of("data", "null"),
        lambda head: head["__metadata__"].pop("mean"),
    ],
)
def test_wrong_headers(change, exported, tmp_path):
    head, body = header(exported)
    change(head)
    path = tmp_path / "x.safetensors"
    path.write_bytes(rebuilt(head, body))
    error_of(path)


def test_any_single_byte_of_the_header(exported, tmp_path):
    """Whatever a byte becomes, there are weights or one line; never another exception."""
    rng = np.random.default_rng(0)
    (size,) = struct.unpack("<Q", exported[:8])
    path = tmp_path / "x.safetensors"
    read_whole, lines = 0, []
    for at, value in zip(rng.integers(8 + size, size=60), rng.integers(256, size=60), strict=True):
        content = bytearray(exported)
        content[at] = value
        path.write_bytes(content)
        try:
            read(path)
            read_whole += 1
        except WeightsError as error:
            lines.append(str(error).count("\n"))
    assert lines == [0] * (60 - read_whole)
    assert lines


@pytest.mark.parametrize(
    ("name", "value"),
    [("name", "resnet18"), ("classes", 6), ("width", 8), ("stem", "conv7"), ("channels", 3)],
)
def test_metadata_of_another_network(name, value, exported, tmp_path):
    head, body = header(exported)
    model = json.loads(head["__metadata__"]["model"]) | {name: value}
    head["__metadata__"]["model"] = json.dumps(model)
    (tmp_path / "x.safetensors").write_bytes(rebuilt(head, body))
    error_of(tmp_path / "x.safetensors")


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
        assert "refused" in error_of(path)
    torch.save({"fc.weight": Bomb()}, path)
    assert "refused" in error_of(path)
    assert "LARGEBATCH_BOMB" not in os.environ
    pickle.loads(pickle.dumps(Bomb()))  # elsewhere, it does
    assert os.environ.pop("LARGEBATCH_BOMB") == "exploded"


@pytest.mark.parametrize("version", ["", "2.5.1"])
def test_a_pickle_is_not_opened_without_a_torch_that_is_safe(version, tmp_path, monkeypatch):
    def installed(name):
        if not version:
            raise reading.importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(reading.importlib.metadata, "version", installed)
    monkeypatch.delenv("LARGEBATCH_BOMB", raising=False)
    (tmp_path / "x.pth").write_bytes(pickle.dumps({"fc.weight": Bomb()}, protocol=2))
    text = error_of(tmp_path / "x.pth")
    assert (
        f"torch 2.6 or newer reads without executing it ({version or 'none'} is installed)" in text
    )
    assert "LARGEBATCH_BOMB" not in os.environ


@pytest.mark.parametrize("nest", ["", "state_dict", "model"])
def test_a_state_dict(nest, tmp_path):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    weights = sample(TINY)
    state = {name: torch.from_numpy(array.copy()) for name, array in foreign(weights).items()}
    state["fc.bias"] = torch.nn.Parameter(state["fc.bias"])  # as some save them
    path = tmp_path / "x.pth"
    torch.save({nest: state, "epoch": 3} if nest else state, path)
    found = read(path)
    assert by_path(found).keys() == by_path(weights).keys()
    assert found.params["head"]["bias"].tobytes() == weights.params["head"]["bias"].tobytes()
    assert found.origin == (f"{path}, its {nest!r}" if nest else str(path))


def test_what_is_no_state_dict(tmp_path):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    path = tmp_path / "x.pt"
    for content in ([1, 2], {"epoch": 3}, {1: torch.ones(1)}, torch.ones(2)):
        torch.save(content, path)
        assert "holds more than named tensors" in error_of(path)


def test_paths_that_hold_nothing(tmp_path):
    assert "does not exist" in error_of(tmp_path / "gone.safetensors")
    assert "holds no weights" in error_of(tmp_path)
    (tmp_path / "x.npz").write_bytes(b"")
    assert "is not a file of weights" in error_of(tmp_path / "x.npz")


def test_space_to_depth_and_epsilon_survive(tmp_path):
    model = dataclasses.replace(TINY, stem="space_to_depth")
    export(sample(model), tmp_path / "x.safetensors", "torchvision")
    assert read(tmp_path / "x.safetensors").model == model
    assert SMALL.epsilon == 1e-5
