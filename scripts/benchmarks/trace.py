"""Where the time of some training steps goes, read from the trace that jax.profiler writes.

Each kernel (a thunk, on CPU) is joined by its instruction's name with the text of the compiled
program, whose metadata say which traced operation and which line of source it came from. Without
TensorFlow and without a plugin of TensorBoard.
"""

import dataclasses
import gzip
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.provenance import OTHER, Origin, Program
from largebatch.errors import DataError

PROGRAM = "program.hlo.txt"
IDLE = "idle"
# What kernels are called that no instruction of the program explains: those of libraries, and those
# in a graph of several instructions. The first that fits decides.
_BY_NAME = (
    ("collective", r"nccl|all[-_]?reduce|all[-_]?gather|reduce[-_]?scatter"),
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
        busy_s: Of that, while at least one ran.
    """

    kernels: tuple[Kernel, ...]
    window_s: float
    busy_s: float

    @property
    def shares(self) -> dict[str, float]:
        """By class, and IDLE: shares of the window; kernels that run side by side share it."""
        total = sum(kernel.seconds for kernel in self.kernels)
        found: dict[str, float] = defaultdict(float)
        for kernel in self.kernels:
            found[kernel.origin.kind] += kernel.seconds / total * self.busy_s / self.window_s
        ordered = dict(sorted(found.items(), key=lambda item: -item[1]))
        return ordered | {IDLE: 1 - self.busy_s / self.window_s}


@dataclasses.dataclass(frozen=True)
class _Event:
    start: float
    end: float
    name: str
    instruction: str


def read(folder: Path) -> Profile:
    """The newest profile below `folder`, with the program's text beside it.

    Raises:
        DataError: There is none, or it holds no kernel.
    """
    found = sorted(folder.glob("plugins/profile/*/*.trace.json.gz"))
    program = folder / PROGRAM
    if not found or not program.is_file():
        raise DataError(f"{folder} holds no profile with a {PROGRAM}; make one with --trace")
    with gzip.open(found[-1], "rt") as file:
        trace = json.load(file)
    return profile(trace, Program.parse(program.read_text()), str(found[-1]))


def profile(trace: Mapping[str, Any], program: Program, name: str) -> Profile:
    """The kernels of a trace in the format of Chrome's trace viewer.

    Args:
        trace: With `traceEvents`; times in µs.
        program: What ran.
        name: Of the trace, for messages.

    Raises:
        DataError: It has no kernel.
    """
    seconds: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    spans = []
    for thread in _threads(trace["traceEvents"]):
        for event, own in _own_times(thread):
            key = _kernel(event, program)
            seconds[key] += own * 1e-6
            counts[key] += 1
            spans.append((event.start, event.end))
    if not spans:
        raise DataError(f"{name} holds no kernel; profile the device that computes")
    window = max(end for _, end in spans) - min(start for start, _ in spans)
    kernels = [
        Kernel(key, origin(key, program), seconds[key], counts[key])
        for key in sorted(seconds, key=lambda key: -seconds[key])
    ]
    return Profile(tuple(kernels), window * 1e-6, _covered(spans) * 1e-6)


def origin(name: str, program: Program) -> Origin:
    """What a kernel computes: by the program if it knows the name, else by the name."""
    known = program.origin(name)
    if known:
        return known
    for kind, pattern in _BY_NAME:
        if re.search(pattern, name.lower()):
            return Origin(kind, "", "")
    return Origin(OTHER, "", "")


def _kernel(event: _Event, program: Program) -> str:
    """The instruction that an event runs; its own name where that is not known or holds others.

    The kernels of a graph are all said to run the call that the graph was made of.
    """
    instruction = program.module.instructions.get(event.instruction)
    holds = instruction is not None and instruction.opcode in ("call", "while", "conditional")
    return event.name if holds else event.instruction or event.name


def _threads(events: Iterable[Mapping[str, Any]]) -> Iterator[list[_Event]]:
    """The kernels of each stream of a device; of each thread, where the host is the device."""
    processes, threads = {}, {}
    found: dict[tuple[int, int], list[_Event]] = defaultdict(list)
    for event in events:
        if event.get("ph") == "M" and event["name"] == "process_name":
            processes[event["pid"]] = event["args"]["name"]
        if event.get("ph") == "M" and event["name"] == "thread_name":
            threads[event["pid"], event["tid"]] = event["args"]["name"]
        if event.get("ph") == "X":
            instruction = event.get("args", {}).get("hlo_op", "")
            start = float(event["ts"])
            end = start + float(event.get("dur", 0))
            found[event["pid"], event["tid"]].append(_Event(start, end, event["name"], instruction))
    on_device = [key for key in found if "/device:" in processes.get(key[0], "")]
    if on_device:
        # The other lines of a device repeat what the streams show, summed by operation.
        streams = [key for key in on_device if "stream" in threads.get(key, "").lower()]
        yield from (found[key] for key in streams or on_device)
    else:
        yield from ([event for event in thread if event.instruction] for thread in found.values())


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
