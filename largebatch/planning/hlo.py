"""Parser for the text of a compiled XLA module: computations, instructions in order, shapes.

In a scheduled module (``is_scheduled=true``) the instructions of a computation are in the order of
issue. ``jax.stages.Compiled.as_text()`` returns the text.
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
    """In HLO's spelling: f32, bf16, s32, pred."""
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
    """The result's; several for a tuple."""
    operands: tuple[str, ...]
    """Names of instructions."""
    attributes: str
    """The rest of the line."""

    @property
    def nbytes(self) -> int:
        """Bytes of the result."""
        return sum(array.nbytes for array in self.arrays)

    @functools.cached_property
    def called(self) -> tuple[str, ...]:
        """Computations that it calls, in the order of the text."""
        found = []
        for one, several in _CALLED.findall(self.attributes):
            found += [one] if one else [name.strip(" %") for name in several.split(",")]
        return tuple(found)

    @property
    def op_name(self) -> str:
        """The traced operation, such as ``jit(f)/transpose(jvp())/psum``."""
        return self.attribute("op_name", quoted=True)

    @property
    def target(self) -> str:
        """The target of a custom call."""
        return self.attribute("custom_call_target", quoted=True)

    def attribute(self, key: str, *, quoted: bool = False) -> str:
        """Return the value of ``key=…``: in quotes, in braces, or one word; empty without it."""
        value = '"([^"]*)"' if quoted else r"(\{[^}]*\}|[^\s,]+)"
        match = re.search(rf"\b{key}={value}", self.attributes)
        return match[1].strip("{}") if match else ""


@dataclasses.dataclass(frozen=True)
class Module:
    """A module's computations by name; names of instructions are unique in it."""

    entry: str
    computations: dict[str, tuple[Instruction, ...]]

    @functools.cached_property
    def instructions(self) -> dict[str, Instruction]:
        """All instructions, by name."""
        return {i.name: i for body in self.computations.values() for i in body}

    def operand_arrays(self, instruction: Instruction) -> list[Array]:
        """Return the arrays that an instruction reads, operand by operand."""
        found = (self.instructions.get(name) for name in instruction.operands)
        return [array for operand in found if operand for array in operand.arrays]

    def in_order(self, computation: str | None = None) -> Iterator[Instruction]:
        """Yield instructions in the order of issue, entering calls, loops and branches once.

        Fusions, asynchronous wrappers and reductions' scalar functions are one instruction each.
        """
        for instruction in self.computations[computation or self.entry]:
            if instruction.opcode in ("call", "while", "conditional"):
                for name in instruction.called:
                    yield from self.in_order(name)
            else:
                yield instruction

    def within(self, instruction: Instruction) -> Iterator[Instruction]:
        """Yield the instructions of an instruction's computations, to any depth."""
        for name in instruction.called:
            for inner in self.computations.get(name, ()):
                yield inner
                yield from self.within(inner)


def parse(text: str) -> Module:
    """Parse a module.

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
            names = tuple(_NAME.findall(operands))
            body.append(Instruction(name, opcode, arrays, names, attributes))
    if not entry:
        raise ValueError("expected an HLO module, got a text without ENTRY computation")
    return Module(entry, {name: tuple(body) for name, body in computations.items()})


def _array(dtype: str, dimensions: str) -> Array:
    return Array(dtype, tuple(int(d.lstrip("<=")) for d in dimensions.split(",") if d))


def _split(rest: str) -> tuple[str, str]:
    """Return the operands, and the text after the closing parenthesis."""
    depth = 1
    for match in re.finditer(r"[()]", rest):
        depth += 1 if match[0] == "(" else -1
        if not depth:
            return rest[: match.start()], rest[match.end() :]
    return rest, ""
