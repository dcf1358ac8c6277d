"""The collectives of a compiled train step among its convolutions.

From the scheduled module alone: instruction order is the schedule. The first measure is the share
of gradient bytes in all-reduces that are asynchronous and have at least one backward convolution
between start and done. The second weighs it by estimated times. With a sharded update there are
reduce-scatters instead of all-reduces, and all-gathers for the parameters.

The forms of collectives are in ``spans``. One that crosses TPU slices counts from the reduction in
a slice to the end of the all-gather; of it the transfer between slices is asynchronous.
"""

import dataclasses
import re
from collections.abc import Collection

from largebatch.parallel.clusters import Cluster
from largebatch.parallel.network import all_reduce_s
from largebatch.parallel.timeline import Compute, Done, Start, Timeline, replay
from largebatch.planning import costs, spans
from largebatch.planning.hlo import Array, Instruction, Module

# Elements to whose multiple a TPU pads an array: of one row, or one that it cuts into parts.
_TILES = (128, 1024)


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
        reduced = spans.started(module, instruction)
        if reduced is not None:
            found.append(_Found(place, before, instruction, reduced))
        for product in costs.products(module, instruction):
            if product.is_convolution or not _alike(product.flops, head_flops):
                before += 1
                # One of unknown origin belongs to backward once that has begun.
                unknown = product.is_backward is None
                backward += backward > 0 if unknown else product.is_backward
    ends = spans.ends(module, order)
    gathers = [each.instruction for each in found if each.opcode == "all-gather"]
    links = spans.between_slices(module, order, gathers)
    places = {instruction.name: place for place, instruction in enumerate(order)}
    ends |= {
        reduction: max(ends.get(name, places[name]) for name in names)
        for reduction, names in links.items()
    }
    linked = {name for names in links.values() for name in names}
    found = [
        dataclasses.replace(each, is_between_slices=each.instruction.name in links)
        for each in found
        if each.instruction.name not in linked
    ]
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
    is_between_slices: bool = False
    """Whether this is the reduction in a slice whose result is summed over all slices."""

    @property
    def opcode(self) -> str:
        if self.is_between_slices:
            return "all-reduce"
        if spans.is_fused_scatter(self.instruction):
            return "reduce-scatter"
        return self.inner.opcode.removesuffix("-start")

    @property
    def may_pad(self) -> bool:
        """Whether it is one of the forms for which a TPU's compiler pads arrays."""
        wraps = self.instruction.opcode in ("fusion", "call-start", "call-update")
        return wraps or self.is_between_slices

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


def operations(
    module: Module, schedule: Schedule, cluster: Cluster
) -> list[Compute | Start | Done]:
    """Return the step as a program of one compute and one network stream, with estimated times."""
    starts = {each.start: each for each in schedule.collectives}
    ends: dict[int, list[Collective]] = {}  # a gather can end several reductions
    for each in schedule.collectives:
        if each.is_async:
            ends.setdefault(each.done, []).append(each)
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
            made += [Done(each.name) for each in ends[place]]
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
    timeline: Timeline = replay(operations(module, schedule, cluster))
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
