"""The images of shards whose format has no index, found once and kept in a file.

The file is beside the shards, `.NAME.index.npz`, or where that folder cannot be written in
$XDG_CACHE_HOME/largebatch (~/.cache/largebatch). It is valid for the same names of the shards, and
for each shard with the same size and modification time; the others are scanned again. A scan that
is interrupted continues with the shards that the index lacks. Processes may build it at once.

In object storage, the ETag takes the place of the modification time. The index is in the cache, and
is also read from beside the shards, where only the user puts it.
"""

import contextlib
import hashlib
import io
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from largebatch.data.prefetch import in_threads
from largebatch.data.progress import progress
from largebatch.data.ranges import Scan, Storage
from largebatch.data.source import unreadable
from largebatch.errors import UserError
from largebatch.files import replacing, user_cache
from largebatch.store_urls import url_of

_SAVE_EVERY_S = 30.0  # of a scan: writing the index of ImageNet, 20 to 30 MB, takes below 1 s
_UNREAD = (-1, -1)  # the stamp of a shard that the index lacks
_VERSION = 2


def rows_of(
    name: str, kind: str, storage: Storage, files: Sequence[str], scan: Scan
) -> tuple[list[int], np.ndarray]:
    """Return the images of shards, from the index or by a scan.

    The progress of a scan is printed. Reading the index of 1.28 million images takes 0.1 s.

    Args:
        name: What is indexed, for the progress.
        kind: Name of the format, and of what else `scan` depends on.
        storage: The directory of the shards.
        files: Names of the shards.
        scan: See `ranges.Scan`; called in threads.

    Returns:
        The number of images of each shard, and int64 (n, 3) of all of them, as of `scan`.

    Raises:
        DataError: A shard cannot be read; see also `scan`.
    """
    stamps = np.array(list(in_threads(lambda f: _stamp(storage, f), files, storage.scanners)))
    digest = hashlib.blake2b(f"{_VERSION} {kind}\0".encode(), digest_size=8)
    for shard in files:
        digest.update(os.fsencode(shard) + b"\0")
    own = f".{kind.partition(' ')[0]}-{digest.hexdigest()}.index.npz"
    remote = bool(url_of(storage.path))
    places = _places(storage.path, own, remote)
    rows: dict[int, np.ndarray] = {}
    for place in places:
        if len(rows) < len(files):
            rows = _load(place.read_bytes, stamps) | rows
    if remote and len(rows) < len(files) and storage.holds(own):
        rows = _load(lambda: storage.text(own), stamps) | rows
    missing = [at for at in range(len(files)) if at not in rows]
    if missing:
        saved = time.monotonic()
        found = in_threads(lambda at: scan(storage, files[at]), missing, storage.scanners)
        with (
            contextlib.closing(found),
            progress(f"indexing {name}", "shards", len(files), len(rows)) as advance,
        ):
            try:
                for at, part in zip(missing, found, strict=True):
                    rows[at] = part
                    advance(1)
                    if time.monotonic() - saved >= _SAVE_EVERY_S:
                        _save(places, stamps, rows)
                        saved = time.monotonic()
            finally:
                _save(places, stamps, rows)
    parts = [rows[at] for at in range(len(files))]
    return [len(part) for part in parts], np.concatenate(parts)


def _stamp(storage: Storage, name: str) -> tuple[int, int]:
    """Return the stamp of a file."""
    try:
        return storage.stamp(name)
    except OSError as error:
        raise unreadable(os.path.join(storage.path, name), error) from error


def _places(directory: str, name: str, remote: bool) -> list[Path]:
    """Return where the index may be: beside the shards, and in the user's cache."""
    place = directory if remote else os.path.realpath(directory)
    own = hashlib.blake2b(os.fsencode(place), digest_size=8).hexdigest()
    beside = [] if remote else [Path(directory, name)]
    with contextlib.suppress(UserError):  # a user without a home
        beside.append(user_cache() / (own + name))
    return beside


def _load(read: Callable[[], bytes], stamps: np.ndarray) -> dict[int, np.ndarray]:
    """Return the rows of an index by shard, of those shards that have not changed."""
    try:
        content = io.BytesIO(read())
        with np.load(content, allow_pickle=False) as stored:
            same = (stored["stamps"] == stamps).all(axis=1)
            parts = np.split(stored["rows"], stored["ends"][:-1])
            return {at: parts[at] for at in np.flatnonzero(same).tolist()}
    except Exception:  # absent or damaged: zipfile and NumPy raise a dozen types for that
        return {}


def _save(places: Sequence[Path], stamps: np.ndarray, rows: Mapping[int, np.ndarray]) -> None:
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
    for place in places:
        # Another process may write the same index.
        with contextlib.suppress(OSError), replacing(place, shared=True) as stream:
            np.savez(stream, **content)
            return
