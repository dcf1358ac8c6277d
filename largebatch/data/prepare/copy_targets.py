"""Where a copy of a dataset goes: a directory with a journal; `copy_store` has object stores."""

import contextlib
import json
import os
import tempfile
import threading
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Protocol

from largebatch.data.prepare.copy_ends import (
    FileState,
    Listing,
    Source,
    check_no_others,
    copy_file,
    list_folder,
)
from largebatch.data.prepare.jobs import system_errors
from largebatch.data.prepare.metadata import INDEX, MANIFEST, sha256, work_of
from largebatch.data.prepare.run import working
from largebatch.data.unfinished import COPIED, PLAN
from largebatch.errors import DataError
from largebatch.files import replacing

JOURNAL = ".copied.jsonl"
LAST = {MANIFEST, INDEX}
"""Files that make a directory a dataset."""


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
        """Make the copy a dataset, of which these are the files."""


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
        """Move all files to their places, those that make it a dataset last."""
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
