"""Judging made-up facts of hosts and devices: versions, GPUs, memory, links, files."""

import dataclasses
import resource
from collections import Counter

import pytest

from largebatch.tools.doctor import devices, host, nvidia, versions

GIB = 2**30
# A row as nvidia-smi --format=csv,noheader,nounits prints it, in the order of FIELDS.
ROW = (
    "{i}, NVIDIA H100 80GB HBM3, 1980, 1980, 118.4, 700.00, 700.00, 34, Enabled, Enabled, 0, {t}, "
    "4, 81559"
)
NVLINKS = """\
\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\x1b[0m
GPU0\t X \tNV18\tNV18\tNV18\tPIX\t0-47\t0
GPU1\tNV18\t X \tNV18\tNV18\tNODE\t0-47\t0
GPU2\tNV18\tNV18\t X \t{last}\tSYS\t48-95\t1
GPU3\tNV18\tNV18\t{last}\t X \tSYS\t48-95\t1
NIC0\tPIX\tNODE\tSYS\tSYS\t X \t\t

Legend:

  X    = Self
"""


def gpus(count=2, throttle="0x0000000000000000", **changes):
    found = nvidia.parse("\n".join(ROW.format(i=i, t=throttle) for i in range(count)))
    assert len(found) == count
    return [*found[:-1], dataclasses.replace(found[-1], **changes)]


def test_healthy_gpus():
    assert nvidia.clocks(gpus()).found == "2 at 1980 MHz of 1980, nothing throttles, limit 700 W"
    assert nvidia.health(gpus()).found == "ECC on, none uncorrected; persistence mode on"
    assert nvidia.memory(gpus()).found == "81,555 of 81,559 MiB free on each"


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        ("0x0000000000000008", "hardware slowdown"),
        ("0x0000000000000020", "software thermal slowdown"),
        ("0x0000000000000048", "hardware slowdown, hardware thermal slowdown"),
        ("0x0000000000000080", "hardware power brake"),
    ],
)
def test_a_throttled_gpu(reason, word):
    line = nvidia.clocks(gpus(1, reason))
    assert line.verdict == "PROBLEM"
    assert f"GPU 0 is throttled ({word}) at 34 °C" in line.found


@pytest.mark.parametrize("reason", ["0x0000000000000001", "0x0000000000000004", "[N/A]"])
def test_an_idle_gpu_and_one_at_its_power_cap_are_well(reason):
    assert nvidia.clocks(gpus(1, reason)).verdict == "OK"


def test_gpus_that_differ():
    assert "GPU 1 is limited to 400 of 700 W" in nvidia.clocks(gpus(limit_w=400.0)).found
    assert "from 1410 to 1980 MHz" in nvidia.clocks(gpus(most_mhz=1410.0)).found
    assert "GPU 1 has 3 uncorrected" in nvidia.health(gpus(errors=3.0)).found
    assert "on for some" in nvidia.health(gpus(ecc=False)).found
    used = nvidia.memory(gpus(used_mib=60_000.0))
    assert "GPU 1 has 60,000 of 81,559 MiB in use" in used.found
    assert nvidia.clocks([]).verdict == "SKIP"


def test_what_a_board_does_not_tell_is_no_problem():
    text = "0, GRID T4, [N/A], [N/A], N/A, [Not Supported], N/A, N/A, N/A, N/A, N/A, N/A, N/A, N/A"
    (gpu,) = nvidia.parse(text + "\nNo devices were found\n")
    assert (gpu.clock_mhz, gpu.ecc, gpu.throttles) == (None, None, 0)
    assert nvidia.clocks([gpu]).verdict == nvidia.health([gpu]).verdict == "OK"
    assert nvidia.memory([gpu]).verdict == "SKIP"


def test_links():
    assert nvidia.links(NVLINKS.format(last="NV18")).found == "6 pair(s) NV18"
    broken = nvidia.links(NVLINKS.format(last="SYS"))
    assert broken.verdict == "PROBLEM"
    assert "GPU2 and GPU3 (SYS) have no NVLink where others do" in broken.found
    pcie = nvidia.links(NVLINKS.format(last="PHB").replace("NV18", "PHB"))
    assert (pcie.verdict, pcie.found) == ("OK", "6 pair(s) PHB")
    assert nvidia.links("\tGPU0\tCPU Affinity\nGPU0\t X \t0-7\n").verdict == "SKIP"
    assert nvidia.links(None).verdict == "SKIP"


def test_versions_that_do_not_fit():
    shown = {"jax": "0.10.2"}
    needs = {"jax": ["jaxlib<=0.10.2,>=0.10.1"], "flax": ["jax>=0.10.0", "msgpack"]}
    line = versions.judge((3, 10), "3.10.1", shown, needs, {"jax": "0.10.2", "jaxlib": "0.10.0"})
    assert line.found == (
        "Python 3.10.1; jaxlib 0.10.0, but jax needs <=0.10.2,>=0.10.1; "
        "msgpack, which flax needs, is not installed"
    )
    assert "pip install 'jaxlib<=0.10.2,>=0.10.1'" in line.remedy
    good = {"jax": "0.10.2", "jaxlib": "0.10.2.dev1", "msgpack": "1"}
    assert versions.judge((3, 11), "3.11.7", shown, needs, good).verdict == "OK"


def test_what_is_installed_here_fits():
    assert versions.check().verdict == "OK"
    plain, cuda = versions.requirements("jax"), versions.requirements("jax", ["cuda12"])
    plugins = [need for need in cuda if need not in plain]
    assert any(need.startswith("jax-cuda12-plugin<=") for need in plugins)
    assert not any("plugin" in need for need in plain)


def test_devices():
    line = devices.judge(Counter({"H100": 16}), [8, 8], workers=32)
    assert line.found == "16 × H100, 2 process(es) of 8"
    # What JAX makes of one process per node under SLURM: one GPU each.
    few = devices.judge(Counter({"H100": 2}), [1, 1], 32, expected=16)
    assert "2 devices instead of 16" in few.found
    assert "JAX_LOCAL_DEVICE_IDS" in few.remedy
    laptop = devices.judge(Counter({"cpu": 1}), [1], 8, expected=8)
    assert ".[gpu]" in laptop.remedy
    assert "SLURM" not in laptop.remedy
    assert "cannot be shared" in devices.judge(Counter({"H100": 16}), [8, 8], 40).found
    assert "7 to 8 devices" in devices.judge(Counter({"H100": 15}), [8, 7], 15).found
    assert "several kinds" in devices.judge(Counter({"H100": 1, "A100": 1}), [2], 2).found


def test_device_memory_and_topology():
    assert devices.judge_memory([("cuda:0", 60 * GIB), ("cuda:1", 59 * GIB)]).verdict == "OK"
    uneven = devices.judge_memory([("cuda:0", 60 * GIB), ("cuda:1", 20 * GIB)])
    assert "cuda:1 may use 20.0 GiB, cuda:0 60.0" in uneven.found
    assert devices.judge_memory([("cpu:0", 0)]).verdict == "SKIP"
    box = {(x, y, 0) for x in range(2) for y in range(4)}
    assert devices.judge_coordinates({0: box, 1: box}).found == "2 slice(s) of 2×4×1 chips"
    holey = devices.judge_coordinates({0: box - {(0, 1, 0)}})
    assert "7 chips of a box of 2×4×1" in holey.found
    assert devices.judge_coordinates({0: box, 1: {(0, 0, 0)}}).verdict == "PROBLEM"


def test_host_memory_shm_and_files():
    assert host.available_bytes("MemTotal: 9 kB\nMemAvailable:    2048 kB\n") == 2 * 2**20
    assert host.available_bytes("MemTotal: 9 kB\n") is None
    assert host.judge_memory(64 * GIB, 40 * GIB, 30 * GIB).verdict == "OK"
    # A container's limit counts where it is less than what the machine has.
    tight = host.judge_memory(16 * GIB, 40 * GIB, 30 * GIB)
    assert tight.found == "16.0 of 16.0 GiB available, 30.0 needed"
    small = host.judge_shm(64 * 2**20, 64 * 2**20, needed=True)
    assert "64 of 64 MiB free" in small.found
    assert "--shm-size" in small.remedy
    assert host.judge_shm(64 * 2**20, 64 * 2**20, needed=False).verdict == "OK"
    assert host.judge_shm(8 * GIB, 2**20, needed=True).remedy.startswith("remove")
    assert host.judge_files(1024, 4096, 500).verdict == "OK"
    assert host.judge_files(resource.RLIM_INFINITY, resource.RLIM_INFINITY, 9).verdict == "OK"
    few = host.judge_files(256, 512, 1000)
    assert few.remedy.startswith("ulimit -n 1000 (the hard limit, 512")


def test_governor(monkeypatch):
    monkeypatch.setattr(host, "_intel_pstate", lambda: False)
    assert host.judge_governor(["performance"] * 2).verdict == "OK"
    assert "1 of 2 cores" in host.judge_governor(["performance", "powersave"]).found
    monkeypatch.setattr(host, "_intel_pstate", lambda: True)
    assert host.judge_governor(["powersave"]).verdict == "OK"
    assert host.judge_governor([]).verdict == "SKIP"


def test_the_checks_run_on_this_machine():
    assert devices.check_memory().verdict == "SKIP"
    assert devices.coordinates().verdict == "SKIP"
    assert host.check_shm(several=False, gpu=False).verdict in ("OK", "SKIP")
    assert host.check_governor().verdict in ("OK", "SKIP", "PROBLEM")
