"""The collectives of a compiled train step among its convolutions.

From the scheduled module alone: instruction order is the schedule. The first measure is the share
of gradient bytes in all-reduces that are asynchronous and have at least one backward convolution
between start and done. The second weighs it by estimated times. With a sharded update there are
reduce-scatters instead of all-reduces, and all-gathers for the parameters.

Compilers write collectives in these forms:

- ``all-reduce``, ``reduce-scatter``, ``all-gather``: synchronous; as ``-start`` and ``-done``
  asynchronous; also wrapped by ``async-start``, ``async-update``, ``async-done``.
- On TPUs fused with computations, which carry a collective forward step by step (asynchronous
  collective fusion).
- On TPUs with SparseCores as a program of theirs: ``call-start``, ``call-update``, ``call-done``.

Those that cross TPU slices are not read.
"""

import dataclasses
import re
from collections import deque
from collections.abc import Collection, Sequence

from largebatch.parallel.clusters import Cluster
from largebatch.parallel.network import all_reduce_s
from largebatch.parallel.timeline import Compute, Done, Start, replay
from largebatch.planning import costs
from largebatch.planning.hlo import Array, Instruction, Module

# Elements to whose multiple a TPU pads an array: of one row, or one that it cuts into parts.
_TILES = (128, 1024)
_BEGINS = re.compile("(all-reduce|reduce-scatter|all-gather)(-start)?")
_ENDS = re.compile("(all-reduce|reduce-scatter|all-gather|async|call)-done")
_PASSED_ON = re.compile("(async|call)-update|get-tuple-element|bitcast|opt-barrier|fusion")
# On some TPUs a collective may be fused with computations, which carry it forward step by step.
_FUSED_START, _FUSED_DONE = "AsyncCollectiveStart", "AsyncCollectiveDone"
_FUSED_SCATTER = "all-reduce-scatter"  # name of a TPU's fused computation that returns a part


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective of the schedule, in which several may have been merged."""

    name: str
    opcode: str
    """all-reduce, reduce-scatter or all-gather."""
    dtypes: tuple[str, ...]
    """In HLO's spelling, without repeats."""
    nbytes: int
    """Bytes of whole arrays: a device's contribution, or the gathered result."""
    gradient_bytes: int
    """The part of the bytes that is gradients."""
    gradient_elements: int
    is_async: bool
    start: int
    """Position of its start in the order of instructions."""
    done: int
    """Position of its end; that of its start if it is synchronous."""
    convolutions_before: int
    """Convolutions issued before the start, forward ones included."""
    backward_between: int
    """Backward convolutions between start and end; 0 if it is synchronous."""

    @property
    def is_overlapped(self) -> bool:
        """Whether it is asynchronous with a backward convolution between start and end."""
        return self.backward_between > 0


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The collectives of a step in the order of their starts."""

    collectives: tuple[Collective, ...]
    convolutions: int
    backward_convolutions: int

    @property
    def gradients(self) -> tuple[Collective, ...]:
        """Collectives of gradients; the others have statistics, metrics or parameters."""
        return tuple(each for each in self.collectives if each.gradient_bytes)

    @property
    def gradient_bytes(self) -> int:
        """Gradient bytes of each device."""
        return sum(each.gradient_bytes for each in self.gradients)

    @property
    def gradient_elements(self) -> int:
        """Gradient elements of each device."""
        return sum(each.gradient_elements for each in self.gradients)

    @property
    def overlapped_share(self) -> float:
        """Share of the gradient bytes in overlapped collectives."""
        under = sum(each.gradient_bytes for each in self.gradients if each.is_overlapped)
        return under / self.gradient_bytes if self.gradient_bytes else 0.0


def read(
    module: Module, gradients: Collection[int], totals: int = 0, head_flops: float = 0.0
) -> Schedule:
    """Find the collectives and convolutions of a scheduled module.

    Args:
      module: the compiled step.
      gradients: elements of each reduced array of gradients (of the buckets).
      totals: elements of the reduced array of statistics and metrics.
      head_flops: of the head's matrix product. The three products of this size are the head's and
        do not count; any other matrix product is a convolution that became one.
    """
    order = list(module.in_order())
    before = backward = 0
    counts, found = [], []
    for place, instruction in enumerate(order):
        counts.append(backward)
        reduced = _started(module, instruction)
        if reduced is not None:
            found.append(_Found(place, before, instruction, reduced))
        for product in costs.products(module, instruction):
            if product.is_convolution or not _alike(product.flops, head_flops):
                before += 1
                # One of unknown origin belongs to backward once that has begun.
                unknown = product.is_backward is None
                backward += backward > 0 if unknown else product.is_backward
    ends = _ends(module, order)
    wanted = _Gradients(gradients, totals)
    arrays = [each.arrays(module) for each in found]
    sizes = [sum(array.nbytes for array in of) for of in arrays]
    # Gradients cross all devices, as the largest collective does; BatchNorm's only those of a span.
    everywhere = found[sizes.index(max(sizes))].groups if found else ""
    made = []
    for each, of, nbytes in zip(found, arrays, sizes, strict=True):
        done = ends.get(each.instruction.name, each.place)
        reduces = each.opcode != "all-gather" and each.groups == everywhere
        carried = [
            dataclasses.replace(array, shape=(wanted.elements(array.size, each.may_pad),))
            for array in of
            if reduces
        ]
        made.append(
            Collective(
                name=each.instruction.name,
                opcode=each.opcode,
                dtypes=tuple(dict.fromkeys(array.dtype for array in of)),
                nbytes=nbytes,
                gradient_bytes=sum(array.nbytes for array in carried),
                gradient_elements=sum(array.size for array in carried),
                is_async=done > each.place,
                start=each.place,
                done=done,
                convolutions_before=each.convolutions_before,
                backward_between=counts[done] - counts[each.place],
            )
        )
    return Schedule(tuple(made), convolutions=before, backward_convolutions=backward)


class _Gradients:
    """The elements of a module's reduced arrays that are gradients.

    Compilers merge arrays as operands of one collective, or join some of them into one array, whose
    size is then the sum of theirs. TPUs pad some arrays; the padding is left out.
    """

    def __init__(self, sizes: Collection[int], totals: int) -> None:
        """Arguments as of ``read``."""
        self._left, self._totals = list(sizes), totals
        self._sums = 1  # bit n is set if some of the sizes add up to n
        for size in sizes:
            self._sums |= self._sums << size

    def elements(self, size: int, may_pad: bool) -> int:
        """Return the gradients in the next reduced array of ``size`` elements.

        Different sizes can be equal when padded, therefore each is found in one array only.
        """
        if size in self._left:
            self._left.remove(size)
            return size
        if size == self._totals:
            return 0
        padded = (n for n in self._left if may_pad and size in _padded(n))
        if (single := next(padded, None)) is not None:
            self._left.remove(single)
            return single
        if may_pad and size in _padded(self._totals):
            return 0
        joined = (size, size - self._totals)
        return next((n for n in joined if n > 0 and self._sums >> n & 1), 0)


def _padded(size: int) -> list[int]:
    return [-(-size // tile) * tile for tile in _TILES]


@dataclasses.dataclass(frozen=True)
class _Found:
    """A collective at its start."""

    place: int
    convolutions_before: int
    instruction: Instruction
    inner: Instruction
    """The collective itself, which the instruction may wrap."""

    @property
    def opcode(self) -> str:
        if _is_fused_scatter(self.instruction):
            return "reduce-scatter"
        return self.inner.opcode.removesuffix("-start")

    @property
    def may_pad(self) -> bool:
        """Whether it is one of the forms for which a TPU's compiler pads arrays."""
        return self.instruction.opcode in ("fusion", "call-start", "call-update")

    @property
    def groups(self) -> str:
        """The groups of devices that take part."""
        match = re.search(r"replica_groups=(.*?)(?:, [a-z_]+=|$)", self.inner.attributes)
        return match[1] if match else ""

    def arrays(self, module: Module) -> list[Array]:
        """Return the whole arrays that are reduced or gathered."""
        if self.opcode != "all-gather":
            given = self.instruction
            if given.opcode == "call-update":  # its first operand is the call
                given = dataclasses.replace(given, operands=given.operands[1:])
            return module.operand_arrays(given)
        # The result of a start is (operands, results, …).
        count = len(module.operand_arrays(self.inner))
        results = self.inner.arrays
        return list(results[-count:] if len(results) > count else results)


def _started(module: Module, instruction: Instruction) -> Instruction | None:
    """Return the collective that an instruction starts: itself, or the one that it wraps.

    A SparseCore's program is called by ``call-start``, often before its operands exist; then it
    waits for them, and ``call-update`` hands them over. The collective starts there.
    """
    if _BEGINS.fullmatch(instruction.opcode):
        return instruction
    caller = instruction
    if instruction.opcode == "call-update":
        caller = module.instructions[instruction.operands[0]]
        if caller.opcode != "call-start" or caller.operands:
            return None  # of a program that has its operands already
    elif instruction.opcode == "call-start":
        if not instruction.operands:
            return None
    elif not (
        instruction.opcode == "async-start"
        or _is_fused_scatter(instruction)
        or _holds(module, instruction, _FUSED_START)
    ):
        return None
    wrapped = (i for i in module.within(caller) if _BEGINS.fullmatch(i.opcode))
    return next(wrapped, None)


def _ends(module: Module, order: Sequence[Instruction]) -> dict[str, int]:
    """Return the position of the end of each asynchronous start, by name."""
    found = {}
    for place, instruction in enumerate(order):
        if _ENDS.fullmatch(instruction.opcode) or _holds(module, instruction, _FUSED_DONE):
            found[_source(module, instruction)] = place
    return found


def _source(module: Module, instruction: Instruction) -> str:
    """Return the start whose result an end reads, or "".

    The search goes through instructions that pass the result on. It is breadth-first: a step of a
    TPU's fused collective also reads operands of its own.
    """
    waiting, seen = deque(instruction.operands), set()
    while waiting:
        read = module.instructions[waiting.popleft()]
        if _started(module, read) is not None:
            return read.name
        if _PASSED_ON.fullmatch(read.opcode) and read.name not in seen:
            seen.add(read.name)
            waiting.extend(read.operands)
    return ""


def _is_fused_scatter(instruction: Instruction) -> bool:
    """Whether a fusion reduces an array and returns the device's part of it."""
    return instruction.opcode == "fusion" and instruction.called[0].startswith(_FUSED_SCATTER)


def _holds(module: Module, instruction: Instruction, target: str) -> bool:
    return instruction.opcode == "fusion" and any(
        inner.target == target for inner in module.within(instruction)
    )


def operations(
    module: Module, schedule: Schedule, cluster: Cluster
) -> list[Compute | Start | Done]:
    """Return the step as a program of one compute and one network stream, with estimated times."""
    starts = {each.start: each for each in schedule.collectives}
    ends = {each.done: each for each in schedule.collectives if each.is_async}
    made: list[Compute | Start | Done] = []
    for place, instruction in enumerate(module.in_order()):
        if place in starts:
            each = starts[place]
            # A reduce-scatter or an all-gather is half of an all-reduce.
            share = 1.0 if each.opcode == "all-reduce" else 0.5
            made.append(Start(each.name, each.nbytes, share * all_reduce_s(cluster, each.nbytes)))
            if not each.is_async:
                made.append(Done(each.name))
        elif place in ends:
            made.append(Done(ends[place].name))
        else:
            length = costs.seconds(module, instruction, cluster.hardware)
            if length:
                made.append(Compute(instruction.name, length))
    return made


@dataclasses.dataclass(frozen=True)
class Estimate:
    """The step by the cost model; seconds."""

    step_s: float
    compute_s: float
    network_s: float
    """Seconds of all collectives."""
    exposed_s: float
    """The device only waits for collectives, those of statistics included."""
    hidden_share: float
    """Share of the gradients' bytes that travel while the device computes."""


def estimate(module: Module, schedule: Schedule, cluster: Cluster) -> Estimate:
    """Replay the schedule on a cluster."""
    timeline = replay(operations(module, schedule, cluster))
    carrying = {each.name: each.gradient_bytes for each in schedule.gradients}
    hidden = sum(carrying.get(t.name, 0) * t.hidden_share for t in timeline.transfers)
    return Estimate(
        step_s=timeline.total_s,
        compute_s=timeline.compute_s,
        network_s=timeline.network_s,
        exposed_s=timeline.exposed_s,
        hidden_share=hidden / schedule.gradient_bytes if schedule.gradient_bytes else 0.0,
    )


def _alike(flops: float, head: float) -> bool:
    """Whether FLOPs are equal up to the padding of a product's dimensions."""
    return abs(flops - head) <= 0.05 * head
