"""ONNX files; their logits are compared in `test_equality`."""

import dataclasses

import pytest

from largebatch.weights import WeightsError, export, onnx_file, read, verification
from tests.weights.samples import SMALL, TINY, sample

onnx = pytest.importorskip("onnx", reason="onnx is not installed")


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    path = tmp_path_factory.mktemp("onnx") / "x.onnx"
    export(sample(TINY), path, "onnx")
    return path


def test_inputs_outputs_and_metadata(exported):
    found = onnx.load(exported)
    onnx.checker.check_model(found, full_check=True)
    assert [(x.domain, x.version) for x in found.opset_import] == [("", onnx_file.OPSET)]
    for values, name, expected in (
        (found.graph.input, "images", ["batch", 3, 64, 64]),
        (found.graph.output, "logits", ["batch", 7]),
    ):
        (value,) = values
        sides = [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
        assert (value.name, sides) == (name, expected)
    assert "layer3.5.bn3.running_var" in {x.name for x in found.graph.initializer}
    texts = {x.key: x.value for x in found.metadata_props}
    assert texts["mean"] == "[100.0, 101.0, 102.0]"
    assert "class 3 ä" in texts["classes"]


def test_the_same_weights_give_the_same_bytes(tmp_path):
    weights = sample(dataclasses.replace(SMALL, epsilon=1e-3))
    for name in ("a.onnx", "b.onnx"):
        written = export(weights, tmp_path / name, "onnx")
        verification.check_read_back(written)
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_damaged_files(exported, tmp_path):
    content = exported.read_bytes()
    path = tmp_path / "x.onnx"
    for size in (0, 1, 100, len(content) // 2):
        path.write_bytes(content[:size])
        with pytest.raises(WeightsError) as caught:
            read(path)
        assert "\n" not in str(caught.value)
    found = onnx.load(exported)
    del found.graph.initializer[3]
    onnx.save(found, path)
    with pytest.raises(WeightsError, match="which is missing"):
        read(path)
