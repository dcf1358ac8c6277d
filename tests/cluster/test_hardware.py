import pytest

from largebatch.cluster.hardware import HARDWARE, hardware_of


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("Tesla V100-SXM2-16GB", "v100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("TPU v3", "tpu:v3"),
        ("TPU v4", "tpu:v4"),
        ("TPU v5 lite", "tpu:v5e"),
        ("TPU v5e", "tpu:v5e"),
        ("TPU v5", "tpu:v5p"),
        ("TPU v5p", "tpu:v5p"),
        ("TPU v6 lite", "tpu:v6e"),
        ("cpu", "cpu"),
        ("Radeon RX 7900", None),
        ("TPU v9", None),
    ],
)
def test_devices_are_known_by_the_names_that_jax_gives_them(kind, name):
    found = hardware_of(kind)
    assert (found and found.name) == name


def test_every_entry_is_named_by_its_key_and_has_plausible_units():
    for name, hardware in HARDWARE.items():
        assert hardware.name == name
        assert set(hardware.flops) == {"float32", "float16", "bfloat16"}
        # A peak in TFLOP/s or a bandwidth in GB/s instead of plain ones would be far off.
        assert all(1e10 <= value <= 1e16 for value in hardware.flops.values())
        assert 1e9 <= hardware.bandwidth <= 1e14
        assert 1e9 <= hardware.memory <= 1e12
        assert 0.1 < hardware.sustained < 1
        for link in (hardware.inside, hardware.between):
            assert 1e8 <= link.bandwidth <= hardware.bandwidth
            assert 1e-7 <= link.latency <= 1e-4
        assert hardware.between.latency >= hardware.inside.latency
        assert bool(hardware.torus) == bool(hardware.slice_chips)


@pytest.mark.parametrize(
    ("name", "images_per_s"),  # one JAX device, published (RECIPES 5.2 and 6.4)
    [
        ("v100", 1376),
        ("a100", 2470),
        ("h100", 7140),
        ("h200", 7940),
        ("tpu:v3", 1171 / 2),
        ("tpu:v4", 2050),
    ],
)
def test_what_is_sustained_gives_the_published_rate(name, images_per_s):
    hardware = HARDWARE[name]
    found = hardware.sustained * hardware.bandwidth / 386e6
    assert found == pytest.approx(images_per_s, rel=0.01)  # `sustained` has two digits
