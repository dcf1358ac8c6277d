"""Positions of records in formats without an index of their own, found once and kept in a file.

The file is beside the shards, `.NAME.index.npz`, or where that folder cannot be written in
$XDG_CACHE_HOME/largebatch (~/.cache/largebatch). It is valid for the same names, sizes and
modification times of the shards; otherwise it is replaced. Processes may build it at once.
"""

import contextlib
import hashlib
import os
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import numpy as np

from largebatch.data.prepare import jobs
from largebatch.data.sharded import in_threads
from largebatch.errors import DataError

_SCANNERS = 16  # threads, for file systems on which a read waits
_VERSION = 1


def positions(
    name: str, kind: str, paths: Sequence[str], scan: Callable[[str], np.ndarray]
) -> list[np.ndarray]:
    """Return the positions of the records of each shard, from the index or by a scan of all.

    The progress of a scan is printed. Reading the index of 1.28 million records takes 0.1 s.

    Args:
        name: What is indexed, for the progress.
        kind: Name of the format and of the columns.
        paths: The shards, all in one directory.
        scan: Returns the positions of the records of a file, int64 (n, columns); called in threads.

    Returns:
        int64 (n, columns) for each shard.

    Raises:
        DataError: A shard cannot be read; see also `scan`.
    """
    stamps = np.array(in_threads(_stamp, paths), np.int64)
    names = [os.path.basename(path) for path in paths]
    digest = hashlib.blake2b(f"{_VERSION} {kind}\0".encode(), digest_size=8)
    for shard in names:
        digest.update(os.fsencode(shard) + b"\0")
    directory = os.path.dirname(paths[0])
    files = _places(directory, f".{kind}-{digest.hexdigest()}.index.npz")
    for file in files:
        found = _load(file, stamps)
        if found is not None:
            return found
    rows: list[np.ndarray] = [np.empty((0, 0), np.int64)] * len(paths)
    with (
        jobs.progress(f"indexing {name}", "shards", len(paths)) as advance,
        ThreadPoolExecutor(_SCANNERS) as threads,
    ):
        futures = {threads.submit(scan, path): at for at, path in enumerate(paths)}
        try:
            for future in as_completed(futures):
                rows[futures[future]] = future.result()
                advance(1)
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise
    for file in files:
        if _save(file, stamps, rows):
            break
    return rows


def digest(rows: np.ndarray) -> bytes:
    """Return a hash of the positions in a shard, 8 bytes, which distinguishes sets."""
    return hashlib.blake2b(rows.astype("<i8").tobytes(), digest_size=8).digest()


def _stamp(path: str) -> tuple[int, int]:
    """Return size and modification time of a file."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error.strerror}; restore the file or prepare the dataset "
            "again"
        ) from error
    return status.st_size, status.st_mtime_ns


def _places(directory: str, name: str) -> list[Path]:
    """Return where the index may be: beside the shards, and in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    own = hashlib.blake2b(os.fsencode(os.path.realpath(directory)), digest_size=8).hexdigest()
    return [
        Path(directory, name),
        Path(os.path.expanduser(cache), "largebatch", own + name),
    ]


def _load(file: Path, stamps: np.ndarray) -> list[np.ndarray] | None:
    """Return the positions in an index; None if it is absent, damaged or of other files."""
    try:
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            if not np.array_equal(stored["stamps"], stamps):
                return None
            rows, ends = stored["rows"], stored["ends"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    return np.split(rows, ends[:-1])


def _save(file: Path, stamps: np.ndarray, rows: Sequence[np.ndarray]) -> bool:
    """Write an index; return whether it could be written."""
    ends = np.cumsum([len(part) for part in rows])
    temporary = None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # Another process may write the same index: each has a temporary file of its own.
        descriptor, temporary = tempfile.mkstemp(prefix=f"{file.name}.", dir=file.parent)
        with os.fdopen(descriptor, "wb") as stream:
            np.savez(stream, stamps=stamps, rows=np.concatenate(rows), ends=ends)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, file)
    except OSError:
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        return False
    return True
