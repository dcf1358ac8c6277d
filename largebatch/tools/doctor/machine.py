"""Devices and hosts: kinds and counts, NVIDIA's state of GPUs, memory and open files."""

import functools
import math
import re
import resource
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax

from largebatch import data
from largebatch.config.geometry import check_workers
from largebatch.config.scaling import divided
from largebatch.environment import command_output
from largebatch.errors import ConfigError
from largebatch.tools.doctor.job import Job
from largebatch.tools.doctor.lines import Problem, Skip
from largebatch.training.memory import GIB, host_bytes

_MIB = 2**20
_BASE = 2 * GIB  # interpreter, JAX, compiler
_NCCL_SHM = 1 * GIB
_FILES_BASE, _FILES_PER_THREAD = 256, 4
_FIELDS = {
    "index": "index",
    "clock": "clocks.sm",
    "top_clock": "clocks.max.sm",
    "limit": "power.limit",
    "default_limit": "power.default_limit",
    "celsius": "temperature.gpu",
    "ecc": "ecc.mode.current",
    "errors": "ecc.errors.uncorrected.volatile.total",
    "throttles": "clocks_throttle_reasons.active",
    "used": "memory.used",
    "total": "memory.total",
}
"""Name here → field of `nvidia-smi --query-gpu`: MHz, W, °C, MiB."""
# Bits of NVML's nvmlClocksThrottleReason* that slow a job down. Others mean an idle GPU, requested
# clocks or the power cap of a busy GPU.
_THROTTLES = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
_NO_GPU = "no nvidia-smi"
_USED_SHARE = 0.05  # of the memory, which the driver may hold
Gpu = Mapping[str, float | None]
"""A row of nvidia-smi by the names of _FIELDS; None where the board does not report it."""


def devices(job: Job) -> str:
    """Check kinds and numbers of devices, and that they can share the recipe's workers."""
    found = jax.devices()
    total = len(found)
    kinds = Counter(device.device_kind for device in found)
    per_process = list(Counter(device.process_index for device in found).values())
    problems = []
    if len(kinds) > 1:
        mixed = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        problems.append((f"devices of several kinds: {mixed}", "use one kind"))
    if len(set(per_process)) > 1:
        uneven = f"processes have {min(per_process)} to {max(per_process)} devices"
        problems.append((uneven, "give each the same number; see docs/launch on visible devices"))
    if job.devices and total != job.devices:
        remedy = (
            "start one process for each GPU, since under SLURM and Open MPI JAX gives each process "
            "one, or set JAX_LOCAL_DEVICE_IDS (docs/launch)"
        )
        if set(kinds) == {"cpu"}:
            remedy = (
                "JAX finds no GPU or TPU: install the extra gpu or tpu (pip install -e '.[gpu]'), "
                "or correct --devices"
            )
        problems.append((f"{total} devices instead of {job.devices}", remedy))
    try:
        check_workers(divided(job.config, total).batch.workers, total)
    except ConfigError as error:
        problems.append((str(error), "use a number of devices that divides the workers"))
    if problems:
        raise Problem(*problems)
    return f"{total} × {' and '.join(kinds)}, {len(per_process)} process(es) of {per_process[0]}"


def topology(_: Job) -> str:
    """Check that the chips of a TPU slice fill a box of its torus."""
    found = jax.devices()
    if found[0].platform != "tpu":
        raise Skip("no TPU")
    slices: dict[int, set[tuple[int, ...]]] = {}
    for device in found:
        slices.setdefault(getattr(device, "slice_index", 0) or 0, set()).add(tuple(device.coords))
    shapes = []
    for number, chips in slices.items():
        extents = [max(axis) - min(axis) + 1 for axis in zip(*chips, strict=True)]
        shapes.append("×".join(map(str, extents)))
        if math.prod(extents) != len(chips):
            what = f"slice {number} has {len(chips)} chips of a box of {shapes[-1]}"
            raise Problem((what, "a host is missing: start the job on all workers of the slice"))
    if len(set(shapes)) > 1:
        raise Problem((f"slices of {', '.join(shapes)} chips", "use slices of one shape"))
    return f"{len(slices)} slice(s) of {shapes[0]} chips"


@functools.cache
def query_gpus() -> Sequence[Gpu]:
    """Return the GPUs of this host; empty without nvidia-smi."""
    fields = ",".join(_FIELDS.values())
    text = command_output("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits")
    return parse_gpus(text or "")


def parse_gpus(text: str) -> list[Gpu]:
    """Read the rows of `nvidia-smi --query-gpu=… --format=csv,noheader,nounits`."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    return [
        dict(zip(_FIELDS, map(_value, row), strict=True))
        for row in rows
        if len(row) == len(_FIELDS) and row[0].isdigit()
    ]


def _value(cell: str) -> float | None:
    if cell.lower() in ("enabled", "disabled"):
        return float(cell.lower() == "enabled")
    try:
        return float(int(cell, 16)) if cell.startswith("0x") else float(cell)
    except ValueError:
        return None


def gpu_memory(gpus: Sequence[Gpu]) -> str:
    """Check that the GPUs are free; to be called before this process uses them."""
    known = [gpu for gpu in gpus if gpu["used"] is not None and gpu["total"]]
    if not known:
        raise Skip(_NO_GPU)
    problems = [
        (
            f"GPU {gpu['index']:.0f} has {gpu['used']:,.0f} of {gpu['total']:,.0f} MiB in use",
            "end the program that uses it (nvidia-smi)",
        )
        for gpu in known
        if gpu["used"] > _USED_SHARE * gpu["total"]
    ]
    if problems:
        raise Problem(*problems)
    least, total = min((gpu["total"] - gpu["used"], gpu["total"]) for gpu in known)
    return f"{least:,.0f} of {total:,.0f} MiB free on each"


def gpu_clocks(gpus: Sequence[Gpu]) -> str:
    """Check that no GPU is throttled, limited in power, or slower than the others."""
    if not gpus:
        raise Skip(_NO_GPU)
    problems = []
    for gpu in gpus:
        name, active = f"GPU {gpu['index']:.0f}", int(gpu["throttles"] or 0)
        why = [text for bit, text in _THROTTLES.items() if active & bit]
        if why:
            heat = f" at {gpu['celsius']:.0f} °C" if gpu["celsius"] is not None else ""
            remedy = "check cooling and power supply (nvidia-smi -q -d PERFORMANCE)"
            problems.append((f"{name} is throttled ({', '.join(why)}){heat}", remedy))
        limit, default = gpu["limit"], gpu["default_limit"]
        if limit and default and limit < default:
            remedy = f"raise it with nvidia-smi -i {gpu['index']:.0f} -pl {default:.0f}"
            problems.append((f"{name} is limited to {limit:.0f} of {default:.0f} W", remedy))
    clocks = [gpu["top_clock"] for gpu in gpus if gpu["top_clock"]]
    if len(set(clocks)) > 1:
        found = f"greatest clocks from {min(clocks):.0f} to {max(clocks):.0f} MHz"
        problems.append((found, "use GPUs of one kind; all wait for the slowest"))
    if problems:
        raise Problem(*problems)
    now = [gpu["clock"] for gpu in gpus if gpu["clock"] is not None]
    rate = f", {min(now):.0f} of {min(clocks):.0f} MHz" if now and clocks else ""
    return f"{len(gpus)} GPU(s), none throttled{rate}"


def gpu_errors(gpus: Sequence[Gpu]) -> str:
    """Check uncorrected memory errors, and that ECC is the same on all GPUs."""
    if not gpus:
        raise Skip(_NO_GPU)
    problems = [
        (
            f"GPU {gpu['index']:.0f} has {gpu['errors']:.0f} uncorrected memory errors",
            "exclude that GPU from the job and have it checked",
        )
        for gpu in gpus
        if gpu["errors"]
    ]
    if len({gpu["ecc"] for gpu in gpus}) > 1:
        problems.append(("ECC is on for some GPUs and off for others", "set it alike on all"))
    if problems:
        raise Problem(*problems)
    ecc = {1.0: "on", 0.0: "off", None: "not reported"}[gpus[0]["ecc"]]
    return f"ECC {ecc}, no uncorrected errors"


def topology_text() -> str | None:
    """Return `nvidia-smi topo -m`; None without nvidia-smi."""
    return command_output("nvidia-smi", "topo", "-m")


def gpu_links(text: str | None) -> str:
    """Check from `nvidia-smi topo -m` that all pairs have NVLink if any has.

    NV# is a bond of # NVLinks; PIX, PXB, PHB stay below one processor; NODE and SYS cross it.
    """
    if not text:
        raise Skip(_NO_GPU)
    rows = [re.sub(r"\x1b\[[0-9;]*m", "", line).split() for line in text.splitlines()]
    heads = [cell for cell in (rows[0] if rows else []) if re.fullmatch(r"GPU\d+", cell)]
    matrix = {row[0]: dict(zip(heads, row[1:], strict=False)) for row in rows if row}
    pairs = {(a, b): matrix[a][b] for i, a in enumerate(heads) for b in heads[i + 1 :]}
    if not pairs:
        raise Skip("one GPU")
    words = ", ".join(f"{count} pair(s) {k}" for k, count in Counter(pairs.values()).most_common())
    without = [(pair, kind) for pair, kind in pairs.items() if not kind.startswith("NV")]
    if without and len(without) < len(pairs):
        (a, b), kind = without[0]
        found = f"{words}: {a} and {b} ({kind}) have no NVLink but other pairs do"
        remedy = "look for a failed link (nvidia-smi nvlink --status), or choose GPUs of one island"
        raise Problem((found, remedy))
    return words


def host_memory(job: Job) -> str:
    """Compare the memory of this host with what a process of this run needs.

    That is images read ahead, three microbatches in transfer, interpreter and compiler.
    """
    plan = job.known_plan()
    height, width, channels = plan.facts.image_shape
    image = max(height * width, plan.facts.stored_size**2) * channels
    microbatch = jax.local_device_count() * plan.first_stage.local_images * image
    needed = plan.config.data.memory_mib * _MIB + 3 * microbatch + _BASE
    free = host_bytes()  # a container may have less than its machine
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        text = ""
    if available := re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE):
        free = min(free, 1024 * int(available[1]))
    words = f"{free / GIB:.1f} GiB available, {needed / GIB:.1f} needed"
    if free < needed:
        remedy = "lower data.memory_mib or batch.microbatch, or request more memory"
        raise Problem((words, remedy))
    return words


def shared_memory(_: Job) -> str:
    """Check the size of /dev/shm, which NCCL's processes on this host use."""
    try:
        usage = shutil.disk_usage("/dev/shm")
    except OSError:
        raise Skip("there is none") from None
    words = f"{usage.free / _MIB:,.0f} of {usage.total / _MIB:,.0f} MiB free"
    needed = len(jax.devices()) > 1 and jax.default_backend() == "gpu"
    if needed and usage.free < _NCCL_SHM:
        remedy = "docker run --shm-size=8g, or an emptyDir of medium Memory there (docs/launch)"
        if usage.total > _NCCL_SHM:
            remedy = "remove what earlier jobs left there"
        raise Problem((f"{words}, NCCL needs {_NCCL_SHM / _MIB:,.0f}", remedy))
    return words


def open_files(job: Job) -> str:
    """Compare the limit of open files with shards, threads and sockets."""
    options = job.config.data
    threads = (options.threads or data.cores()) * max(1, options.processes)
    needed = _FILES_BASE + _FILES_PER_THREAD * threads + jax.process_count()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return f"no limit, about {needed:,} needed"
    if soft < needed:
        remedy = f"ulimit -n {needed}"
        if hard != resource.RLIM_INFINITY and hard < needed:
            remedy += f" (only an administrator can raise the hard limit, {hard:,})"
        raise Problem((f"limit {soft:,}, about {needed:,} needed", remedy))
    return f"{soft:,}, about {needed:,} needed"
