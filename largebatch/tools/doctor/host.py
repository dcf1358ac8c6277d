"""The host: memory, shared memory, open files, clock of the processor."""

import resource
import shutil
from collections.abc import Sequence
from pathlib import Path

from largebatch import data
from largebatch.config import Plan
from largebatch.tools.doctor.lines import Line, judged, ok, problem, skip
from largebatch.training.memory import GIB, host_bytes

_MIB = 2**20
_BASE = 2 * GIB  # interpreter, JAX, compiler
_SHM = 64 * _MIB  # what containers get unless they ask for more
_NCCL_SHM = 1 * GIB
_FILES_BASE = 256
_PER_THREAD = 4


def check_memory(plan: Plan, local_devices: int) -> Line:
    """Available memory of this host against what a process of this run needs."""
    return judge_memory(host_bytes(), available_bytes(), needed_bytes(plan, local_devices))


def needed_bytes(plan: Plan, local_devices: int) -> int:
    """Of one process: images read ahead, three microbatches on their way, state, interpreter."""
    height, width, channels = plan.facts.image_shape
    side = max(height * width, plan.facts.stored_size**2)
    microbatch = local_devices * plan.first_stage.local_images * side * channels
    return plan.config.data.memory_mib * _MIB + 3 * microbatch + _BASE


def available_bytes(text: str | None = None) -> int | None:
    """MemAvailable of /proc/meminfo, or of such a text; None where it is not told."""
    if text is None:
        try:
            text = Path("/proc/meminfo").read_text()
        except OSError:
            return None
    for line in text.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def judge_memory(limit: int, available: int | None, needed: int) -> Line:
    """The line; bytes."""
    free = limit if available is None else min(limit, available)
    words = f"{free / GIB:.1f} of {limit / GIB:.1f} GiB available, {needed / GIB:.1f} needed"
    if free >= needed:
        return ok("host memory", words)
    return problem(
        "host memory",
        words,
        "lower data.memory_mib or batch.microbatch, or ask for more memory",
    )


def check_shm(several: bool, gpu: bool) -> Line:
    """The size of /dev/shm, through which NCCL's processes of one host talk."""
    try:
        usage = shutil.disk_usage("/dev/shm")
    except OSError:
        return skip("/dev/shm", "there is none")
    return judge_shm(usage.total, usage.free, several and gpu)


def judge_shm(total: int, free: int, needed: bool) -> Line:
    """The line; bytes. `needed`: several GPUs are at work."""
    words = f"{free / _MIB:,.0f} of {total / _MIB:,.0f} MiB free"
    if not needed or free >= _NCCL_SHM:
        return ok("/dev/shm", words)
    remedy = "docker run --shm-size=8g, or an emptyDir of medium Memory there (docs/launch)"
    if total > _NCCL_SHM:
        remedy = "remove what earlier jobs left there"
    return problem("/dev/shm", f"{words}, NCCL wants {_NCCL_SHM / _MIB:,.0f}", remedy)


def check_files(plan: Plan) -> Line:
    """The limit of open files against shards, threads and sockets."""
    options = plan.config.data
    threads = (options.threads or data.cores()) * max(1, options.processes)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return judge_files(soft, hard, _FILES_BASE + _PER_THREAD * threads + plan.facts.processes)


def judge_files(soft: int, hard: int, needed: int) -> Line:
    """The line."""
    if soft == resource.RLIM_INFINITY or soft >= needed:
        limit = "no limit" if soft == resource.RLIM_INFINITY else f"{soft:,}"
        return ok("open files", f"{limit}, about {needed:,} needed")
    remedy = f"ulimit -n {needed}"
    if hard != resource.RLIM_INFINITY and hard < needed:
        remedy += f" (the hard limit, {hard:,}, is for the administrator to raise)"
    return problem("open files", f"limit {soft:,}, about {needed:,} needed", remedy)


def check_governor() -> Line:
    """Whether the cores may run at full clock."""
    paths = Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    found = []
    for path in paths:
        try:
            found.append(path.read_text().strip())
        except OSError:
            continue
    return judge_governor(found)


def judge_governor(governors: Sequence[str]) -> Line:
    """The line."""
    name = "CPU governor"
    if not governors:
        return skip(name, "the system does not tell")
    slow = [each for each in governors if each in ("powersave", "conservative", "userspace")]
    # Intel's own driver calls its adaptive mode powersave and reaches the full clock in it.
    words = ", ".join(sorted(set(governors)))
    problems = []
    if slow and not _intel_pstate():
        problems.append(
            (
                f"{len(slow)} of {len(governors)} cores: {words}",
                "cpupower frequency-set -g performance",
            )
        )
    return judged(name, words, problems)


def _intel_pstate() -> bool:
    path = Path("/sys/devices/system/cpu/intel_pstate/status")
    try:
        return path.read_text().strip() == "active"
    except OSError:
        return False
