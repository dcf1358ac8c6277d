"""Sizes and checksums of written files, and whether they still are what they were."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from largebatch.data.prepare.problems import system_errors

Files = dict[str, tuple[int, str]]
"""Of each file, by name, its bytes and SHA-256."""


def sha256(path: Path) -> str:
    """SHA-256 of a file, hexadecimal.

    Raises:
        DataError: It cannot be read.
    """
    with system_errors(path), path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def files(paths: Iterable[Path]) -> Files:
    """What is to be remembered of files."""
    return {path.name: (path.stat().st_size, sha256(path)) for path in paths}


def changes(directory: Path, remembered: Files) -> list[str]:
    """What has changed since, in words."""
    found = []
    for name, (size, digest) in remembered.items():
        path = directory / name
        if not path.is_file():
            found.append(f"{name} is missing")
        elif path.stat().st_size != size:
            found.append(f"{name} has {path.stat().st_size:,} bytes instead of {size:,}")
        elif sha256(path) != digest:
            found.append(f"{name} has changed (its SHA-256 is not {digest[:16]}…)")
    return found
