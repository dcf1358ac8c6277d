"""Judging facts of devices and hosts: GPUs, links, memory, open files."""

import resource
from collections import Counter

import pytest

from largebatch.tools.doctor import machine

GIB = 2**30
# A row of nvidia-smi --format=csv,noheader,nounits, in the order of the query.
ROW = "{i}, 1980, 1980, 700.00, 700.00, 34, Enabled, 0, {t}, 4, 81559"
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
    found = machine.parse_gpus("\n".join(ROW.format(i=i, t=throttle) for i in range(count)))
    assert len(found) == count
    return [*found[:-1], found[-1] | changes]


def test_healthy_gpus():
    for check in (machine.gpu_memory, machine.gpu_clocks, machine.gpu_errors):
        assert check(gpus()).verdict == "OK"
        assert check([]).verdict == "SKIP"
    assert "81,555 of 81,559 MiB" in machine.gpu_memory(gpus()).found
    assert "1980 of 1980 MHz" in machine.gpu_clocks(gpus()).found


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        ("0x0000000000000008", "hardware slowdown"),
        ("0x0000000000000020", "software thermal slowdown"),
        ("0x0000000000000048", "hardware slowdown, hardware thermal slowdown"),
        ("0x0000000000000080", "hardware power brake"),
        ("0x0000000000000001", ""),  # idle
        ("0x0000000000000004", ""),  # at its power cap
        ("[N/A]", ""),
    ],
)
def test_throttled_gpus(reason, word):
    line = machine.gpu_clocks(gpus(1, reason))
    assert line.verdict == ("PROBLEM" if word else "OK")
    assert f"({word}) at 34 °C" in line.found or not word


def test_gpus_that_differ():
    assert "GPU 1 is limited to 400 of 700 W" in machine.gpu_clocks(gpus(limit=400.0)).found
    assert "from 1410 to 1980 MHz" in machine.gpu_clocks(gpus(top_clock=1410.0)).found
    assert "GPU 1 has 3 uncorrected" in machine.gpu_errors(gpus(errors=3.0)).found
    assert machine.gpu_errors(gpus(ecc=0.0)).verdict == "PROBLEM"
    assert "GPU 1 has 60,000 of 81,559" in machine.gpu_memory(gpus(used=60_000.0)).found


def test_what_a_board_does_not_report_is_no_problem():
    text = "0, [N/A], [N/A], [Not Supported], N/A, N/A, N/A, N/A, N/A, N/A, N/A"
    (gpu,) = machine.parse_gpus(text + "\nNo devices were found\n")
    assert {value for name, value in gpu.items() if name != "index"} == {None}
    assert machine.gpu_clocks([gpu]).verdict == machine.gpu_errors([gpu]).verdict == "OK"
    assert machine.gpu_memory([gpu]).verdict == "SKIP"


def test_links():
    assert machine.gpu_links(NVLINKS.format(last="NV18")).found == "6 pair(s) NV18"
    broken = machine.gpu_links(NVLINKS.format(last="SYS"))
    assert broken.verdict == "PROBLEM"
    assert "GPU2 and GPU3 (SYS)" in broken.found
    pcie = machine.gpu_links(NVLINKS.format(last="PHB").replace("NV18", "PHB"))
    assert (pcie.verdict, pcie.found) == ("OK", "6 pair(s) PHB")
    assert machine.gpu_links("\tGPU0\tCPU Affinity\nGPU0\t X \t0-7\n").verdict == "SKIP"
    assert machine.gpu_links(None).verdict == "SKIP"


def test_devices():
    line = machine.judge_devices(Counter({"H100": 16}), [8, 8], workers=32)
    assert line.found == "16 × H100, 2 process(es) of 8"
    # What JAX makes of one process per node under SLURM: one GPU each.
    few = machine.judge_devices(Counter({"H100": 2}), [1, 1], 32, expected=16)
    assert "2 devices instead of 16" in few.found
    assert "JAX_LOCAL_DEVICE_IDS" in few.remedy
    laptop = machine.judge_devices(Counter({"cpu": 1}), [1], 8, expected=8)
    assert ".[gpu]" in laptop.remedy
    for kinds, per_process, workers in (
        (Counter({"H100": 16}), [8, 8], 40),
        (Counter({"H100": 15}), [8, 7], 15),
        (Counter({"H100": 1, "A100": 1}), [2], 2),
    ):
        assert machine.judge_devices(kinds, per_process, workers).verdict == "PROBLEM"


def test_topology():
    assert machine.check_topology().verdict == "SKIP"
    box = {(x, y, 0) for x in range(2) for y in range(4)}
    assert machine.judge_topology({0: box, 1: box}).found == "2 slice(s) of 2×4×1 chips"
    assert "7 chips of a box of 2×4×1" in machine.judge_topology({0: box - {(0, 1, 0)}}).found
    assert machine.judge_topology({0: box, 1: {(0, 0, 0)}}).verdict == "PROBLEM"


def test_host_memory_shm_and_files():
    assert machine.judge_memory(40 * GIB, 30 * GIB).verdict == "OK"
    assert machine.judge_memory(16 * GIB, 30 * GIB).verdict == "PROBLEM"
    assert machine.check_shm(needed=False).verdict in ("OK", "SKIP")
    assert "--shm-size" in machine.judge_shm(64 * 2**20, 64 * 2**20, needed=True).remedy
    assert machine.judge_shm(64 * 2**20, 64 * 2**20, needed=False).verdict == "OK"
    assert machine.judge_shm(8 * GIB, 2**20, needed=True).remedy.startswith("remove")
    infinite = resource.RLIM_INFINITY
    assert machine.judge_files(1024, 4096, 500).verdict == "OK"
    assert machine.judge_files(infinite, infinite, 9).verdict == "OK"
    assert machine.judge_files(256, 512, 1000).remedy.startswith("ulimit -n 1000 (")
