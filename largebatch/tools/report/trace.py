"""Where the time of some training steps goes, read from the trace that jax.profiler writes.

Each kernel (a thunk, on CPU) is joined by its instruction's name with the compiled program, whose
metadata say which traced operation and which line of source it came from. The program is the text
beside the profile or, without one, what the profile itself brings along. Without TensorFlow and
without a plugin of TensorBoard.
"""

import dataclasses
import gzip
import json
import math
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from largebatch.errors import DataError
from largebatch.tools.report import xplane
from largebatch.tools.report.provenance import OTHER, Origin, Program

PROGRAM = "program.hlo.txt"
IDLE = "idle"
COLLECTIVE = "collective"
# What kernels are called that no instruction of the program explains: those of libraries, and those
# in a graph of several instructions. The first that fits decides.
_BY_NAME = (
    (COLLECTIVE, r"nccl|all[-_]?reduce|all[-_]?gather|reduce[-_]?scatter"),
    ("copy, transpose", r"nchwtonhwc|nhwctonchw|transpose|memcpy|memset|copy"),
    ("convolution", r"fprop|dgrad|wgrad|conv|cudnn|winograd"),
    ("matrix product", r"gemm|cublas|cutlass|nvjet|matmul"),
    ("norm, ReLU, add", r"fusion"),
)


@dataclasses.dataclass(frozen=True)
class Kernel:
    """All runs of one kernel.

    Attributes:
        name: Of the instruction, or of the kernel where that is not known.
        origin: Its class and where it comes from.
        seconds: Of all runs, without what ran inside of them on the same thread.
        count: Runs.
    """

    name: str
    origin: Origin
    seconds: float
    count: int


@dataclasses.dataclass(frozen=True)
class Profile:
    """The kernels of some steps.

    Attributes:
        kernels: The longest first.
        window_s: From the start of the first to the end of the last.
        busy_s: Of that, while at least one ran; the mean of the devices.
        exposed_s: While collectives ran and nothing else; the mean of the devices.
        hidden_s: While collectives ran beside others; the mean of the devices.
    """

    kernels: tuple[Kernel, ...]
    window_s: float
    busy_s: float
    exposed_s: float = 0.0
    hidden_s: float = 0.0

    @property
    def shares(self) -> dict[str, float]:
        """By class, and IDLE: shares of the window; kernels that run side by side share it."""
        total = sum(kernel.seconds for kernel in self.kernels)
        found: dict[str, float] = defaultdict(float)
        for kernel in self.kernels:
            found[kernel.origin.kind] += kernel.seconds / total * self.busy_s / self.window_s
        ordered = dict(sorted(found.items(), key=lambda item: -item[1]))
        return ordered | {IDLE: 1 - self.busy_s / self.window_s}

    @property
    def split(self) -> dict[str, float]:
        """By class: shares of the window, which sum to 1.

        Of collectives only what is exposed counts. The time while anything else ran is shared out
        to its kernels by their own times; `hidden_s` lies within it.
        """
        others: dict[str, float] = defaultdict(float)
        for kernel in self.kernels:
            if kernel.origin.kind != COLLECTIVE:
                others[kernel.origin.kind] += kernel.seconds
        total, computing = sum(others.values()), self.busy_s - self.exposed_s
        found = {kind: s / total * computing / self.window_s for kind, s in others.items()}
        ordered = dict(sorted(found.items(), key=lambda item: -item[1]))
        exposed, idle = self.exposed_s / self.window_s, 1 - self.busy_s / self.window_s
        return ordered | {f"{COLLECTIVE}, exposed": exposed, IDLE: idle}


@dataclasses.dataclass(frozen=True)
class _Event:
    start: float
    end: float
    name: str
    instruction: str
    module: str


def read(place: Path) -> Profile:
    """The newest profile of a directory, or of one file.

    Args:
        place: A folder that jax.profiler wrote to, one with `profile/` in it, or `*.trace.json.gz`.

    Raises:
        DataError: There is none, it is torn, or it holds no kernel.
    """
    newest = place if place.is_file() else _newest(place)
    try:
        with gzip.open(newest, "rt") as file:
            trace = json.load(file)
    except (OSError, EOFError, ValueError, RecursionError, zlib.error) as error:
        raise DataError(f"{newest} is torn or no trace; record it again") from error
    return profile(trace, _programs(place, newest), str(newest))


def _newest(folder: Path) -> Path:
    found = [
        path
        for below in ("", "profile/")
        for path in folder.glob(f"{below}plugins/profile/*/*.trace.json.gz")
    ]
    if not found:
        raise DataError(
            f"{folder} holds no profile; make one with --config.run.profile=START:STOP of train.py "
            "or --trace of scripts/benchmark.py"
        )
    return max(found, key=lambda path: (path.parent.name, path.name))


def _programs(place: Path, newest: Path) -> Mapping[str, Program] | Program:
    text = place / PROGRAM
    if text.is_file():
        return Program.parse(text.read_text())
    brought = newest.with_name(newest.name.replace(".trace.json.gz", ".xplane.pb"))
    return xplane.programs(brought) if brought.is_file() else {}


def profile(
    trace: Mapping[str, Any], programs: Mapping[str, Program] | Program, name: str
) -> Profile:
    """The kernels of a trace in the format of Chrome's trace viewer.

    Args:
        trace: With `traceEvents`; times in µs.
        programs: What ran, by the name of its module; one that is not named is meant for all.
        name: Of the trace, for messages.

    Raises:
        DataError: It has no kernel.
    """
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    counts: dict[tuple[str, str], int] = defaultdict(int)
    origins: dict[tuple[str, str], Origin] = {}
    spans: dict[int, list[tuple[float, float, bool]]] = defaultdict(list)
    try:
        every_thread = list(_threads(trace.get("traceEvents", ())))
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise DataError(f"{name} is no trace of jax.profiler; record it again") from error
    for device, thread in every_thread:
        for event, own in _own_times(thread):
            program = programs if isinstance(programs, Program) else programs.get(event.module)
            key = event.module, _kernel(event, program)
            if key not in origins:
                origins[key] = origin(key[1], program)
            seconds[key] += own * 1e-6
            counts[key] += 1
            spans[device].append((event.start, event.end, origins[key].kind == COLLECTIVE))
    if not any(seconds.values()):
        raise DataError(f"{name} holds no kernel; profile the device that computes")
    every = [span for device in spans.values() for span in device]
    window = max(end for _, end, _ in every) - min(start for start, _, _ in every)
    busy = exposed = hidden = 0.0
    for found in spans.values():
        union, reducing, others = (
            _covered([(start, end) for start, end, collective in found if collective in which])
            for which in ((True, False), (True,), (False,))
        )
        busy += union
        exposed += max(0.0, union - others)
        hidden += max(0.0, reducing + others - union)  # sums of spans are not exact
    kernels = [
        Kernel(key[1], origins[key], seconds[key], counts[key])
        for key in sorted(seconds, key=lambda key: -seconds[key])
    ]
    scale = 1e-6 / len(spans)
    return Profile(tuple(kernels), window * 1e-6, busy * scale, exposed * scale, hidden * scale)


def origin(name: str, program: Program | None) -> Origin:
    """What a kernel computes: by the program if it knows the name, else by the name."""
    known = program.origin(name) if program else None
    if known:
        return known
    for kind, pattern in _BY_NAME:
        if re.search(pattern, name.lower()):
            return Origin(kind, "", "")
    return Origin(OTHER, "", "")


def _kernel(event: _Event, program: Program | None) -> str:
    """The instruction that an event runs; its own name where that is not known or holds others.

    The kernels of a graph are all said to run the call that the graph was made of.
    """
    instruction = program.module.instructions.get(event.instruction) if program else None
    holds = instruction is not None and instruction.opcode in ("call", "while", "conditional")
    return event.name if holds else event.instruction or event.name


def _threads(events: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, list[_Event]]]:
    """The kernels of each stream with its device; of each thread, where the host is the device.

    A device has other lines, which repeat what these show, summed by operation, module or step.
    GPUs have streams; a TPU's kernels are those of the line "XLA Ops".
    """
    processes, threads = {}, {}
    found: dict[tuple[int, int], list[_Event]] = defaultdict(list)
    for event in events:
        if event.get("ph") == "M" and event["name"] == "process_name":
            processes[event["pid"]] = event["args"]["name"]
        if event.get("ph") == "M" and event["name"] == "thread_name":
            threads[event["pid"], event["tid"]] = str(event["args"]["name"])
        if event.get("ph") == "X":
            given = event.get("args", {})
            ran = str(given.get("hlo_op", "")), str(given.get("hlo_module", ""))
            start = float(event["ts"])
            end = start + float(event.get("dur", 0))
            if not math.isfinite(end):
                raise ValueError(f"an event ends at {end}")
            found[event["pid"], event["tid"]].append(_Event(start, end, str(event["name"]), *ran))
    on_device = [key for key in found if "/device:" in processes.get(key[0], "")]
    if on_device:
        streams = [key for key in on_device if "stream" in threads.get(key, "").lower()]
        operations = [key for key in on_device if threads.get(key) == "XLA Ops"]
        yield from ((key[0], found[key]) for key in streams or operations or on_device)
    else:
        for (process, _), thread in found.items():
            yield process, [event for event in thread if event.instruction]


def _own_times(thread: list[_Event]) -> Iterator[tuple[_Event, float]]:
    """Each event of a thread with its time in µs, less that of the events inside of it."""
    open_: list[tuple[_Event, list[float]]] = []
    for event in sorted(thread, key=lambda event: (event.start, -event.end)):
        while open_ and open_[-1][0].end <= event.start:
            closed, inner = open_.pop()
            yield closed, closed.end - closed.start - sum(inner)
        if open_:
            open_[-1][1].append(min(event.end, open_[-1][0].end) - event.start)
        open_.append((event, []))
    for closed, inner in open_:
        yield closed, closed.end - closed.start - sum(inner)


def _covered(spans: list[tuple[float, float]]) -> float:
    """Length of the union of intervals."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total
