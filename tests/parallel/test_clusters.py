import pytest

from largebatch.errors import ConfigError
from largebatch.parallel.clusters import HARDWARE, MACHINES, cluster_in, machine


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


def test_every_number_has_a_source_and_every_cluster_can_be_built():
    assert all(hardware.source for hardware in HARDWARE.values())
    assert set(MACHINES) >= {
        *("abci", "dgx1-v100", "dgx2h-v100", "dgx-a100", "dgx-h100", "h200-node"),
        *("tpu-v3", "tpu-v4", "tpu-v5e", "tpu-v5p"),
    }
    for name, machine_ in MACHINES.items():
        assert machine_.source
        assert cluster_in(machine_, 8).devices == 8, name
    with pytest.raises(ConfigError, match="'abci'"):
        machine("abcd")


OWN = 'hardware = "h100"\ndevices_per_node = 4\nbetween = { bandwidth = 3e9 }\n'


def test_a_file_describes_a_cluster_of_known_hardware(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(OWN)
    found, usual = machine(str(file)), HARDWARE["h100"]
    assert (found.name, found.devices_per_node, found.rack_nodes) == (str(file), 4, 0)
    assert found.hardware.between.bandwidth == 3e9
    assert found.hardware.between.latency == usual.between.latency
    assert (found.hardware.name, found.hardware.inside) == ("h100", usual.inside)
    assert cluster_in(found, 64).nodes == 16


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("h100", "h1000", r"'h1000'.*'h100'.*\[hardware\]"),
        ('hardware = "h100"', "", "'hardware' is missing"),
        ("between", "betwen", "'betwen'.*'between'"),
        ("= 4", '= "4"', r"devices_per_node='4': expected an integer"),
        ("= 4", "= -4", r"devices_per_node=-4: expected a finite number above 0"),
        ("3e9", "nan", r"between\.bandwidth=nan"),
        ("{ bandwidth = 3e9 }", "3", r"between=3: expected a table"),
        ("= 4", "= 4\nuplink_share = 2", r"uplink_share=2: .*at most 1"),
        ("= 4", "=", r"expected TOML"),
        ('= "h100"', "= {memory = 1}", r"hardware: 'flops' is missing"),
    ],
)
def test_a_wrong_file_of_a_cluster_is_refused(old, new, words, tmp_path):
    """Each message is one line with the file, the key, the value and the fix."""
    file = tmp_path / "mine.toml"
    assert old in OWN
    file.write_text(OWN.replace(old, new))
    with pytest.raises(ConfigError, match=words) as caught:
        machine(str(file))
    assert str(caught.value).startswith(str(file))
    assert "\n" not in str(caught.value)


def test_a_cluster_that_is_neither_a_name_nor_a_file():
    for name in ("abcd", "none.toml", "/none", ".."):
        with pytest.raises(ConfigError, match=f"--cluster={name}"):
            machine(name)
