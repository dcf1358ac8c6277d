"""Devices and hosts: kinds and counts, NVIDIA's state of GPUs, memory and open files."""

import math
import re
import resource
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax

from largebatch import data
from largebatch.config import Config, Plan
from largebatch.config.geometry import check_workers
from largebatch.config.scaling import divided
from largebatch.environment import command_output
from largebatch.errors import ConfigError
from largebatch.tools.doctor.lines import Line, judged, ok, problem, skip
from largebatch.training.memory import GIB, host_bytes

DEVICES, TOPOLOGY = "devices", "TPU topology"
GPU_MEMORY, GPU_CLOCKS, GPU_ERRORS = "GPU memory", "GPU clocks", "GPU memory errors"
GPU_LINKS = "GPU links"
MEMORY, SHM, FILES = "host memory", "/dev/shm", "open files"
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


def check_devices(config: Config, expected: int = 0) -> Line:
    """Check kinds and numbers of devices, and that they can share the recipe's workers.

    Args:
        config: configuration of the run.
        expected: number of devices that there should be; 0: any.
    """
    devices = jax.devices()
    per_process = Counter(device.process_index for device in devices)
    kinds = Counter(device.device_kind for device in devices)
    workers = divided(config, len(devices)).batch.workers
    return judge_devices(kinds, list(per_process.values()), workers, expected)


def judge_devices(
    kinds: Counter[str], per_process: Sequence[int], workers: int, expected: int = 0
) -> Line:
    """Return the line from the devices of each kind and of each process."""
    total, problems = kinds.total(), []
    if len(kinds) > 1:
        mixed = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        problems.append((f"devices of several kinds: {mixed}", "use one kind"))
    if len(set(per_process)) > 1:
        found = f"processes have {min(per_process)} to {max(per_process)} devices"
        problems.append((found, "give each the same number; see docs/launch on visible devices"))
    if expected and total != expected:
        remedy = (
            "start one process for each GPU, since under SLURM and Open MPI JAX gives each process "
            "one, or set JAX_LOCAL_DEVICE_IDS (docs/launch)"
        )
        if set(kinds) == {"cpu"}:
            remedy = (
                "JAX finds no GPU or TPU: install the extra gpu or tpu (pip install -e '.[gpu]'), "
                "or correct --devices"
            )
        problems.append((f"{total} devices instead of {expected}", remedy))
    try:
        check_workers(workers, total)
    except ConfigError as error:
        problems.append((str(error), "use a number of devices that divides the workers"))
    words = f"{total} × {' and '.join(kinds)}, {len(per_process)} process(es) of {per_process[0]}"
    return judged(DEVICES, words, problems)


def check_topology() -> Line:
    """Check that the chips of a TPU slice fill a box of its torus."""
    devices = jax.devices()
    if devices[0].platform != "tpu":
        return skip(TOPOLOGY, "no TPU")
    slices: dict[int, set[tuple[int, ...]]] = {}
    for device in devices:
        slices.setdefault(getattr(device, "slice_index", 0) or 0, set()).add(tuple(device.coords))
    return judge_topology(slices)


def judge_topology(slices: Mapping[int, set[tuple[int, ...]]]) -> Line:
    """Return the line from the coordinates of the chips of each slice."""
    shapes = []
    for number, chips in slices.items():
        extents = [max(axis) - min(axis) + 1 for axis in zip(*chips, strict=True)]
        shapes.append("×".join(map(str, extents)))
        if math.prod(extents) != len(chips):
            found = f"slice {number} has {len(chips)} chips of a box of {shapes[-1]}"
            remedy = "a host is missing: start the job on all workers of the slice"
            return problem(TOPOLOGY, found, remedy)
    if len(set(shapes)) > 1:
        return problem(TOPOLOGY, f"slices of {', '.join(shapes)} chips", "use slices of one shape")
    return ok(TOPOLOGY, f"{len(slices)} slice(s) of {shapes[0]} chips")


def query_gpus() -> list[Gpu]:
    """Return the GPUs of this host; [] without nvidia-smi."""
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


def gpu_memory(gpus: Sequence[Gpu]) -> Line:
    """Check that the GPUs are free; to be called before this process uses them."""
    known = [gpu for gpu in gpus if gpu["used"] is not None and gpu["total"]]
    if not known:
        return skip(GPU_MEMORY, _NO_GPU)
    problems = [
        (
            f"GPU {gpu['index']:.0f} has {gpu['used']:,.0f} of {gpu['total']:,.0f} MiB in use",
            "end the program that uses it (nvidia-smi)",
        )
        for gpu in known
        if gpu["used"] > _USED_SHARE * gpu["total"]
    ]
    least, total = min((gpu["total"] - gpu["used"], gpu["total"]) for gpu in known)
    return judged(GPU_MEMORY, f"{least:,.0f} of {total:,.0f} MiB free on each", problems)


def gpu_clocks(gpus: Sequence[Gpu]) -> Line:
    """Check that no GPU is throttled, limited in power, or slower than the others."""
    if not gpus:
        return skip(GPU_CLOCKS, _NO_GPU)
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
    now = [gpu["clock"] for gpu in gpus if gpu["clock"] is not None]
    words = f"{len(gpus)} GPU(s), none throttled"
    words += f", {min(now):.0f} of {min(clocks):.0f} MHz" if now and clocks else ""
    return judged(GPU_CLOCKS, words, problems)


def gpu_errors(gpus: Sequence[Gpu]) -> Line:
    """Check uncorrected memory errors, and that ECC is the same on all GPUs."""
    if not gpus:
        return skip(GPU_ERRORS, _NO_GPU)
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
    ecc = {1.0: "on", 0.0: "off", None: "not reported"}[gpus[0]["ecc"]]
    return judged(GPU_ERRORS, f"ECC {ecc}, no uncorrected errors", problems)


def gpu_links(text: str | None) -> Line:
    """Check from `nvidia-smi topo -m` that all pairs have NVLink if any has.

    NV# is a bond of # NVLinks; PIX, PXB, PHB stay below one processor; NODE and SYS cross it.
    """
    if not text:
        return skip(GPU_LINKS, _NO_GPU)
    rows = [re.sub(r"\x1b\[[0-9;]*m", "", line).split() for line in text.splitlines()]
    heads = [cell for cell in (rows[0] if rows else []) if re.fullmatch(r"GPU\d+", cell)]
    matrix = {row[0]: dict(zip(heads, row[1:], strict=False)) for row in rows if row}
    pairs = {(a, b): matrix[a][b] for i, a in enumerate(heads) for b in heads[i + 1 :]}
    if not pairs:
        return skip(GPU_LINKS, "one GPU")
    words = ", ".join(f"{count} pair(s) {k}" for k, count in Counter(pairs.values()).most_common())
    without = [(pair, kind) for pair, kind in pairs.items() if not kind.startswith("NV")]
    if not without or len(without) == len(pairs):
        return ok(GPU_LINKS, words)
    (a, b), kind = without[0]
    found = f"{words}: {a} and {b} ({kind}) have no NVLink but other pairs do"
    remedy = "look for a failed link (nvidia-smi nvlink --status), or choose GPUs of one island"
    return problem(GPU_LINKS, found, remedy)


def topology_text() -> str | None:
    """Return `nvidia-smi topo -m`; None without nvidia-smi."""
    return command_output("nvidia-smi", "topo", "-m")


def check_memory(plan: Plan, local_devices: int) -> Line:
    """Compare the memory of this host with what a process of this run needs.

    That is images read ahead, three microbatches in transfer, interpreter and compiler.
    """
    height, width, channels = plan.facts.image_shape
    image = max(height * width, plan.facts.stored_size**2) * channels
    microbatch = local_devices * plan.first_stage.local_images * image
    needed = plan.config.data.memory_mib * _MIB + 3 * microbatch + _BASE
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        text = ""
    available = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)
    limit = host_bytes()  # a container may have less than its machine
    return judge_memory(min(limit, 1024 * int(available[1])) if available else limit, needed)


def judge_memory(free: int, needed: int) -> Line:
    """Return the line; bytes."""
    words = f"{free / GIB:.1f} GiB available, {needed / GIB:.1f} needed"
    if free >= needed:
        return ok(MEMORY, words)
    remedy = "lower data.memory_mib or batch.microbatch, or request more memory"
    return problem(MEMORY, words, remedy)


def check_shm(*, needed: bool) -> Line:
    """Check the size of /dev/shm; `needed`: NCCL's processes on this host use it."""
    try:
        usage = shutil.disk_usage("/dev/shm")
    except OSError:
        return skip(SHM, "there is none")
    return judge_shm(usage.total, usage.free, needed=needed)


def judge_shm(total: int, free: int, *, needed: bool) -> Line:
    """Return the line; bytes."""
    words = f"{free / _MIB:,.0f} of {total / _MIB:,.0f} MiB free"
    if not needed or free >= _NCCL_SHM:
        return ok(SHM, words)
    remedy = "docker run --shm-size=8g, or an emptyDir of medium Memory there (docs/launch)"
    if total > _NCCL_SHM:
        remedy = "remove what earlier jobs left there"
    return problem(SHM, f"{words}, NCCL needs {_NCCL_SHM / _MIB:,.0f}", remedy)


def check_files(plan: Plan) -> Line:
    """Compare the limit of open files with shards, threads and sockets."""
    options = plan.config.data
    threads = (options.threads or data.cores()) * max(1, options.processes)
    needed = _FILES_BASE + _FILES_PER_THREAD * threads + plan.facts.processes
    return judge_files(*resource.getrlimit(resource.RLIMIT_NOFILE), needed)


def judge_files(soft: int, hard: int, needed: int) -> Line:
    """Return the line from the soft and the hard limit."""
    if soft == resource.RLIM_INFINITY or soft >= needed:
        limit = "no limit" if soft == resource.RLIM_INFINITY else f"{soft:,}"
        return ok(FILES, f"{limit}, about {needed:,} needed")
    remedy = f"ulimit -n {needed}"
    if hard != resource.RLIM_INFINITY and hard < needed:
        remedy += f" (only an administrator can raise the hard limit, {hard:,})"
    return problem(FILES, f"limit {soft:,}, about {needed:,} needed", remedy)
