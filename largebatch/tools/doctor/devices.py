"""The devices that JAX sees: how many, of which kind, with how much memory free."""

from collections import Counter
from collections.abc import Sequence

import jax

from largebatch.config import Config
from largebatch.config.geometry import check_workers
from largebatch.config.scaling import divided
from largebatch.errors import ConfigError
from largebatch.tools.doctor.lines import Line, judged, ok, problem, skip
from largebatch.training.memory import GIB

_ALIKE = 0.9  # of the memory of the largest that the smallest should have


def check(config: Config, expected: int = 0) -> Line:
    """Kinds and counts over all processes, and whether the recipe's workers can be shared by them.

    Args:
        config: What is to run.
        expected: Devices that there should be; 0: whatever there is.
    """
    devices = jax.devices()
    per_process = Counter(device.process_index for device in devices)
    kinds = Counter(device.device_kind for device in devices)
    workers = divided(config, len(devices)).batch.workers
    return judge(kinds, list(per_process.values()), workers, expected)


def judge(kinds: Counter[str], per_process: Sequence[int], workers: int, expected: int = 0) -> Line:
    """The line.

    Args:
        kinds: How many devices of each kind.
        per_process: Devices of each process.
        workers: Of the global batch.
        expected: As of `check`.
    """
    total = sum(kinds.values())
    problems = []
    if len(kinds) > 1:
        mixed = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        problems.append((f"devices of several kinds: {mixed}", "use one kind"))
    if len(set(per_process)) > 1:
        problems.append(
            (
                f"processes have {min(per_process)} to {max(per_process)} devices",
                "give each as many; see docs/launch on visible devices",
            )
        )
    if expected and total != expected:
        remedy = (
            "under SLURM and Open MPI JAX gives each process one GPU: start one process for each "
            "GPU, or set JAX_LOCAL_DEVICE_IDS (docs/launch)"
        )
        if set(kinds) == {"cpu"}:
            remedy = (
                "JAX finds no GPU or TPU: install the extra gpu or tpu (pip install -e '.[gpu]'), "
                "or give the --devices that there are"
            )
        problems.append((f"{total} devices instead of {expected}", remedy))
    try:
        check_workers(workers, total)
    except ConfigError as error:
        problems.append((str(error), "use as many devices as divide the workers"))
    kind = " and ".join(kinds)
    words = f"{total} × {kind}, {len(per_process)} process(es) of {per_process[0]}"
    return judged("devices", words, problems)


def check_memory() -> Line:
    """How much memory JAX may use on each device of this process."""
    return judge_memory(
        [(str(d), (d.memory_stats() or {}).get("bytes_limit", 0)) for d in jax.local_devices()]
    )


def judge_memory(limits: Sequence[tuple[str, int]]) -> Line:
    """The line, from the bytes that may be used of each device; 0: it does not tell."""
    name = "device memory"
    known = [(limit, device) for device, limit in limits if limit]
    if not known:
        return skip(name, "devices without memory of their own")
    least, most = min(known), max(known)
    if least[0] < _ALIKE * most[0]:
        return problem(
            name,
            f"{least[1]} may use {least[0] / GIB:.1f} GiB, {most[1]} {most[0] / GIB:.1f}",
            "end the program that holds the rest (nvidia-smi), or use devices of one kind",
        )
    return ok(name, f"{least[0] / GIB:.1f} GiB of each may be used")


def coordinates() -> Line:
    """Whether the chips of a TPU slice fill a box of its torus."""
    name = "TPU topology"
    devices = jax.devices()
    if devices[0].platform != "tpu":
        return skip(name, "no TPU")
    slices: dict[int, set[tuple[int, ...]]] = {}
    for device in devices:
        slices.setdefault(getattr(device, "slice_index", 0) or 0, set()).add(tuple(device.coords))
    return judge_coordinates(slices)


def judge_coordinates(slices: dict[int, set[tuple[int, ...]]]) -> Line:
    """The line, from the coordinates of the chips of each slice."""
    name = "TPU topology"
    shapes = []
    for number, chips in slices.items():
        extents = tuple(max(axis) - min(axis) + 1 for axis in zip(*chips, strict=True))
        box = 1
        for extent in extents:
            box *= extent
        shape = "×".join(map(str, extents))
        if box != len(chips):
            return problem(
                name,
                f"slice {number} has {len(chips)} chips of a box of {shape}",
                "a host is missing: start the job on all workers of the slice",
            )
        shapes.append(shape)
    if len(set(shapes)) > 1:
        return problem(name, f"slices of {', '.join(shapes)} chips", "use slices of one shape")
    return ok(name, f"{len(slices)} slice(s) of {shapes[0]} chips")
