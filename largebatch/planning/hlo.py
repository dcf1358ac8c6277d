"""Reads the text of a compiled XLA module: its computations, their instructions in order, shapes.

In a scheduled module (``is_scheduled=true``) the order of the instructions of a computation is the
order in which they are issued; the text is what ``jax.stages.Compiled.as_text()`` gives.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator

_BITS = {"pred": 8, "c64": 64, "c128": 128}
_ARRAY = re.compile(r"\b(pred|[subf]f?\d+\w*|c64|c128)\[([\d,<=]*)\]")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*?) ([a-z][a-z0-9\-]*)\((.*)$")
_NAME = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(
    r"\b(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)"
    r"|\b(?:branch|called)_computations=\{([^}]*)\}"
)


@dataclasses.dataclass(frozen=True)
class Array:
    """Type and dimensions of an array."""

    dtype: str
    """As HLO spells it: f32, bf16, s32, pred."""
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes, without the padding of a layout."""
        bits = _BITS.get(self.dtype) or int(re.search(r"\d+", self.dtype)[0])
        return -(-self.size * bits // 8)


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One instruction of a computation."""

    name: str
    opcode: str
    arrays: tuple[Array, ...]
    """Of the result; several where it is a tuple."""
    operands: tuple[str, ...]
    """Names of the instructions that it reads."""
    attributes: str
    """The rest of its line."""
    number: int = -1
    """Of a parameter."""

    @property
    def nbytes(self) -> int:
        """Bytes of the result."""
        return sum(array.nbytes for array in self.arrays)

    @functools.cached_property
    def called(self) -> tuple[str, ...]:
        """Computations that it runs or applies, in the order of the text."""
        found = []
        for one, several in _CALLED.findall(self.attributes):
            found += [one] if one else [name.strip(" %") for name in several.split(",")]
        return tuple(found)

    @property
    def op_name(self) -> str:
        """The traced operation that it came from, such as ``jit(f)/transpose(jvp())/psum``."""
        return self.attribute("op_name", quoted=True)

    @property
    def target(self) -> str:
        """Of a custom call."""
        return self.attribute("custom_call_target", quoted=True)

    def attribute(self, key: str, *, quoted: bool = False) -> str:
        """The text of ``key=…``: in quotes, in braces, or one word; empty where there is none."""
        value = '"([^"]*)"' if quoted else r"(\{[^}]*\}|[^\s,]+)"
        match = re.search(rf"\b{key}={value}", self.attributes)
        return match[1].strip("{}") if match else ""


@dataclasses.dataclass(frozen=True)
class Module:
    """A module's computations by name; names of instructions are unique in it."""

    entry: str
    computations: dict[str, tuple[Instruction, ...]]
    is_scheduled: bool

    @functools.cached_property
    def instructions(self) -> dict[str, Instruction]:
        """All of them, by name."""
        return {i.name: i for body in self.computations.values() for i in body}

    @functools.cached_property
    def arrays(self) -> dict[str, tuple[Array, ...]]:
        """The arrays of each instruction's result."""
        return {name: instruction.arrays for name, instruction in self.instructions.items()}

    def operand_arrays(self, instruction: Instruction) -> list[Array]:
        """The arrays that an instruction reads, operand after operand."""
        return [a for name in instruction.operands for a in self.arrays.get(name, ())]

    def in_order(self, computation: str | None = None) -> Iterator[Instruction]:
        """Instructions as they are issued, calls, loops and branches walked through once.

        Fusions, asynchronous wrappers and reductions' scalar functions stay whole.
        """
        for instruction in self.computations[computation or self.entry]:
            if instruction.opcode in ("call", "while", "conditional"):
                for name in instruction.called:
                    yield from self.in_order(name)
            else:
                yield instruction

    def within(self, instruction: Instruction) -> Iterator[Instruction]:
        """All that an instruction's computations hold, to any depth; not itself."""
        for name in instruction.called:
            for inner in self.computations.get(name, ()):
                yield inner
                yield from self.within(inner)


def parse(text: str) -> Module:
    """Read a module.

    Raises:
      ValueError: the text has no entry computation.
    """
    entry, computations, body = "", {}, None
    for line in text.splitlines():
        if body is None:
            match = _COMPUTATION.match(line)
            if match:
                body = computations.setdefault(match[2], [])
                entry = match[2] if match[1] else entry
        elif line.startswith("}"):
            body = None
        elif match := _INSTRUCTION.match(line):
            name, shape, opcode, rest = match.groups()
            operands, attributes = _split(rest)
            arrays = tuple(_array(*found) for found in _ARRAY.findall(shape))
            number = int(operands) if opcode == "parameter" else -1
            names = tuple(_NAME.findall(operands))
            body.append(Instruction(name, opcode, arrays, names, attributes, number))
    if not entry:
        raise ValueError("the text is no HLO module: it has no ENTRY computation")
    scheduled = "is_scheduled=true" in text.partition("\n")[0]
    return Module(entry, {name: tuple(body) for name, body in computations.items()}, scheduled)


def _array(dtype: str, dimensions: str) -> Array:
    return Array(dtype, tuple(int(d.lstrip("<=")) for d in dimensions.split(",") if d))


def _split(rest: str) -> tuple[str, str]:
    """Operands, and what follows the parenthesis that closes them."""
    depth = 1
    for match in re.finditer(r"[()]", rest):
        depth += 1 if match[0] == "(" else -1
        if not depth:
            return rest[: match.start()], rest[match.end() :]
    return rest, ""
