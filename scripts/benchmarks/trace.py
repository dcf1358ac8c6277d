"""Shares of the device's time by kind of work, from a profile that jax.profiler wrote.

`jax.profiler.ProfileData` reads the events. Each event names the instruction that it ran; the text
of the compiled program beside the profile (`*.hlo.txt`) says what that computes and from which line
of source it is. Without that text the name of the kernel decides.
"""

import dataclasses
import re
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jax.profiler import ProfileData

from benchmarks.provenance import OTHER, Origin, Program
from largebatch.errors import DataError

PROGRAM = "program.hlo.txt"
IDLE = "idle"
# Names of the kernels that no program explains: kernels of libraries, and those of a GPU graph of
# several instructions. The first pattern that matches decides.
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
        name: name of the instruction, or of the kernel if that is unknown.
        origin: its class and its source.
        seconds: time of all runs, without that of events within them on the same thread.
        count: number of runs.
    """

    name: str
    origin: Origin
    seconds: float
    count: int


@dataclasses.dataclass(frozen=True)
class Profile:
    """The kernels of some steps.

    Attributes:
        kernels: the longest first.
        window_s: from the start of the first to the end of the last.
        busy_s: time of the window in which at least one ran; mean over devices.
    """

    kernels: tuple[Kernel, ...]
    window_s: float
    busy_s: float

    @property
    def shares(self) -> dict[str, float]:
        """Shares of the window by class and IDLE; kernels side by side share their time."""
        found: dict[str, float] = defaultdict(float)
        for kernel in self.kernels:
            found[kernel.origin.kind] += kernel.seconds
        total, busy = sum(found.values()), self.busy_s / self.window_s
        ordered = sorted(found.items(), key=lambda item: -item[1])
        return {kind: busy * spent / total for kind, spent in ordered} | {IDLE: 1 - busy}


class _Event(NamedTuple):
    start: float
    end: float
    name: str
    instruction: str
    module: str


def read(place: Path) -> Profile:
    """Read the newest profile of a folder, or one file.

    Args:
        place: a folder that jax.profiler wrote to, or `*.xplane.pb`.

    Raises:
        DataError: there is no profile, it is damaged, or it holds no kernel.
    """
    newest = place if place.is_file() else _newest(place)
    try:
        with warnings.catch_warnings():  # jaxlib's iterators lack a __module__ for Python 3.12
            warnings.simplefilter("ignore", DeprecationWarning)
            devices = _devices(ProfileData.from_serialized_xspace(newest.read_bytes()))
    except (OSError, RuntimeError, ValueError) as error:
        raise DataError(f"{newest} is not a profile or is damaged; record it again") from error
    is_usual = newest.match("plugins/profile/*/*.xplane.pb")
    folder = newest.parents[3] if is_usual else newest.parent
    texts = sorted(folder.glob("*.hlo.txt"))
    try:
        programs = [Program.parse(text.read_text()) for text in texts]
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{folder}/*.hlo.txt: damaged; record the profile again") from error
    return profile(devices, programs, str(newest))


def _newest(folder: Path) -> Path:
    found = list(folder.glob("plugins/profile/*/*.xplane.pb"))
    if not found:
        raise DataError(f"{folder} contains no profile; make one with --trace")
    return max(found, key=lambda path: (path.parent.name, path.name))


def _devices(data: ProfileData) -> list[list[list[_Event]]]:
    """Return the events of each stream of each device; of each thread where the host is the device.

    A GPU has a line for each stream; a TPU's kernels are on the line "XLA Ops". Other lines of a
    device repeat them, summed by operation, module or step.
    """
    planes = {plane.name: list(plane.lines) for plane in data.planes}
    found = []
    for name, lines in planes.items():
        if "/device:" in name:
            streams = [line for line in lines if "stream" in line.name.lower()]
            operations = [line for line in lines if line.name == "XLA Ops"]
            found.append([_events(line) for line in streams or operations or lines])
    if any(stream for device in found for stream in device):
        return found
    threads = [_events(line) for line in planes.get("/host:CPU", ())]
    return [[[event for event in thread if event.instruction] for thread in threads]]


def _events(line: Any) -> list[_Event]:
    found = []
    for event in line.events:
        stats = dict(event.stats)
        # A TPU's event is named by the text of its instruction: %fusion.1 = f32[8] fusion(…).
        text = re.match(r"%([\w.\-]+) = ", event.name)
        instruction = str(stats.get("hlo_op") or (text[1] if text else ""))
        name = text[1] if text else event.name
        module = str(stats.get("hlo_module") or "")
        found.append(_Event(event.start_ns, event.end_ns, name, instruction, module))
    return found


def profile(
    devices: Sequence[Sequence[Sequence[_Event]]], programs: Sequence[Program], name: str
) -> Profile:
    """Sum the events of each kernel.

    Args:
        devices: events of each stream of each device; times in ns.
        programs: what ran.
        name: name of the profile, for messages.

    Raises:
        DataError: there is no kernel.
    """
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    counts: dict[tuple[str, str], int] = defaultdict(int)
    origins: dict[tuple[str, str], Origin] = {}
    spans: list[list[tuple[float, float]]] = []
    for device in devices:
        spans.append([])
        for event, own in (pair for stream in device for pair in _own_times(stream)):
            program = _program(event, programs)
            key = event.module, _kernel(event, program)
            if key not in origins:
                origins[key] = _origin(key[1], program)
            seconds[key] += own * 1e-9
            counts[key] += 1
            spans[-1].append((event.start, event.end))
    if not any(seconds.values()):
        raise DataError(f"{name} contains no kernel; profile the device that computes")
    every = [span for device in spans for span in device]
    window = max(end for _, end in every) - min(start for start, _ in every)
    busy = sum(map(_covered, spans)) / sum(map(bool, spans))
    kernels = [
        Kernel(key[1], origins[key], seconds[key], counts[key])
        for key in sorted(seconds, key=lambda key: -seconds[key])
    ]
    return Profile(tuple(kernels), window * 1e-9, busy * 1e-9)


def _program(event: _Event, programs: Sequence[Program]) -> Program | None:
    """The program that an event names; if it names none, the first that has its instruction."""
    found = (
        each
        for each in programs
        if each.name == event.module
        or (not event.module and each.origin(event.instruction or event.name))
    )
    return next(found, None)


def _kernel(event: _Event, program: Program | None) -> str:
    """The instruction that an event runs; the name of the event if that is unknown.

    The kernels of a GPU graph name the call that the graph was made of, or the graph itself
    (`command_buffer_7`), so their own names count.
    """
    if program is None:
        return event.instruction or event.name
    for name in (event.instruction, event.name):
        found = program.instruction(name)
        if found is not None and found.opcode not in ("call", "while", "conditional"):
            return found.name
    return event.name


def _origin(name: str, program: Program | None) -> Origin:
    known = program.origin(name) if program else None
    by_name = (kind for kind, pattern in _BY_NAME if re.search(pattern, name.lower()))
    return known or Origin(next(by_name, OTHER))


def _own_times(stream: Sequence[_Event]) -> Iterator[tuple[_Event, float]]:
    """Yield each event of a stream with its time in ns, less that of the events within it."""
    open_: list[tuple[_Event, list[float]]] = []
    for event in sorted(stream, key=lambda event: (event.start, -event.end)):
        while open_ and open_[-1][0].end <= event.start:
            closed, inner = open_.pop()
            yield closed, closed.end - closed.start - sum(inner)
        if open_:
            open_[-1][1].append(min(event.end, open_[-1][0].end) - event.start)
        open_.append((event, []))
    for closed, inner in open_:
        yield closed, closed.end - closed.start - sum(inner)


def _covered(spans: Sequence[tuple[float, float]]) -> float:
    """Return the length of the union of intervals."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total
