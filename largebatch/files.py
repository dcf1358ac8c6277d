"""Atomic file replacement, strict JSON, and the checksum of TFRecord files."""

import errno
import json
import math
import numbers
import os
import secrets
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import google_crc32c

from largebatch.errors import UserError


def plain(value: Any) -> Any:
    """Convert a value to types that strict JSON can represent.

    NaN and the infinities become None, because strict JSON cannot represent them. Numbers of any
    library become `int` or `float`, tuples become lists, paths become strings.

    Args:
        value: a scalar, string, path, None, or a mapping or sequence of these.

    Returns:
        An equal value built from dict, list, str, int, float, bool and None.

    Raises:
        TypeError: The value has another type, or a mapping key is not a string.
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


def printable(path: str | Path) -> str:
    """Return a path as one line of text: bytes that are not UTF-8 and line breaks are escaped."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return text if text.isprintable() else "".join(map(_escaped, text))


def _escaped(character: str) -> str:
    breaks = unicodedata.category(character) in ("Cc", "Zl", "Zp")
    return character.encode("unicode_escape").decode() if breaks else character


def holds(directory: str | Path) -> str:
    """Return what a directory holds, for messages: a clause after its name."""
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        return "does not exist"
    except NotADirectoryError:
        return "is a file"
    except OSError as error:
        return f"cannot be listed ({error.strerror})"
    examples = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
    return f"holds {len(names):,} entries: {examples}" if names else "is empty"


def user_cache() -> Path:
    """Return the directory of this user's caches: $XDG_CACHE_HOME/largebatch, or in ~/.cache."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "largebatch"
    except RuntimeError as error:
        raise UserError(f"{error} Set $HOME or $XDG_CACHE_HOME; use any directory") from error


def check_parent(path: Path) -> None:
    """Create the directory of an output file, so that an unwritable path fails early.

    Args:
        path: The file.

    Raises:
        UserError: The directory cannot be created or written to.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir() or not os.access(path.parent, os.W_OK):
            raise PermissionError(None, "no permission, or a folder")
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}); use another path") from error


def no_folder_reason(error: OSError) -> str:
    """Return why a directory cannot be created; ENOENT's own text would be misleading."""
    return "no folder can be created there" if error.errno == errno.ENOENT else str(error.strerror)


@contextmanager
def replacing(path: Path, *, shared: bool = False) -> Iterator[BinaryIO]:
    """Write a file atomically.

    The bytes go to a temporary file beside `path`, which is flushed to disk and then renamed. If
    the body raises, `path` keeps its old content.

    Args:
        path: The file to create or replace; a missing directory is created.
        shared: Whether several processes may write it at once; a killed one leaves its temporary
            file behind.

    Yields:
        The stream to write to.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # The fixed name lets the next process overwrite what a killed process left behind. tempfile
    # would create the file with mode 0600, which other users could not read.
    unique = f".{secrets.token_hex(8)}" if shared else ""
    temporary = path.with_name(f".{path.name}{unique}.tmp")
    try:
        with temporary.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def is_still(path: Path, then: os.stat_result) -> bool:
    """Return whether a path leads to the file or directory that it led to earlier.

    Args:
        path: The path.
        then: `path.stat()` at that time.
    """
    try:
        return os.path.samestat(then, path.stat())
    except (FileNotFoundError, NotADirectoryError):
        return False


def appending(path: Path) -> BinaryIO:
    """Open a file of JSON lines, unbuffered, to append to it.

    A last line that a killed process or a full disk left incomplete is dropped, so that the next
    one does not continue it.

    Args:
        path: The file, created if absent.

    Raises:
        OSError: The file cannot be opened.
    """
    stream = path.open("a+b", buffering=0)
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(0, size - 1))
    if size and stream.read(1) != b"\n":
        last = path.read_bytes().rpartition(b"\n")[2]
        try:
            is_complete = isinstance(json.loads(last), dict)
        except ValueError:
            is_complete = False
        if is_complete:  # only the line break is missing
            stream.write(b"\n")
        else:
            stream.truncate(size - len(last))
    return stream


def read_json(path: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object.

    Args:
        path: The file.

    Returns:
        The object; the non-standard literals NaN and Infinity are read as floats.

    Raises:
        OSError: The file cannot be read.
        ValueError: The content is not JSON, is nested too deeply, or is not an object.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(found, dict):
        raise ValueError(f"expected an object, got {type(found).__name__}")
    return found


def json_text(mapping: Mapping[str, Any]) -> str:
    """Return a mapping as indented JSON; NaN and the infinities become null.

    Raises:
        TypeError: JSON cannot represent a value.
    """
    return json.dumps(plain(mapping), indent=2, allow_nan=False)


def write_json(path: Path, mapping: Mapping[str, Any]) -> None:
    """Write a mapping as indented JSON, atomically.

    Args:
        path: The file to create or replace.
        mapping: Values that `plain` accepts; NaN and the infinities become null.

    Raises:
        TypeError: JSON cannot represent a value; the file keeps its old content.
    """
    text = json_text(mapping) + "\n"
    with replacing(path) as stream:
        stream.write(text.encode())


def masked_crc32c(data: bytes) -> int:
    """Return the CRC-32C of a record as TFRecord files store it: rotated, plus a constant."""
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
