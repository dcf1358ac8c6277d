"""Names of absent devices, valid and invalid."""

import re

import pytest

from largebatch.errors import ConfigError
from largebatch.parallel.clusters import HARDWARE
from largebatch.planning import topologies
from largebatch.planning.topologies import open_topology


@pytest.fixture
def everything_installed(monkeypatch):
    monkeypatch.setattr(topologies, "_installed", lambda distribution: True)


@pytest.mark.usefixtures("everything_installed")
@pytest.mark.parametrize(
    ("text", "devices", "processes", "platform", "shape"),
    [
        ("cpu:4", 4, 1, "cpu", ()),
        ("v100:2048", 2048, 512, "cuda", ()),
        ("h200:1", 1, 1, "cuda", ()),
        ("tpu:v5p:8x16x16", 2048, 512, "tpu", (8, 16, 16)),
        ("tpu:v3:32x32", 2048, 256, "tpu", (32, 32)),  # two cores a chip
        ("tpu:v5e:16x16x8slices", 2048, 512, "tpu", (16, 16)),
        ("tpu:v6e:2x4", 8, 2, "tpu", (2, 4)),
    ],
)
def test_names_become_devices(text, devices, processes, platform, shape):
    topology = open_topology(text)
    assert (topology.devices, topology.processes) == (devices, processes)
    assert (topology.platform, topology.shape) == (platform, shape)
    assert topology.option_platform == (text.rpartition(":")[0] if platform == "tpu" else platform)
    assert topology.cluster.devices == devices
    if platform == "tpu":
        assert topology.cluster.nodes == topology.slices
        assert topology.cluster.torus_shape == tuple(sorted(shape))


@pytest.mark.usefixtures("everything_installed")
@pytest.mark.parametrize(
    "text",
    [
        *("v10:4", "v100:6", "v100:0", "v100:65540"),
        *("tpu:v5:2x2", "tpu:v5p:16x16", "tpu:v6e:4x4x0slices", "tpu:v5e:32x64"),
    ],
)
def test_impossible_names_are_refused(text):
    with pytest.raises(ConfigError, match=re.escape(repr(text))) as caught:
        open_topology(text)
    assert ("use 4 or 8" in str(caught.value)) == (text == "v100:6")


@pytest.mark.parametrize(
    ("text", "present", "extra"),
    [
        ("h100:8", ("jax-cuda13-pjrt", "jax-cuda13-plugin", "nvidia-cuda-nvcc"), ""),
        # CUDA 13 does not support the V100.
        ("v100:4", ("jax-cuda13-pjrt", "jax-cuda13-plugin", "nvidia-cuda-nvcc"), "compile-gpu"),
        ("h100:8", ("jax-cuda12-pjrt", "jax-cuda12-plugin"), "compile-gpu"),  # no assembler
        ("tpu:v5p:2x2x1", ("jax-cuda12-pjrt",), "compile-tpu"),
    ],
)
def test_an_absent_compiler_is_named_with_its_extra(monkeypatch, text, present, extra):
    monkeypatch.setattr(topologies, "_installed", lambda distribution: distribution in present)
    monkeypatch.delenv("CUDA_DIR", raising=False)
    if not extra:
        assert open_topology(text).devices == 8
        return
    with pytest.raises(ConfigError, match=rf"pip install -e '.\[{extra}\]'"):
        open_topology(text)


@pytest.mark.parametrize("name", topologies.GPUS)
def test_targets_hold_the_facts_of_their_boards(name):
    text = topologies.target_config(name)
    found = dict(re.findall(r"(\w+): (\d+)\b", text))
    board = re.search(r'device_description_str: "(.*)"', text)[1]
    assert name in board.lower()  # so that the hardware of such a device is found again
    assert int(found["device_memory_size"]) == HARDWARE[name].memory
    assert int(found["memory_bandwidth"]) == HARDWARE[name].bandwidth
    assert int(found["shared_memory_per_block"]) == 48 * 1024
    # FP32 units × 2 FLOPs × clock: the data sheet's plain FP32 rate, in TFLOP/s.
    clock = float(re.search(r"clock_rate_ghz: ([\d.]+)", text)[1])
    rate = int(found["core_count"]) * int(found["fpus_per_core"]) * 2 * clock / 1000
    assert rate == pytest.approx({"v100": 15.7, "a100": 19.5}.get(name, 67), rel=0.01)
    assert text.count("{") == text.count("}")
