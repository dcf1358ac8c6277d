"""The table of XLA options, and that only what the compiler takes is used."""

from types import SimpleNamespace

import jax
import pytest

from largebatch.config import override
from largebatch.errors import ConfigError
from largebatch.parallel import xla_options
from largebatch.tracking import Console
from tests.training import worlds

COMBINE = "xla_gpu_all_reduce_combine_threshold_bytes"
SCHEDULER = "xla_gpu_enable_latency_hiding_scheduler"
UNKNOWN = "xla_gpu_no_such_option"
OURS = xla_options.options_for("cuda", "bucket")
ALL = xla_options.options_for("cuda", "bucket", deterministic=True)


@pytest.fixture(autouse=True)
def no_flags(monkeypatch):
    for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS"):
        monkeypatch.delenv(name, raising=False)


def test_buckets_need_the_combiner_off_and_a_tree_does_not():
    assert COMBINE in OURS
    assert COMBINE not in xla_options.options_for("cuda", "tree")
    assert xla_options.options_for("rocm", "bucket") == {}


def test_a_tpus_generation_adds_options_to_those_of_all_tpus():
    common = xla_options.options_for("tpu", "bucket")
    for kind, platform in (("TPU v3", "tpu:v3"), ("TPU v5 lite", "tpu:v5e"), ("TPU v99", "tpu")):
        device = SimpleNamespace(platform="tpu", device_kind=kind)
        assert xla_options.platform_of(device) == platform
        found = xla_options.options_for(platform, "bucket")
        assert found.items() >= common.items()
        assert (len(found) > len(common)) == (platform == "tpu:v5e")


def test_the_compiler_of_this_process_refuses_names_and_values_with_a_reason():
    """Every build of XLA parses the options of GPUs."""
    wrong = {UNKNOWN: "1", "xla_gpu_autotune_level": "x", "xla_cpu_enable_fast_math": "perhaps"}
    ours = ALL | xla_options.options_for("cpu", "bucket")
    device = jax.devices()[0]
    assert xla_options.refused(device, ours) == {}
    found = xla_options.refused(device, ours | wrong)
    assert found.keys() == wrong.keys()
    assert all(name in reason for name, reason in found.items())


def wanted(extra="", **changes):
    given = override(worlds.config(**changes), "comm.xla_options", extra)
    return xla_options.wanted("cuda", given)


def test_the_configurations_options_come_over_ours():
    found = wanted(f"{COMBINE}=4096,--xla_gpu_other=true,xla_gpu_enable_command_buffer=")
    assert found == OURS | {
        COMBINE: "4096",
        "xla_gpu_other": "True",
        "xla_gpu_enable_command_buffer": "",
    }
    assert list(found) == sorted(found)


def test_what_the_environment_sets_is_left_to_it(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", f"--xla_force=1 --{SCHEDULER}=false")
    assert wanted() == {name: value for name, value in OURS.items() if name != SCHEDULER}
    # The configuration is nearer than the environment.
    assert wanted(f"{SCHEDULER}=True") == OURS


def test_deterministic_programs_get_the_options_for_it_unless_the_configuration_sets_them():
    deterministic = {"run": {"deterministic": True}}
    assert wanted(**deterministic) == ALL
    found = wanted("xla_gpu_enable_triton_gemm=true", **deterministic)
    assert found == ALL | {"xla_gpu_enable_triton_gemm": "True"}


@pytest.mark.parametrize("text", ["xla_gpu_x", "gpu_x=1"])
def test_what_is_no_option_is_refused(text):
    with pytest.raises(ConfigError, match="xla_options"):
        xla_options.parse_options([text])


def test_a_run_compiles_with_the_options_of_its_devices_and_configuration(monkeypatch):
    console, told = Console(quiet=True), []
    monkeypatch.setattr(console, "warn", told.append)
    config = worlds.config(
        model=worlds.SMALL,
        data={"source": "digits"},
        batch={"workers": 8, "images_per_worker": 1},
        comm={"xla_options": ("xla_a=1", "xla_cpu_enable_fast_math=true")},
    )
    run = worlds.build(config, console)
    (line,) = told
    assert "xla_a" in line
    ours = xla_options.options_for("cpu", "bucket")
    assert run.first_stage._options == ours | {"xla_cpu_enable_fast_math": "True"}
