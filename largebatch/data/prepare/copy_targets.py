"""Where a copy of a data set goes: a directory with a journal, or a folder of an object store."""

import contextlib
import json
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from largebatch.data.prepare import etags
from largebatch.data.prepare.copy_ends import (
    Entries,
    Entry,
    Folder,
    Objects,
    Source,
    check_no_others,
    copy_file,
    files_of,
    matching,
)
from largebatch.data.prepare.jobs import system_errors
from largebatch.data.prepare.metadata import INDEX, MANIFEST, sha256, work_of
from largebatch.data.prepare.run import working
from largebatch.errors import DataError
from largebatch.files import replacing
from largebatch.object_store import Bucket

JOURNAL = ".copied.jsonl"
LAST = {MANIFEST, *INDEX.values()}
"""Files that make a directory a data set."""


class Target(Protocol):
    """Where files go. The methods may be called in several threads."""

    place: str
    scratch: Path
    """Directory for files that are not complete."""

    def kept(self, name: str, entry: Entry) -> bool:
        """Return whether a file is there and need not be copied."""

    def put(self, name: str, entry: Entry, path: Path) -> str:
        """Add a verified file; return what was verified: ``sha256``, ``md5`` or ``size``.

        Raises:
            DataError: The copy differs from the file.
        """

    def finish(self, wanted: Entries) -> None:
        """Make the copy a data set, of which these are the files."""


class Directory:
    """A directory of this machine.

    Files are moved to their places when all are there, so that half a set never looks like one.
    ``.copied.jsonl`` has a line for each file: its version at the source, its SHA-256, and its time
    of modification here.
    """

    def __init__(self, path: Path, journal: dict[str, dict[str, Any]], *, reads: bool) -> None:
        """Read nothing yet; use `opened_directory`."""
        self.place, self._path, self._journal, self._reads = str(path), path, journal, reads
        self._staged = work_of(path) / "copied"
        self.scratch = Path(tempfile.mkdtemp(prefix="writing-", dir=work_of(path)))
        self._lock = threading.Lock()
        self._stream = (path / JOURNAL).open("a", encoding="utf-8")

    def kept(self, name: str, entry: Entry) -> bool:
        """Compare size, version and time with the journal; if these differ, the content."""
        row = self._journal.get(name)
        if row is None or Entry(row["size"], row["version"]) != entry:
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

    def put(self, name: str, entry: Entry, path: Path) -> str:
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

    def finish(self, wanted: Entries) -> None:
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
def opened_directory(path: Path, source: Source, wanted: Entries, reads: bool) -> Iterator[Target]:
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
        if (work_of(path) / "plan.json").exists():
            raise DataError(
                f"--copy: {path} holds an unfinished preparation; use another directory"
            )
        journal = _read(path, source.place)
        check_no_others(str(path), files_of(path, finished=False), wanted)
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


class Store:
    """A folder of an object store, in which objects appear completely or not at all."""

    def __init__(self, bucket: Bucket, source: Source, scratch: Path) -> None:
        """List the folder; `opened_store` makes ``scratch``."""
        self.place, self.scratch = bucket.url, scratch
        self._bucket, self._source = bucket, source
        self.present = Objects(bucket).entries()
        self._written: Entries = {}
        self._untold: set[str] = set()

    def kept(self, name: str, entry: Entry) -> bool:
        """Compare an object with the ETag of the source, or with the local file."""
        found = self.present.get(name)
        if found is None or found.size != entry.size:
            return False
        equal = bool(etags.kind(found.version)) and found.version == entry.version
        if not equal and isinstance(self._source, Folder):
            equal = etags.is_of(found.version, self._source.path / name) is True
        if equal:
            self._written[name] = found
        return equal

    def put(self, name: str, entry: Entry, path: Path) -> str:
        """Upload a file; compare the ETag, and where that is no MD5 of one of them, the content."""
        tag = (self._bucket.write(name, path).e_tag or "").strip('"')
        self._written[name] = Entry(entry.size, tag)
        verified = matching(path, tag, self._untold)
        if not verified:
            back = self.scratch / f"{threading.get_ident()}-back"
            self._bucket.download(name, back)
            equal = sha256(back) == sha256(path)
            back.unlink()
            if not equal:
                raise DataError(f"--copy: {self.place}/{name} differs from {path}; repeat the copy")
            self._untold.add(etags.kind(tag))
            verified = "size"
        return verified

    def finish(self, wanted: Entries) -> None:
        """Raise a DataError unless the folder holds what was written."""
        found = Objects(self._bucket).entries()
        check_no_others(self.place, found, wanted)
        for name in wanted:
            if found.get(name) != self._written[name]:
                raise DataError(
                    f"--copy: {self.place}/{name} is not what was written; another process writes "
                    "there: end it, then give the same command again"
                )


@contextlib.contextmanager
def opened_store(bucket: Bucket, source: Source, wanted: Entries) -> Iterator[Target]:
    """Open a folder of an object store that is empty or holds files of the same names."""
    with tempfile.TemporaryDirectory(prefix="largebatch-copy-") as scratch:
        target = Store(bucket, source, Path(scratch))
        check_no_others(target.place, target.present, wanted)
        yield target
