"""From the instructions of a compiled program to what they compute and their Python source."""

import dataclasses
import functools
import re
from collections import Counter
from typing import NamedTuple

from largebatch.planning import hlo

OTHER = "other"
_MOVES = frozenset(
    (
        *("parameter", "constant", "copy", "transpose", "bitcast", "reshape", "reverse", "pad"),
        *("slice", "concatenate", "convert", "broadcast", "dynamic-slice", "iota", "tuple"),
        *("dynamic-update-slice", "get-tuple-element", "copy-start", "copy-done"),
    )
)
_COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "collective-permute", "all-to-all")
_ROW = re.compile(r"^(\d+) (.*)$")


class Origin(NamedTuple):
    """What an instruction computes and where the source is."""

    kind: str
    """Class: convolution, matrix product, norm …, pooling, copy …, optimizer, collective, other."""
    op_name: str = ""
    """The traced operation, such as jit(f)/jvp()/conv_general_dilated; empty if unknown."""
    source: str = ""
    """folder/file:line function, innermost; empty if unknown."""
    result: str = ""
    """Type of the (first) result, such as f32[3,3,64,64]."""


class Frame(NamedTuple):
    """A line of the source."""

    file: str
    function: str
    line: str


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled program and the Python stacks of its instructions.

    Attributes:
        name: name of the module, such as jit_finish.
        module: its instructions.
        stacks: `stack_frame_id` of the metadata → frames, the innermost first.
    """

    name: str
    module: hlo.Module
    stacks: dict[str, tuple[Frame, ...]]

    @classmethod
    def parse(cls, text: str) -> "Program":
        """Read the text of `jax.stages.Compiled.as_text()`.

        Raises:
            ValueError: the text is not an HLO module.
        """
        module = hlo.parse(text)
        name = re.match(r"HloModule ([^\s,]+)", text)
        return cls(name[1] if name else "", module, _stacks(text))

    def instruction(self, name: str) -> hlo.Instruction | None:
        """Return the instruction of this name, or that a kernel of this name is named after."""
        return self.module.instructions.get(self._by_kernel.get(name, name))

    def origin(self, name: str) -> Origin | None:
        """Return the origin of an instruction or of a kernel that is named after it."""
        found = self.instruction(name)
        if found is None:
            return None
        parts = [found, *self.module.within(found)]
        # A fusion is named after its last operation, which may be the one without metadata.
        named = [part for part in (found, *reversed(parts[1:])) if part.op_name]
        op_name = named[0].op_name if named else ""
        stacks = (self.stacks.get(part.attribute("stack_frame_id"), ()) for part in named)
        stack = next(filter(None, stacks), ())
        first = found.arrays[:1]
        result = "".join(f"{a.dtype}[{','.join(map(str, a.shape))}]" for a in first)
        return Origin(_kind(parts, op_name, stack), op_name, _source(stack), result)

    @functools.cached_property
    def _by_kernel(self) -> dict[str, str]:
        """Unique names of instructions as kernels are named: with _ for dots and dashes."""
        spelt = {name: re.sub(r"[.\-]", "_", name) for name in self.module.instructions}
        times = Counter(spelt.values())
        return {kernel: name for name, kernel in spelt.items() if times[kernel] == 1}


def _kind(parts: list[hlo.Instruction], op_name: str, stack: tuple[Frame, ...]) -> str:
    opcodes = {part.opcode for part in parts} - {"fusion", "call"}
    targets = " ".join(part.target for part in parts).lower()
    if any(opcode.startswith(_COLLECTIVES) for opcode in opcodes):
        return "collective"
    if "convolution" in opcodes or "conv" in targets:
        return "convolution"
    if "dot" in opcodes or re.search("gemm|matmul|dot", targets):
        return "matrix product"
    if opcodes <= _MOVES:
        return "copy, transpose"
    if any(re.search(r"/optim/|/optax/", frame.file) for frame in stack):
        return "optimizer"
    if re.search(r"reduce_window|select_and_(scatter|gather)", op_name) or any(
        "pool" in frame.function for frame in stack
    ):
        return "pooling"
    return "norm, ReLU, add" if "jvp(" in op_name else OTHER


def _source(stack: tuple[Frame, ...]) -> str:
    """Return the innermost frame as folder/file:line function.

    A backward operation has the stack of the differentiation before that of the differentiated
    code. Both begin alike, so the first frame that does not come again is the one.
    """
    if not stack:
        return ""
    frame = next(frame for i, frame in enumerate(stack) if frame not in stack[i + 1 :])
    return f"{'/'.join(frame.file.split('/')[-2:])}:{frame.line} {frame.function}"


def _stacks(text: str) -> dict[str, tuple[Frame, ...]]:
    """Read the stacks from the tables at the head of a module's text, if it has them."""
    names, functions = (
        {key: value.strip('"') for key, value in _table(text, name).items()}
        for name in ("FileNames", "FunctionNames")
    )
    places, frames = (
        {
            key: dict(part.split("=") for part in value.strip("{}").split())
            for key, value in _table(text, name).items()
        }
        for name in ("FileLocations", "StackFrames")
    )
    # XLA prints the number of the parent plus one; the first frame, which has no parent, shows it.
    offset = int(frames.get("1", {}).get("parent_frame_id", "0"))

    def stack(key: str) -> tuple[Frame, ...]:
        found = []
        while key in frames:
            place = places[frames[key]["file_location_id"]]
            file, function = names[place["file_name_id"]], functions[place["function_name_id"]]
            found.append(Frame(file, function, place["line"]))
            key = str(int(frames[key].get("parent_frame_id", "0")) - offset)
        return tuple(found)

    return {key: stack(key) for key in frames}


def _table(text: str, name: str) -> dict[str, str]:
    """Return the numbered lines below a heading."""
    found = {}
    _, _, rest = text.partition(f"\n{name}\n")
    for line in rest.splitlines():
        match = _ROW.match(line)
        if not match:
            break
        found[match[1]] = match[2]
    return found
