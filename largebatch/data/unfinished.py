"""Datasets that are being written: their marks, and the check before one is opened or copied."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from largebatch.errors import DataError
from largebatch.object_store import Bucket, StorageError
from largebatch.store_urls import url_of

WORK = ".prepare"
"""Name of the directory of unfinished work within that of a dataset."""
PLAN, COPIED = "plan.json", "copied"
"""What is in it while a dataset is prepared, and while one is copied there."""
MARKER = ".copied.json"
"""Name of the object in a folder of an object store that says what was copied there."""


def check_finished(place: str) -> None:
    """Check that a dataset is not unfinished, nor a directory above it.

    Args:
        place: A path, a URL, or a pattern of files in one of them.

    Raises:
        DataError: It is being written, or its writer was interrupted.
        ConfigError, StorageError: See `Bucket`.
    """
    if url := url_of(place):
        above, _, name = url.rpartition("/")
        _check_store(Bucket(above if "?" in name else url).url)
        return
    path = Path(place).expanduser().absolute()
    for folder in (path, *path.parents):
        if any(os.path.exists(folder / WORK / name) for name in (PLAN, COPIED)):
            raise _unfinished(str(folder), f"{folder / WORK} exists")


def read_marker(bucket: Bucket, folder: str = "") -> dict[str, Any] | None:
    """Return what was copied to a folder of an object store; None if nothing was.

    Returns:
        ``from``, the source; ``finished``; and ``files``, by name: the size in bytes, the version
        at the source, and the ETag here.

    Raises:
        StorageError: See `Bucket`.
    """
    name = f"{folder}/{MARKER}" if folder else MARKER
    try:
        read = bucket.read(name)
    except StorageError:  # obstore does not repeat an answer that was cut
        read = bucket.read(name)
    with contextlib.suppress(ValueError):
        found = json.loads(read[0]) if read else None
        if isinstance(found, dict) and found.keys() >= {"from", "finished", "files"}:
            return found
    return None


def _check_store(url: str) -> None:
    scheme, _, rest = url.partition("://")
    name, _, path = rest.partition("/")
    bucket = Bucket(f"{scheme}://{name}")
    folder = path
    while True:
        try:
            marker = read_marker(bucket, folder)
        except StorageError:
            if folder == path:
                raise
            marker = None  # the folders above may be forbidden
        if marker and not marker["finished"]:
            raise _unfinished(f"{bucket.url}/{folder}".rstrip("/"), f"a copy of {marker['from']}")
        if not folder:
            return
        folder = folder.rpartition("/")[0]


def _unfinished(place: str, why: str) -> DataError:
    return DataError(
        f"{place} is unfinished ({why}); give the command that writes it again, then repeat this"
    )
