"""The table of XLA options, and that only what the compiler takes is used."""

import importlib.metadata
import json
from types import SimpleNamespace

import jax
import pytest

from largebatch.config import override
from largebatch.errors import ConfigError
from largebatch.parallel import compiler, option_check
from largebatch.parallel.hardware import HARDWARE
from largebatch.tracking import Console
from largebatch.training.setup import build
from tests.training import worlds

COMBINE = "xla_gpu_all_reduce_combine_threshold_bytes"
SCHEDULER = "xla_gpu_enable_latency_hiding_scheduler"
UNKNOWN = "xla_gpu_no_such_option"
DETERMINISTIC = {"xla_gpu_deterministic_ops": "True", "xla_gpu_enable_triton_gemm": "False"}
OURS = compiler.options_for("cuda", "bucket")
ALL = compiler.options_for("cuda", "bucket", deterministic=True)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def verdict(cache):
    """Of a real compiler, in a child process."""
    options = ALL | {UNKNOWN: "1", "xla_gpu_autotune_level": "x"}
    return compiler.checked("cuda", options, cache)


@pytest.fixture(autouse=True)
def no_flags(monkeypatch):
    for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def no_child(monkeypatch):
    def refuse(*arguments):
        raise AssertionError("a child process was started")

    monkeypatch.setattr(compiler, "_child", refuse)


def test_buckets_need_the_combiner_off_and_a_tree_does_not():
    for platform, name in [("cuda", COMBINE), ("tpu", "xla_jf_crs_combiner_threshold_count")]:
        assert compiler.options_for(platform, "bucket")[name] == "1"
        assert compiler.options_for(platform, "leaf")[name] == "1"
        assert name not in compiler.options_for(platform, "tree")
    assert compiler.options_for("cuda", "tree")[SCHEDULER] == "True"
    for platform in ("rocm", "something else"):
        assert compiler.options_for(platform, "bucket") == {}
    assert compiler.options_for("cpu", "bucket") == compiler.options_for("cpu", "tree")
    for platform in ("cuda", "tpu"):
        plain = compiler.options_for(platform, "bucket")
        more = DETERMINISTIC if platform == "cuda" else {}
        assert compiler.options_for(platform, "bucket", deterministic=True) == plain | more


def test_options_of_cpus_are_tried_in_this_process(no_child):
    ours = compiler.options_for("cpu", "bucket")
    wrong = {"xla_cpu_nonsense": "1", "xla_cpu_enable_fast_math": "perhaps"}
    found = compiler.checked("cpu", ours | wrong)
    assert found.accepted == ours != {}
    assert found.rejected.keys() == wrong.keys()
    assert all(name in reason for name, reason in found.rejected.items())


def test_a_tpus_generation_adds_options_to_those_of_all_tpus():
    offload = "xla_tpu_enable_sparse_core_collective_offload_all_reduce"
    common = compiler.options_for("tpu", "bucket")
    fuse = "xla_tpu_enable_async_collective_fusion_fuse_all_reduce"
    for platform in ("tpu:v3", "tpu:v4", "tpu:v5e", "tpu:v5p", "tpu:v6e"):
        found = compiler.options_for(platform, "bucket")
        assert found.items() >= common.items()
        assert (found.get(offload) == "True") == (platform in ("tpu:v5p", "tpu:v6e"))
        assert (found.get(fuse) == "True") == (platform == "tpu:v5e")
        assert compiler.options_for(platform, "tree") == {}
    assert compiler.options_for("tpu:v9", "bucket") == common


@pytest.mark.parametrize(
    ("kind", "platform"),
    [
        ("TPU v3", "tpu:v3"),
        ("TPU v5 lite", "tpu:v5e"),
        ("TPU v5", "tpu:v5p"),
        ("TPU v6 lite", "tpu:v6e"),
        ("TPU v99", "tpu"),
    ],
)
def test_a_tpus_platform_is_its_generation(kind, platform):
    device = SimpleNamespace(platform="tpu", device_kind=kind)
    assert compiler.platform_of(device) == platform
    tiny = option_check.TINY_TPUS[platform]
    if platform != "tpu":
        assert tiny.startswith(platform.removeprefix("tpu:"))
    assert set(option_check.TINY_TPUS) == {"tpu", *(n for n in HARDWARE if n.startswith("tpu:"))}


def test_the_compiler_accepts_our_options_and_refuses_others_with_a_reason(verdict):
    assert verdict.accepted == ALL
    assert set(verdict.rejected) == {UNKNOWN, "xla_gpu_autotune_level"}


@pytest.mark.usefixtures("no_child")
def test_a_verdict_is_kept_for_the_same_options_and_versions(verdict, cache, monkeypatch):
    options = dict(verdict.accepted) | {UNKNOWN: "1", "xla_gpu_autotune_level": "x"}
    assert compiler.checked("cuda", options, cache) == verdict
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.0.1")
    with pytest.raises(AssertionError, match="child"):
        compiler.checked("cuda", options, cache)


def test_a_damaged_or_unwritable_cache_costs_time_and_no_more(verdict, monkeypatch, tmp_path):
    monkeypatch.setattr(compiler, "_child", lambda platform, options: ({"": "", "xla_a": ""}, ""))
    (tmp_path / "file").write_text("")
    assert compiler.checked("cuda", {"xla_a": "1"}, tmp_path / "file").accepted == {"xla_a": "1"}
    compiler.checked("cuda", {"xla_a": "1"}, tmp_path)
    (kept,) = tmp_path.glob("*.json")
    kept.write_text("{")
    assert compiler.checked("cuda", {"xla_a": "1"}, tmp_path).accepted == {"xla_a": "1"}
    assert json.loads(kept.read_text())["accepted"] == {"xla_a": "1"}


def test_an_option_that_ends_the_compiler_is_refused_and_the_others_are_tried_again(
    monkeypatch, tmp_path
):
    def child(platform, options):
        answers = {"": ""}
        for name in options:
            if name == "xla_fatal":
                return answers, "exit code -6: F0101 unknown"
            answers[name] = ""
        return answers, "exit code 0"

    monkeypatch.setattr(compiler, "_child", child)
    found = compiler.checked("tpu", {"xla_a": "1", "xla_fatal": "1", "xla_b": "1"}, tmp_path)
    assert found.accepted == {"xla_a": "1", "xla_b": "1"}
    assert set(found.rejected) == {"xla_fatal"}


def test_where_nothing_can_be_tried_nothing_is_used_and_nothing_kept(monkeypatch, tmp_path):
    monkeypatch.setattr(
        compiler, "_child", lambda platform, options: ({}, "exit code 1: no libtpu")
    )
    found = compiler.checked("tpu", {"xla_a": "1"}, tmp_path)
    assert found.accepted == {}
    assert set(found.rejected) == {"xla_a"}
    assert not list(tmp_path.iterdir())


def program_options(extra=(), platform="cuda", allreduce="bucket", cache=None, **options):
    warnings = []
    found = compiler.program_options(platform, allreduce, extra, warnings.append, cache, **options)
    return found, warnings


@pytest.fixture
def all_taken(monkeypatch):
    """A compiler that takes all but one."""

    def child(platform, options):
        return {"": ""} | {n: "unknown" if n == UNKNOWN else "" for n in options}, "exit code 0"

    monkeypatch.setattr(compiler, "_child", child)


@pytest.mark.usefixtures("all_taken")
def test_the_configurations_options_come_over_ours_and_a_refused_one_is_a_warning(tmp_path):
    extra = (f"{COMBINE}=4096", "--xla_gpu_other=true", f"{UNKNOWN}=1")
    found, warnings = program_options(extra, cache=tmp_path)
    assert found == OURS | {COMBINE: "4096", "xla_gpu_other": "True"}
    (warning,) = warnings
    assert UNKNOWN in warning


@pytest.mark.usefixtures("all_taken")
def test_what_the_environment_sets_is_left_to_it(monkeypatch, tmp_path):
    monkeypatch.setenv("XLA_FLAGS", f"--xla_force=1 --{SCHEDULER}=false")
    left = {name: value for name, value in OURS.items() if name != SCHEDULER}
    assert program_options(cache=tmp_path) == (left, [])
    # The configuration is nearer than the environment.
    found, _ = program_options((f"{SCHEDULER}=True",), cache=tmp_path)
    assert found == OURS


@pytest.mark.usefixtures("all_taken")
def test_deterministic_programs_get_the_options_for_it_unless_the_configuration_sets_them(tmp_path):
    found, warnings = program_options(cache=tmp_path, deterministic=True)
    assert (found, warnings) == (ALL, [])
    found, _ = program_options(
        ("xla_gpu_enable_triton_gemm=true",), cache=tmp_path, deterministic=True
    )
    assert found == ALL | {"xla_gpu_enable_triton_gemm": "True"}


@pytest.mark.usefixtures("all_taken")
def test_processes_use_what_all_of_them_can(monkeypatch, tmp_path):
    order = sorted(OURS)
    others = iter([1] + [0] * len(OURS))  # another process has only the first
    monkeypatch.setattr(compiler, "agreed_minimum", lambda mine: min(mine, next(others)))
    found, _ = program_options(cache=tmp_path)
    assert list(found) == order[:1]


@pytest.mark.parametrize("text", ["xla_gpu_x", "gpu_x=1"])
def test_what_is_no_option_is_refused(text):
    with pytest.raises(ConfigError, match="xla_options"):
        compiler.parse_options([text])


def test_a_value_may_be_empty_and_reaches_the_compiler(tmp_path):
    given = override(worlds.config(), "comm.xla_options", "xla_gpu_enable_command_buffer=,xla_a=1")
    found = compiler.parse_options(given.comm.xla_options)
    assert found == {"xla_gpu_enable_command_buffer": "", "xla_a": "1"}
    del found["xla_a"]
    assert compiler.checked("cpu", found, tmp_path) == compiler.Verdict(found, {})


def test_a_run_asks_for_the_options_of_its_devices_and_configuration(monkeypatch):
    asked = []

    def program_options(*arguments, deterministic=False):
        asked.append((*arguments, deterministic))
        return {UNKNOWN: "1"}

    monkeypatch.setattr(compiler, "program_options", program_options)
    console = Console(quiet=True)
    config = worlds.config(
        model=worlds.SMALL,
        data={"source": "digits"},
        batch={"workers": 8, "images_per_worker": 1},
        comm={"allreduce": "leaf", "xla_options": ("xla_a=1",)},
    )
    run = build(config, console)
    assert asked == [("cpu", "leaf", ("xla_a=1",), console.warn, False)]
    with pytest.raises(jax.errors.JaxRuntimeError, match=UNKNOWN):
        run.first_stage.programs.evaluate((8, 8))
