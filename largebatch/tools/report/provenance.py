"""From a compiled program's instructions to what they compute and the source they came from."""

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
_TABLE = re.compile(r"^(\d+) (.*)$")


class Origin(NamedTuple):
    """What an instruction computes and where that was written."""

    kind: str
    """Class: convolution, matrix product, norm …, pooling, copy …, optimizer, collective, other."""
    op_name: str
    """The traced operation, such as jit(f)/jvp()/conv_general_dilated; empty if unknown."""
    source: str
    """folder/file:line function, innermost; empty if unknown."""
    result: str = ""
    """Type of its result, such as f32[3,3,64,64]; of the first where there are several."""


class Frame(NamedTuple):
    """A place in the source."""

    file: str
    function: str
    line: str


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled program and the Python stacks of its instructions.

    Attributes:
        module: Its instructions.
        stacks: By the number that an instruction's metadata give; the innermost frame first.
    """

    module: hlo.Module
    stacks: dict[str, tuple[Frame, ...]]

    @classmethod
    def parse(cls, text: str) -> "Program":
        """Reads the text of `jax.stages.Compiled.as_text()`."""
        return cls(hlo.parse(text), _stacks(text))

    def origin(self, name: str) -> Origin | None:
        """Of the instruction, or of the only one whose kernel is called so; None if unknown."""
        name = self._by_kernel.get(name, name)
        instruction = self.module.instructions.get(name)
        return self._origin(instruction) if instruction else None

    @functools.cached_property
    def _by_kernel(self) -> dict[str, str]:
        """Names as kernels spell them, without dots and dashes, where that is one's alone."""
        spelt = {name: re.sub(r"[.\-]", "_", name) for name in self.module.instructions}
        times = Counter(spelt.values())
        return {kernel: name for name, kernel in spelt.items() if times[kernel] == 1}

    def _origin(self, instruction: hlo.Instruction) -> Origin:
        parts = [instruction, *self.module.within(instruction)]
        # A fusion is named after its last operation; what has no metadata after any other within.
        named = [part for part in (parts[0], *reversed(parts[1:])) if part.op_name]
        op_name = named[0].op_name if named else ""
        stack = next((s for part in named if (s := self._stack(part))), ())
        kind, source = _kind(parts, op_name, stack), _source(stack)
        first = instruction.arrays[:1]
        result = "".join(f"{a.dtype}[{','.join(map(str, a.shape))}]" for a in first)
        return Origin(kind, op_name, source, result)

    def _stack(self, instruction: hlo.Instruction) -> tuple[Frame, ...]:
        return self.stacks.get(instruction.attribute("stack_frame_id"), ())


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
    """The innermost place that says something, as folder/file:line function.

    Backward operations have the stack of the differentiation before that of what was
    differentiated; both begin alike, so the first frame that does not come again is meant.
    """
    if not stack:
        return ""
    frame = next(frame for i, frame in enumerate(stack) if frame not in stack[i + 1 :])
    return f"{'/'.join(frame.file.split('/')[-2:])}:{frame.line} {frame.function}"


def _stacks(text: str) -> dict[str, tuple[Frame, ...]]:
    """The stacks of the tables at the head of the text; none where it has no such tables."""
    tables = {name: _table(text, name) for name in _TABLES}
    names = {key: value.strip('"') for key, value in tables["FileNames"].items()}
    functions = {key: value.strip('"') for key, value in tables["FunctionNames"].items()}
    places = {}
    for key, value in tables["FileLocations"].items():
        given = _given(value)
        places[key] = Frame(
            names[given["file_name_id"]], functions[given["function_name_id"]], given["line"]
        )
    frames = {key: _given(value) for key, value in tables["StackFrames"].items()}
    # XLA prints the parent's number plus one, and so 1 for none.
    beyond = int(frames.get("1", {}).get("parent_frame_id", "0"))

    def stack(key: str) -> tuple[Frame, ...]:
        found = []
        while key in frames:
            found.append(places[frames[key]["file_location_id"]])
            key = str(int(frames[key].get("parent_frame_id", "0")) - beyond)
        return tuple(found)

    return {key: stack(key) for key in frames}


_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")


def _table(text: str, name: str) -> dict[str, str]:
    """The numbered lines below a heading."""
    found = {}
    _, _, rest = text.partition(f"\n{name}\n")
    for line in rest.splitlines():
        match = _TABLE.match(line)
        if not match:
            break
        found[match[1]] = match[2]
    return found


def _given(text: str) -> dict[str, str]:
    return dict(part.split("=") for part in text.strip("{}").split())
