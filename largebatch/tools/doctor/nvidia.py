"""What nvidia-smi says of GPUs: clocks, power, throttling, memory errors, links."""

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from largebatch.environment import command_output
from largebatch.tools.doctor.lines import Line, judged, ok, problem, skip

FIELDS = (
    *("index", "name", "clocks.sm", "clocks.max.sm", "power.draw", "power.limit"),
    *("power.default_limit", "temperature.gpu", "persistence_mode", "ecc.mode.current"),
    *("ecc.errors.uncorrected.volatile.total", "clocks_throttle_reasons.active"),
    *("memory.used", "memory.total"),
)
# Bits of clocks_throttle_reasons.active (NVML's nvmlClocksThrottleReason*) that slow a job down;
# not those of an idle GPU, of clocks that were asked for, or of the power cap of a GPU at work.
_THROTTLES = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
_NO_GPU = "no nvidia-smi"
_USED_SHARE = 0.05  # of its memory, that a driver may hold


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A row of nvidia-smi; None where the board does not tell."""

    index: int
    name: str
    clock_mhz: float | None = None
    most_mhz: float | None = None
    power_w: float | None = None
    limit_w: float | None = None
    default_limit_w: float | None = None
    celsius: float | None = None
    persistent: bool | None = None
    ecc: bool | None = None
    errors: float | None = None
    throttles: int = 0
    used_mib: float | None = None
    total_mib: float | None = None


def query() -> list[Gpu]:
    """The GPUs of this host, [] without nvidia-smi."""
    text = command_output(
        "nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"
    )
    return parse(text) if text else []


def parse(text: str) -> list[Gpu]:
    """The rows of `nvidia-smi --query-gpu=… --format=csv,noheader,nounits`, in FIELDS' order."""
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(FIELDS) or not cells[0].isdigit():
            continue
        row = dict(zip(FIELDS, cells, strict=True))
        active = row["clocks_throttle_reasons.active"]
        found.append(
            Gpu(
                index=int(row["index"]),
                name=row["name"],
                clock_mhz=_number(row["clocks.sm"]),
                most_mhz=_number(row["clocks.max.sm"]),
                power_w=_number(row["power.draw"]),
                limit_w=_number(row["power.limit"]),
                default_limit_w=_number(row["power.default_limit"]),
                celsius=_number(row["temperature.gpu"]),
                persistent=_switch(row["persistence_mode"]),
                ecc=_switch(row["ecc.mode.current"]),
                errors=_number(row["ecc.errors.uncorrected.volatile.total"]),
                throttles=int(active, 16) if re.fullmatch("0x[0-9a-fA-F]+", active) else 0,
                used_mib=_number(row["memory.used"]),
                total_mib=_number(row["memory.total"]),
            )
        )
    return found


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _switch(text: str) -> bool | None:
    return {"enabled": True, "disabled": False}.get(text.lower())


def clocks(gpus: Sequence[Gpu]) -> Line:
    """Whether anything slows the GPUs down, or one of them differs from the others."""
    name = "GPU clocks"
    if not gpus:
        return skip(name, _NO_GPU)
    problems = []
    for gpu in gpus:
        why = [text for bit, text in _THROTTLES.items() if gpu.throttles & bit]
        if why:
            heat = f" at {gpu.celsius:.0f} °C" if gpu.celsius is not None else ""
            problems.append(
                (
                    f"GPU {gpu.index} is throttled ({', '.join(why)}){heat}",
                    "see to cooling and power supply (nvidia-smi -q -d PERFORMANCE)",
                )
            )
        if gpu.limit_w and gpu.default_limit_w and gpu.limit_w < gpu.default_limit_w:
            problems.append(
                (
                    f"GPU {gpu.index} is limited to {gpu.limit_w:.0f} of "
                    f"{gpu.default_limit_w:.0f} W",
                    f"raise it with nvidia-smi -i {gpu.index} -pl {gpu.default_limit_w:.0f}, or "
                    "expect less",
                )
            )
    most = [gpu.most_mhz for gpu in gpus if gpu.most_mhz]
    if most and min(most) < max(most):
        problems.append(
            (
                f"greatest clocks from {min(most):.0f} to {max(most):.0f} MHz",
                "use GPUs of one kind; all wait for the slowest",
            )
        )
    now = [gpu.clock_mhz for gpu in gpus if gpu.clock_mhz is not None]
    words = f"{len(gpus)} at {min(now):.0f} MHz" if now else f"{len(gpus)}, clocks not told"
    words += f" of {min(most):.0f}, nothing throttles" if most else ", nothing throttles"
    if gpus[0].limit_w:
        words += f", limit {gpus[0].limit_w:.0f} W"
    return judged(name, words, problems)


def memory(gpus: Sequence[Gpu]) -> Line:
    """Whether the GPUs are free; as of before this process has touched them."""
    name = "GPU memory"
    known = [gpu for gpu in gpus if gpu.used_mib is not None and gpu.total_mib]
    if not known:
        return skip(name, _NO_GPU)
    problems = [
        (
            f"GPU {gpu.index} has {gpu.used_mib:,.0f} of {gpu.total_mib:,.0f} MiB in use",
            "end the program that holds it (nvidia-smi)",
        )
        for gpu in known
        if gpu.used_mib > _USED_SHARE * gpu.total_mib
    ]
    least = min(gpu.total_mib - gpu.used_mib for gpu in known)
    total = min(gpu.total_mib for gpu in known)
    return judged(name, f"{least:,.0f} of {total:,.0f} MiB free on each", problems)


def health(gpus: Sequence[Gpu]) -> Line:
    """Uncorrected memory errors, ECC and persistence mode."""
    name = "GPU memory errors"
    if not gpus:
        return skip(name, _NO_GPU)
    problems = [
        (
            f"GPU {gpu.index} has {gpu.errors:.0f} uncorrected memory errors since it was reset",
            "take that GPU out of the job and have it looked at",
        )
        for gpu in gpus
        if gpu.errors
    ]
    modes = Counter(gpu.ecc for gpu in gpus)
    if len(modes) > 1:
        problems.append(("ECC is on for some GPUs and off for others", "set all alike"))
    ecc = {True: "ECC on", False: "ECC off", None: "ECC not told"}[gpus[0].ecc]
    persistent = {True: "on", False: "off: the first start is slower", None: "not told"}
    words = f"{ecc}, none uncorrected; persistence mode {persistent[gpus[0].persistent]}"
    return judged(name, words, problems)


def topology() -> str | None:
    """`nvidia-smi topo -m`; None without it."""
    return command_output("nvidia-smi", "topo", "-m")


def links(text: str | None) -> Line:
    """How the GPUs of this host reach each other, by `nvidia-smi topo -m`.

    NV# is a bond of # NVLinks; PIX, PXB, PHB stay below one processor; NODE and SYS cross it.
    """
    name = "GPU links"
    if not text:
        return skip(name, _NO_GPU)
    matrix = _matrix(text)
    pairs = {(a, b): kind for a, row in matrix.items() for b, kind in row.items() if a < b}
    if not pairs:
        return skip(name, "one GPU")
    kinds = Counter(pairs.values())
    words = ", ".join(f"{count} pair(s) {kind}" for kind, count in kinds.most_common())
    by_nvlink = [pair for pair, kind in pairs.items() if kind.startswith("NV")]
    if by_nvlink and len(by_nvlink) < len(pairs):
        (a, b), kind = next((p, k) for p, k in pairs.items() if not k.startswith("NV"))
        return problem(
            name,
            f"{words}: {a} and {b} ({kind}) have no NVLink where others do",
            "look for a failed link (nvidia-smi nvlink --status), or choose GPUs of one island",
        )
    if len({kind for kind in kinds if kind.startswith("NV")}) > 1 and len(matrix) > 4:
        words += " (unequal, as in a hypercube mesh)"
    return ok(name, words)


def _matrix(text: str) -> Mapping[str, Mapping[str, str]]:
    """GPU to GPU to kind of link."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in text.splitlines()]
    heads = next((line.split() for line in lines if re.match(r"\s+GPU0\b", line)), [])
    heads = [head for head in heads if re.fullmatch(r"GPU\d+", head)]
    found = {}
    for line in lines:
        cells = line.split()
        if cells and cells[0] in heads:
            found[cells[0]] = {
                head: kind for head, kind in zip(heads, cells[1:], strict=False) if kind != "X"
            }
    return found
