"""What reaches the disk: values that JSON can hold, and files replaced whole or not at all."""

import errno
import json
import math
import numbers
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from largebatch.errors import UserError


def plain(value: Any) -> Any:
    """Converts a value to what strict JSON can hold.

    NaN and the infinities become None, since JSON has no word for them and strict readers refuse
    a file that spells them. Numbers of any library become `int` or `float`, tuples become lists,
    paths become strings.

    Args:
        value: a scalar, string, path, None, or a mapping or sequence of these.

    Returns:
        The same built of dict, list, str, int, float, bool and None.

    Raises:
        TypeError: for anything else, a mapping key that is not a string included.
    """
    match value:
        case None | bool() | str():
            return value
        case Path():
            return str(value)
        case numbers.Integral():
            return int(value)
        case numbers.Real():
            return float(value) if math.isfinite(value) else None
        case Mapping():
            if not all(isinstance(key, str) for key in value):
                raise TypeError(f"mapping keys must be strings, not {list(value)!r}")
            return {key: plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
    raise TypeError(f"{type(value).__name__} is not a plain value: {value!r}")


def folders(directory: str | Path) -> list[str]:
    """Names of the folders in a directory, hidden ones left out, sorted.

    Raises:
        OSError: it cannot be listed.
    """
    with os.scandir(directory) as entries:
        return sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))


def check_parent(path: Path) -> None:
    """Makes the folder that a file is to go into, before the work whose result it will hold.

    Args:
        path: The file.

    Raises:
        UserError: The folder cannot be made or written to.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir() or not os.access(path.parent, os.W_OK):
            raise PermissionError(None, "no permission, or a folder")
    except OSError as error:
        raise UserError(
            f"{path} cannot be written ({error.strerror}); choose another place"
        ) from error


def no_folder_reason(error: OSError) -> str:
    """Why a folder cannot be created; the system's words for a missing parent would mislead."""
    return "no folder can be created there" if error.errno == errno.ENOENT else str(error.strerror)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Writes a file that appears complete or not at all.

    The bytes go to a temporary file beside `path`, reach the disk, and only then take the name;
    when the body raises, `path` keeps its old content.

    Args:
        path: the file to make or replace; its directory is made when absent.

    Yields:
        The stream to write to.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # One fixed name, so that what a killed process leaves behind is overwritten by the next; made
    # with open() rather than tempfile, whose mode 0600 would hide the result from colleagues.
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_json(path: Path) -> dict[str, Any]:
    """Reads a file that holds one JSON object.

    Args:
        path: the file.

    Returns:
        The object; numbers that JSON has no word for, which some writers spell, as floats.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no JSON, nested too deeply, or another value than an object.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(found, dict):
        raise ValueError(f"a {type(found).__name__}, no object")
    return found


def write_json(path: Path, mapping: Mapping[str, Any]) -> None:
    """Writes a mapping as indented JSON, atomically; a reader never sees half of it.

    Args:
        path: the file to make or replace.
        mapping: what `plain` accepts; NaN and the infinities become null.

    Raises:
        TypeError: a value that JSON cannot hold; the file is left as it was.
    """
    text = json.dumps(plain(mapping), indent=2, allow_nan=False) + "\n"
    with replacing(path) as stream:
        stream.write(text.encode())
