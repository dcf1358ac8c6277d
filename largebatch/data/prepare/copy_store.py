"""A folder of an object store as the target of a copy."""

import contextlib
import json
import tempfile
import threading
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from largebatch.data.prepare import etags
from largebatch.data.prepare.copy_ends import (
    FileState,
    Folder,
    Listing,
    Objects,
    Source,
    check_no_others,
    matching,
)
from largebatch.data.prepare.copy_targets import Target
from largebatch.data.prepare.metadata import sha256
from largebatch.data.unfinished import MARKER, read_marker
from largebatch.errors import DataError
from largebatch.object_store import Bucket, StorageError

_SAVE_S = 300
"""Time between two writes of the journal in a store."""
_UPLOADS = threading.Semaphore(8)
"""Files above `_SMALL` that are uploaded at a time, each by one request at a time: at most 128 MiB
are under way, in memory and within the limit of time of a request."""
_SMALL = 2**20


class StoreFolder:
    """A folder of an object store, in which objects appear completely or not at all.

    ``.copied.json`` names the source and, for each file, its version there and its ETag here. It
    says that the set is unfinished from before the first change until all files are there, for
    which a set is not opened.
    """

    def __init__(self, bucket: Bucket, source: Source, scratch: Path, *, reads: bool) -> None:
        """List the folder; `opened_store` makes ``scratch``."""
        self.place, self.scratch = bucket.url, scratch
        self._bucket, self._source, self._reads = bucket, source, reads
        # The ends of a copy that fails because of the store are not delayed by its patience.
        self._markers = Bucket(bucket.url)
        self.present = Objects(bucket).entries()
        marker = read_marker(bucket)
        self._ours = marker is not None and marker["from"] == source.place
        self._finished = marker is None or bool(marker["finished"])
        self._rows: dict[str, list] = dict(marker["files"]) if marker and self._ours else {}
        self._written: Listing = {}
        self._not_md5: set[str] = set()
        self._began, self._saved = False, 0.0
        self._lock = threading.Lock()

    def kept(self, name: str, entry: FileState) -> bool:
        """Compare an object with the journal, else with the ETag of the source or the file."""
        found = self.present.get(name)
        if found is None or found.size != entry.size:
            return False
        row = [entry.size, entry.version, found.version]
        equal = bool(found.version) and not self._reads and self._rows.get(name) == row
        if not equal:
            equal = bool(etags.kind(found.version)) and found.version == entry.version
        if not equal and isinstance(self._source, Folder):
            equal = etags.is_of(found.version, self._source.path / name) is True
        if equal:
            self._written[name], self._rows[name] = found, row
        return equal

    def begin(self, missing: Collection[str]) -> None:
        """Mark the folder as unfinished, unless nothing is left to do."""
        if not missing and self._finished:
            return
        if not self._ours and (others := sorted(set(missing) & set(self.present))):
            raise DataError(
                f"--copy: {self.place} holds {len(others):,} files that differ from those of "
                f"{self._source.place} and are no earlier copy of it, such as {others[0]}; remove "
                "them or use another folder"
            )
        self._save(finished=False)
        self._began = True

    def put(self, name: str, entry: FileState, path: Path) -> str:
        """Upload a file; compare the ETag, and where that is no MD5 of one of them, the content."""
        with _UPLOADS if entry.size > _SMALL else contextlib.nullcontext():
            tag = (self._bucket.write(name, path, parts=1).e_tag or "").strip('"')
        verified = matching(path, tag)
        if not verified and etags.kind(tag) in self._not_md5:
            verified = "size"
        if not verified:
            back = self.scratch / f"{threading.get_ident()}-back"
            self._bucket.download(name, back)
            equal = sha256(back) == sha256(path)
            back.unlink()
            if not equal:
                raise DataError(f"--copy: {self.place}/{name} differs from {path}; repeat the copy")
            self._not_md5.add(etags.kind(tag))
            verified = "size"
        with self._lock:
            self._written[name] = FileState(entry.size, tag)
            self._rows[name] = [entry.size, entry.version, tag]
            if time.monotonic() - self._saved > _SAVE_S:
                self._save(finished=False)
        return verified

    def forget(self, name: str) -> None:
        """Remove a file from the journal, which `close` writes."""
        self._rows.pop(name, None)

    def finish(self, wanted: Listing) -> None:
        """Raise a DataError unless the folder holds what was written; else mark it as finished."""
        found = Objects(self._bucket).entries()
        check_no_others(self.place, found, wanted)
        for name, entry in wanted.items():
            written, listed = self._written[name], found.get(name)
            # Not every server names an ETag in the answer to an upload.
            if listed is None or listed != written._replace(
                version=written.version or listed.version
            ):
                raise DataError(
                    f"--copy: {self.place}/{name} is not what was written; another process writes "
                    "there: end it, then give the same command again"
                )
            self._rows[name] = [entry.size, entry.version, listed.version]
        if self._began:
            self._save(finished=True)
            self._began = False

    def close(self) -> None:
        """Record what was written if the copy has failed."""
        if self._began:
            with contextlib.suppress(StorageError), self._lock:
                self._save(finished=False)

    def _save(self, *, finished: bool) -> None:
        marker = {"from": self._source.place, "finished": finished, "files": self._rows}
        self._markers.write(MARKER, json.dumps(marker).encode(), parts=1)
        self._saved = time.monotonic()


@contextlib.contextmanager
def opened_store(bucket: Bucket, source: Source, wanted: Listing, reads: bool) -> Iterator[Target]:
    """Open a folder of an object store that has no files but those of the source.

    Args:
        bucket: The folder.
        source: Where the files come from.
        wanted: Its files.
        reads: Whether `StoreFolder.kept` compares the content of all files.

    Raises:
        DataError: It has other files.
    """
    with tempfile.TemporaryDirectory(
        prefix="largebatch-copy-", ignore_cleanup_errors=True
    ) as scratch:
        target = StoreFolder(bucket, source, Path(scratch), reads=reads)
        check_no_others(target.place, target.present, wanted)
        try:
            yield target
        finally:
            target.close()
