"""Positions of records in formats without an index of their own, found once and kept in a file.

The file is beside the shards, `.NAME.index.npz`, or where that folder cannot be written in
$XDG_CACHE_HOME/largebatch (~/.cache/largebatch). It is valid for the same names of the shards, and
for each shard with the same size and modification time; the others are read again. A scan that is
interrupted continues with the shards that the index lacks. Processes may build it at once.

In object storage, the ETag takes the place of the modification time. The index is in the cache, and
is also read from beside the shards, where only the user puts it.
"""

import contextlib
import hashlib
import io
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np

from largebatch.data.progress import progress
from largebatch.data.shard_readers import Shards
from largebatch.data.storage import Storage
from largebatch.errors import DataError
from largebatch.files import user_cache
from largebatch.store_urls import url_of

_SAVE_EVERY_S = 30.0  # of a scan: writing the index of ImageNet, 20 to 30 MB, takes below 1 s
_UNREAD = (-1, -1)  # the stamp of a shard that the index lacks
_VERSION = 1


@dataclass(frozen=True, eq=False)
class IndexedShards(Shards):
    """Shards whose records are read by their positions.

    Attributes:
        rows: For each shard, the positions of its records, int64 (n, columns).
        storage: The directory of the shards.
    """

    rows: tuple[np.ndarray, ...] = field(repr=False)
    storage: Storage

    located: ClassVar[bool] = True
    """Whether the marks state where each record is."""

    @property
    def in_flight(self) -> int:
        return self.storage.in_flight

    def mark(self, shard: int) -> bytes:
        mark = super().mark(shard)
        if not self.located:
            return mark
        rows = self.rows[shard].astype("<i8").tobytes()
        return mark + hashlib.blake2b(rows, digest_size=8).digest()


def positions(
    name: str,
    kind: str,
    paths: Sequence[str],
    scan: Callable[[str, Storage], np.ndarray],
    storage: Storage,
) -> list[np.ndarray]:
    """Return the positions of the records of each shard, from the index or by a scan.

    The progress of a scan is printed. Reading the index of 1.28 million records takes 0.1 s.

    Args:
        name: What is indexed, for the progress.
        kind: Name of the format and of the columns.
        paths: The shards, all in one directory.
        scan: Called as scan(path, storage) in threads; returns the positions of the records of a
            file, int64 (n, columns).
        storage: The directory of the shards.

    Returns:
        int64 (n, columns) for each shard.

    Raises:
        DataError: A shard cannot be read; see also `scan`.
    """
    names = [os.path.basename(path) for path in paths]
    with ThreadPoolExecutor(storage.scanners) as threads:
        stamps = np.array(list(threads.map(lambda name: _stamp(storage, name), names)), np.int64)
    digest = hashlib.blake2b(f"{_VERSION} {kind}\0".encode(), digest_size=8)
    for shard in names:
        digest.update(os.fsencode(shard) + b"\0")
    own = f".{kind}-{digest.hexdigest()}.index.npz"
    remote = bool(url_of(storage.path))
    files = _places(storage.path, own, remote)
    rows: dict[int, np.ndarray] = {}
    for file in files:
        if len(rows) < len(paths):
            rows = _load(file.read_bytes, stamps) | rows
    if remote and len(rows) < len(paths) and storage.holds(own):
        rows = _load(lambda: storage.text(own), stamps) | rows
    missing = [at for at in range(len(paths)) if at not in rows]
    if not missing:
        return [rows[at] for at in range(len(paths))]
    saved = time.monotonic()
    with (
        progress(f"indexing {name}", "shards", len(paths), len(rows)) as advance,
        ThreadPoolExecutor(storage.scanners) as threads,
    ):
        futures = {threads.submit(scan, paths[at], storage): at for at in missing}
        try:
            for future in as_completed(futures):
                rows[futures[future]] = future.result()
                advance(1)
                if time.monotonic() - saved >= _SAVE_EVERY_S and len(rows) < len(paths):
                    _save(files, stamps, rows)
                    saved = time.monotonic()
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise
        finally:
            _save(files, stamps, rows)
    return [rows[at] for at in range(len(paths))]


def _stamp(storage: Storage, name: str) -> tuple[int, int]:
    """Return the stamp of a file."""
    try:
        return storage.stamp(name)
    except OSError as error:
        raise DataError(
            f"{os.path.join(storage.path, name)} cannot be read: {error.strerror}; restore the "
            "file or prepare the dataset again"
        ) from error


def _places(directory: str, name: str, remote: bool) -> list[Path]:
    """Return where the index may be: beside the shards, and in the user's cache."""
    place = directory if remote else os.path.realpath(directory)
    own = hashlib.blake2b(os.fsencode(place), digest_size=8).hexdigest()
    cached = user_cache() / (own + name)
    return [cached] if remote else [Path(directory, name), cached]


def _load(read: Callable[[], bytes], stamps: np.ndarray) -> dict[int, np.ndarray]:
    """Return the positions in an index by shard, of those shards that have not changed."""
    try:
        content = io.BytesIO(read())
        with np.load(content, allow_pickle=False) as stored:
            same = (stored["stamps"] == stamps).all(axis=1)
            parts = np.split(stored["rows"], stored["ends"][:-1])
            return {at: parts[at] for at in np.flatnonzero(same).tolist()}
    except Exception:  # absent or damaged: zipfile and NumPy raise a dozen types for that
        return {}


def _save(files: Sequence[Path], stamps: np.ndarray, rows: Mapping[int, np.ndarray]) -> None:
    """Write the index of the shards that have been read to the first place that can be written."""
    if not rows:
        return
    nothing = next(iter(rows.values()))[:0]
    parts = [rows.get(at, nothing) for at in range(len(stamps))]
    read = np.array([at in rows for at in range(len(stamps))])[:, None]
    content = {
        "stamps": np.where(read, stamps, _UNREAD),
        "rows": np.concatenate(parts),
        "ends": np.cumsum([len(part) for part in parts]),
    }
    for file in files:
        if _written(file, content):
            return


def _written(file: Path, content: Mapping[str, np.ndarray]) -> bool:
    """Replace a file by one with these arrays; return whether it could be written."""
    temporary = None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # Another process may write the same index: each has a temporary file of its own.
        descriptor, temporary = tempfile.mkstemp(prefix=f"{file.name}.", dir=file.parent)
        with os.fdopen(descriptor, "wb") as stream:
            np.savez(stream, **content)
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
