"""Where a copy of a data set goes: a directory with a journal, or a folder of an object store."""

import contextlib
import json
import os
import tempfile
import threading
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Protocol

from largebatch.data.prepare import etags
from largebatch.data.prepare.copy_ends import (
    FileState,
    Folder,
    Listing,
    Objects,
    Source,
    check_no_others,
    copy_file,
    list_folder,
    matching,
)
from largebatch.data.prepare.jobs import system_errors
from largebatch.data.prepare.metadata import INDEX, MANIFEST, sha256, work_of
from largebatch.data.prepare.run import working
from largebatch.data.unfinished import COPIED, MARKER, PLAN, read_marker
from largebatch.errors import DataError
from largebatch.files import replacing
from largebatch.object_store import Bucket, StorageError

JOURNAL = ".copied.jsonl"
LAST = {MANIFEST, *INDEX.values()}
"""Files that make a directory a data set."""
_SAVE_S = 300
"""Time between two writes of the journal in a store."""
_UPLOADS = threading.Semaphore(8)
"""Files above `_SMALL` that are uploaded at a time, each by one request at a time: at most 128 MiB
are under way, in memory and within the limit of time of a request."""
_SMALL = 2**20


class Target(Protocol):
    """Where files go. The methods may be called in several threads."""

    place: str
    scratch: Path
    """Directory for files that are not complete."""

    def kept(self, name: str, entry: FileState) -> bool:
        """Return whether a file is there and need not be copied."""

    def begin(self, missing: Collection[str]) -> None:
        """Prepare for `put` of files that were not kept.

        Raises:
            DataError: Files that no copy of this source has written would be replaced.
        """

    def put(self, name: str, entry: FileState, path: Path) -> str:
        """Add a verified file; return what was verified: ``sha256``, ``md5`` or ``size``.

        Raises:
            DataError: The copy differs from the file.
        """

    def forget(self, name: str) -> None:
        """Let `kept` be false of a file in the next copy, if it was put."""

    def finish(self, wanted: Listing) -> None:
        """Make the copy a data set, of which these are the files."""


class Directory:
    """A directory of this machine.

    Files are moved to their places when all are there. Until the last one has been moved,
    ``.prepare/copied`` exists, for which a set is not opened.
    ``.copied.jsonl`` has a line for each file: its version at the source, its SHA-256, and its time
    of modification here.
    """

    def __init__(self, path: Path, journal: dict[str, dict[str, Any]], *, reads: bool) -> None:
        """Read nothing yet; use `opened_directory`."""
        self.place, self._path, self._journal, self._reads = str(path), path, journal, reads
        self._staged = work_of(path) / COPIED
        self.scratch = Path(tempfile.mkdtemp(prefix="writing-", dir=work_of(path)))
        self._lock = threading.Lock()
        self._stream = (path / JOURNAL).open("a", encoding="utf-8")

    def kept(self, name: str, entry: FileState) -> bool:
        """Compare size, version and time with the journal; if these differ, the content."""
        row = self._journal.get(name)
        if row is None or FileState(row["size"], row["version"]) != entry:
            return False
        path = self._where(name)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            status = path.stat()
            if status.st_size == entry.size:
                if status.st_mtime_ns == row["mtime_ns"] and not self._reads:
                    return True
                if sha256(path) == row["sha256"]:
                    self._note(name, row | {"mtime_ns": status.st_mtime_ns})
                    return True
        return False

    def begin(self, missing: Collection[str]) -> None:
        """Do nothing: `opened_directory` has compared the sources."""

    def put(self, name: str, entry: FileState, path: Path) -> str:
        """Move a file from ``scratch``, or copy one from elsewhere and compare the copy."""
        digest, verified = sha256(path), ""
        if path.parent != self.scratch:
            copied = self.scratch / f"{threading.get_ident()}"
            copy_file(path, copied)
            if sha256(copied) != digest:
                raise DataError(f"--copy: {copied} differs from {path}; check the disks")
            path, verified = copied, "sha256"
        staged = self._staged / name
        staged.parent.mkdir(parents=True, exist_ok=True)
        os.replace(path, staged)
        time_ns = staged.stat().st_mtime_ns
        row = {"size": entry.size, "version": entry.version, "sha256": digest, "mtime_ns": time_ns}
        self._note(name, row)
        return verified

    def forget(self, name: str) -> None:
        """Add a line with no size to the journal."""
        self._note(name, {"size": -1, "version": ""})

    def finish(self, wanted: Listing) -> None:
        """Move all files to their places, those that make it a data set last."""
        for name in sorted(wanted, key=lambda name: name.rpartition("/")[2] in LAST):
            if (self._staged / name).exists():
                (self._path / name).parent.mkdir(parents=True, exist_ok=True)
                os.replace(self._staged / name, self._path / name)

    def _where(self, name: str) -> Path:
        staged = self._staged / name
        return staged if staged.exists() else self._path / name

    def _note(self, name: str, row: dict[str, Any]) -> None:
        with self._lock:
            self._journal[name] = row
            self._stream.write(json.dumps({"name": name} | row) + "\n")
            self._stream.flush()

    def close(self) -> None:
        """Close the journal."""
        self._stream.close()


@contextlib.contextmanager
def opened_directory(path: Path, source: Source, wanted: Listing, reads: bool) -> Iterator[Target]:
    """Open a directory that is empty or holds an earlier copy of the same source.

    Args:
        path: The directory.
        source: Where the files come from.
        wanted: Its files.
        reads: Whether `Directory.kept` compares the content of all files.

    Raises:
        DataError: It holds something else, or another process writes there.
    """
    began = (path / JOURNAL).exists()
    with system_errors(path):
        if path.exists() and not began and any(p != work_of(path) for p in path.iterdir()):
            raise DataError(f"--copy: {path} is not an empty directory; use another")
    with working(path):
        if (work_of(path) / PLAN).exists():
            raise DataError(
                f"--copy: {path} holds an unfinished preparation; use another directory"
            )
        journal = _read(path, source.place)
        check_no_others(str(path), list_folder(path, finished=False), wanted)
        _write(path, source.place, {n: row for n, row in journal.items() if n in wanted})
        directory = Directory(path, journal, reads=reads)
        try:
            yield directory
        finally:
            directory.close()


def _read(path: Path, place: str) -> dict[str, dict[str, Any]]:
    """Return the lines of a journal by name; the last line of a killed copy may be torn."""
    rows = {}
    with contextlib.suppress(FileNotFoundError):
        for line in (path / JOURNAL).read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                row = json.loads(line)
                if "from" in row and row["from"] != place:
                    raise DataError(
                        f"--copy: {path} holds a copy of {row['from']}, not of {place}; use "
                        "another directory, or remove it"
                    )
                if "name" in row:
                    rows[row.pop("name")] = row
    return rows


def _write(path: Path, place: str, rows: dict[str, dict[str, Any]]) -> None:
    with replacing(path / JOURNAL) as stream:
        stream.write((json.dumps({"from": place}) + "\n").encode())
        for name, row in rows.items():
            stream.write((json.dumps({"name": name} | row) + "\n").encode())


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
