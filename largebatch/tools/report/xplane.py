"""The compiled programs that a profile of jax.profiler brings along, in its `.xplane.pb`.

The file is a protocol buffer, XSpace of XLA's profiler (tsl/profiler/protobuf/xplane.proto): planes
(1), each with its name (2) and event metadata (4, a map); those of the plane `/host:metadata` are
programs, with a statistic (5) whose bytes (6) are an HloProto, whose first field is the module.
Only these fields are read, so no generated code is needed.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from largebatch.errors import DataError
from largebatch.tools.report.provenance import Program

_PLANE = "/host:metadata"


def programs(path: Path) -> dict[str, Program]:
    """The programs of a profile.

    Args:
        path: `.xplane.pb`.

    Returns:
        Name of the module, such as `jit_finish` → its program. Empty where this jaxlib cannot
        turn modules into text: kernels then go by their names.

    Raises:
        DataError: the file is torn or no profile.
    """
    try:
        modules = dict(_modules(memoryview(path.read_bytes())))
    except (OSError, IndexError, ValueError, KeyError) as error:
        raise DataError(f"{path} is damaged or no profile; record it again") from error
    try:
        read = module_reader()
    except ImportError:
        return {}
    try:
        texts = {name: read(proto).to_string() for name, proto in modules.items()}
    except RuntimeError as error:  # JaxRuntimeError among them
        raise DataError(
            f"{path} holds a program that is damaged or of another version; record it again"
        ) from error
    return {name: Program.parse(text) for name, text in texts.items()}


def module_reader() -> Callable[[bytes], Any]:
    """Return jaxlib's reader of serialized HLO modules, which has no public name.

    Raises:
        ImportError: this jaxlib has none.
    """
    from jaxlib._hlo import HloModule

    return HloModule.from_serialized_hlo_module_proto


def _modules(space: memoryview) -> Iterator[tuple[str, bytes]]:
    for number, plane in _fields(space):
        if number != 1:
            continue
        parts = list(_fields(_message(plane)))
        if _text(parts, 2) != _PLANE:
            continue
        for entry in (_message(value) for key, value in parts if key == 4):
            metadata = list(_fields(_message(dict(_fields(entry))[2])))
            name = _text(metadata, 2).partition("(")[0]
            for statistic in (value for key, value in metadata if key == 5):
                proto = dict(_fields(_message(statistic))).get(6)
                if proto is not None:
                    yield name, bytes(_message(dict(_fields(_message(proto)))[1]))


def _text(parts: list[tuple[int, memoryview | int]], number: int) -> str:
    return next((bytes(_message(value)).decode() for key, value in parts if key == number), "")


def _message(value: memoryview | int) -> memoryview:
    if isinstance(value, int):
        raise ValueError("a number where a message is meant")
    return value


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview | int]]:
    """The fields of a message: number, and its bytes or, of a varint, its value."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield tag >> 3, value
            continue
        if kind == 2:
            length, at = _varint(message, at)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError(f"wire type {kind}")
        if at + length > len(message):
            raise ValueError("torn")
        yield tag >> 3, message[at : at + length]
        at += length


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
