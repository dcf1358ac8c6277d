"""The forms in which compilers write collectives: where each starts, and where it ends.

- ``all-reduce``, ``reduce-scatter``, ``all-gather``: synchronous; as ``-start`` and ``-done``
  asynchronous; also wrapped by ``async-start``, ``async-update``, ``async-done``.
- On TPUs fused with computations, which carry a collective forward step by step (asynchronous
  collective fusion).
- On TPUs with SparseCores as a program of theirs: ``call-start``, ``call-update``, ``call-done``.
- Over several TPU slices an all-reduce becomes a reduction in each slice, a transfer of parts
  between the slices by the hosts (``send``, ``recv``), and an all-gather in each slice. Small
  arrays are sent whole, without an all-gather.
"""

import re
from collections import deque
from collections.abc import Iterator, Sequence

from largebatch.planning.hlo import Instruction, Module

_BEGINS = re.compile("(all-reduce|reduce-scatter|all-gather)(-start)?")
_ENDS = re.compile("(all-reduce|reduce-scatter|all-gather|async|call)-done")
_PASSED_ON = re.compile("(async|call)-update|get-tuple-element|bitcast|opt-barrier|fusion")
# On some TPUs a collective may be fused with computations, which carry it forward step by step.
_FUSED_START, _FUSED_DONE = "AsyncCollectiveStart", "AsyncCollectiveDone"
_FUSED_SCATTER = "all-reduce-scatter"  # name of a TPU's fused computation that returns a part
_BETWEEN_SLICES = '_xla_megascale_transfer_type="ALL_REDUCE"'


def started(module: Module, instruction: Instruction) -> Instruction | None:
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
        or is_fused_scatter(instruction)
        or _holds(module, instruction, _FUSED_START)
    ):
        return None
    wrapped = (i for i in module.within(caller) if _BEGINS.fullmatch(i.opcode))
    return next(wrapped, None)


def ends(module: Module, order: Sequence[Instruction]) -> dict[str, int]:
    """Return the position of the end of each asynchronous start, by name."""
    found = {}
    for place, instruction in enumerate(order):
        if _ENDS.fullmatch(instruction.opcode) or _holds(module, instruction, _FUSED_DONE):
            found[_source(module, instruction)] = place
    return found


def between_slices(
    module: Module, order: Sequence[Instruction], gathers: Sequence[Instruction]
) -> dict[str, list[str]]:
    """Return the reductions in a slice whose results cross to other slices, with what ends them.

    The hosts pair the transfer's ``send`` and ``recv`` by a name. A reduction of several arrays can
    have a transfer for each. A small array is sent whole, and has no all-gather.

    Args:
      module: the compiled step.
      order: its instructions in the order of issue.
      gathers: its all-gathers, or their starts.

    Returns:
      Name of the reduction to names of its gathers, or of the ``recv-done`` without one.
    """
    arrivals: dict[str, list[str]] = {}
    for each in gathers:
        for given in _received(module, each):
            arrivals.setdefault(_rendezvous(given), []).append(each.name)
    for instruction in order:
        if instruction.opcode == "recv-done":
            given = module.instructions[instruction.operands[0]]
            arrivals.setdefault(_rendezvous(given), [instruction.name])
    links: dict[str, list[str]] = {}
    for instruction in order:
        if instruction.opcode == "send" and _BETWEEN_SLICES in instruction.attributes:
            reduction = _source(module, instruction, after_end=True)
            arrived = arrivals.get(_rendezvous(instruction), [])
            if reduction and arrived:
                links.setdefault(reduction, []).extend(arrived)
    return links


def _received(module: Module, gather: Instruction) -> Iterator[Instruction]:
    """Yield the ``recv`` of each operand of a gather that has one."""
    for name in gather.operands:
        instruction = module.instructions[name]
        while instruction.operands and instruction.opcode != "recv":
            instruction = module.instructions[instruction.operands[0]]
        if instruction.opcode == "recv":
            yield instruction


def _rendezvous(transfer: Instruction) -> str:
    return transfer.attribute("_xla_host_transfer_rendezvous", quoted=True)


def _source(module: Module, instruction: Instruction, *, after_end: bool = False) -> str:
    """Return the start whose result an instruction reads, or "".

    The search goes through instructions that pass the result on. It is breadth-first: a step of a
    TPU's fused collective also reads operands of its own.

    Args:
      module: the compiled step.
      instruction: an end, or a reader of what has ended.
      after_end: whether ends pass the result on. Otherwise what a step reads of its own could lead
        to another collective.
    """
    waiting, seen = deque(instruction.operands), set()
    while waiting:
        read = module.instructions[waiting.popleft()]
        if started(module, read) is not None:
            return read.name
        passes = _PASSED_ON.fullmatch(read.opcode) or (after_end and _ENDS.fullmatch(read.opcode))
        if passes and read.name not in seen:
            seen.add(read.name)
            waiting.extend(read.operands)
    return ""


def is_fused_scatter(instruction: Instruction) -> bool:
    """Whether a fusion reduces an array and returns the device's part of it."""
    return instruction.opcode == "fusion" and instruction.called[0].startswith(_FUSED_SCATTER)


def _holds(module: Module, instruction: Instruction, target: str) -> bool:
    return instruction.opcode == "fusion" and any(
        inner.target == target for inner in module.within(instruction)
    )
