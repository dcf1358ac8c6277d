"""Copy of a dataset between object stores and disks, in parallel, verified and resumable."""

import contextlib
import math
import shutil
import tempfile
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from largebatch.data.prepare import etags, jobs
from largebatch.data.prepare.copy_ends import (
    FileState,
    Folder,
    Listing,
    Objects,
    Source,
    changed,
    matching,
)
from largebatch.data.prepare.copy_store import opened_store
from largebatch.data.prepare.copy_targets import LAST, Target, opened_directory
from largebatch.data.prepare.jobs import system_errors
from largebatch.data.prepare.metadata import MANIFEST, Files, read_manifest, sha256
from largebatch.data.prepare.run import GIB
from largebatch.data.unfinished import check_finished
from largebatch.errors import ConfigError, DataError, counted
from largebatch.object_store import Bucket
from largebatch.store_urls import shown, url_of

_FILES = 32
"""Files that are copied at a time."""
_ATTEMPTS = 3
_REQUEST_S, _RETRY_S = 300, 1200
"""Limits of one request and of its repetitions. At most 256 MiB are requested at a time, so that a
line of 10 Mbit/s is enough; a connection that hangs is replaced."""
_MIB = 1 << 20
_VERIFIED = {"sha256": "by SHA-256", "md5": "by the MD5 in the store's ETag", "size": "by size"}
"""What may be verified of a file, the strongest first."""


def copy_dataset(
    source: str, target: str, *, reads: bool = False, report: Callable[[str], None] = print
) -> None:
    """Copy all files of a dataset, or those that an earlier call has left.

    A file is compared with the SHA-256 that a ``manifest.json`` of the set records, otherwise with
    the ETag of the store where that is an MD5, otherwise by size. Hidden files are left out.

    Args:
        source: A directory, or a folder of an object store.
        target: The same; a directory must be empty or hold an earlier copy.
        reads: Whether the content of files that are there is compared too, not only their size,
            version and time.
        report: Prints a line.

    Raises:
        ConfigError: Source and target overlap, or a URL is malformed.
        DataError: The source changes, a file differs after the copy, another process writes to the
            target, the target holds other files, or the disk cannot hold the set.
        StorageError: A store cannot be reached.
    """
    _check_apart(source, target)
    end: Source = (
        Objects(Bucket(source, _REQUEST_S, _RETRY_S)) if url_of(source) else Folder(Path(source))
    )
    check_finished(source)
    with system_errors(Path(source)):
        wanted = end.entries()
    if not wanted:
        raise DataError(f"--copy: {source} holds no files; correct the first path")
    with contextlib.ExitStack() as stack:
        if url := url_of(target):
            opened = opened_store(Bucket(url, _REQUEST_S, _RETRY_S), end, wanted, reads)
        else:
            opened = opened_directory(Path(target), end, wanted, reads)
        to = stack.enter_context(opened)
        stack.enter_context(system_errors(Path(target)))
        _Copy(end, to, wanted, report).run()


class _Copy:
    """One copy."""

    def __init__(
        self, source: Source, target: Target, wanted: Listing, report: Callable[[str], None]
    ) -> None:
        self._source, self._target, self._wanted, self._report = source, target, wanted, report
        self._recorded: Files = {}
        self._equal: set[str] = set()
        self._not_md5: dict[str, list[str]] = {}
        self._lock = threading.Lock()

    def run(self) -> None:
        """Copy what is missing and make the target a dataset."""
        size = sum(entry.size for entry in self._wanted.values())
        missing: list[str] = []

        def look(name: str) -> None:
            if not self._target.kept(name, self._wanted[name]):
                missing.append(name)

        _each(sorted(self._wanted), look, self._source.ended)
        need = sum(self._wanted[name].size for name in missing)
        self._report(
            f"{counted(len(self._wanted), 'file')}, {size / GIB:,.2f} GiB in {self._source.place}; "
            f"{counted(len(missing), 'file')}, {need / GIB:,.2f} GiB to copy"
        )
        self._target.begin(missing)
        verified: Counter[str] = Counter()
        if missing:
            self._check_space(missing)
            self._read_manifests()
            # The files that make it a dataset come last.
            last = [name for name in missing if name.rpartition("/")[2] in LAST]
            done = 0
            with jobs.progress("copying", "MiB", math.ceil(need / _MIB)) as advance:

                def transfer(name: str) -> None:
                    nonlocal done
                    strength = self._transfer(name)
                    with self._lock:
                        verified[strength] += 1
                        before, done = math.ceil(done / _MIB), done + self._wanted[name].size
                        if more := math.ceil(done / _MIB) - before:
                            advance(more)

                try:
                    _each(sorted(set(missing) - set(last)), transfer, self._source.ended)
                    _each(last, transfer, self._source.ended)
                finally:
                    for kind in self._equal & self._not_md5.keys():
                        for name in self._not_md5[kind]:
                            self._target.forget(name)
            self._check_unchanged()
        self._target.finish(self._wanted)
        parts = [f"{n:,} {_VERIFIED[key]}" for key in _VERIFIED if (n := verified[key])]
        self._report(
            f"done: {counted(len(self._wanted), 'file')} in {self._target.place}, "
            f"{len(self._wanted) - len(missing):,} of them kept"
            + (f"; verified: {', '.join(parts)}" if parts else "")
        )

    def _transfer(self, name: str) -> str:
        """Copy a file; return what was verified."""
        entry = self._wanted[name]
        scratch = self._target.scratch / f"{threading.get_ident()}"
        path, verified = self._fetched(name, entry, scratch)
        try:
            put = self._target.put(name, entry, path)
        finally:
            scratch.unlink(missing_ok=True)
        order = list(_VERIFIED)
        return max((v for v in (verified, put) if v), key=order.index)

    def _fetched(self, name: str, entry: FileState, scratch: Path) -> tuple[Path, str]:
        """Return a verified local file, and what was verified; '' if it is the source itself."""
        earlier = ""
        for _ in range(_ATTEMPTS):
            path = self._source.fetch(name, entry, scratch)
            digest = ""
            if name in self._recorded:
                size, expected = self._recorded[name]
                digest = sha256(path)
                if (entry.size, digest) == (size, expected):
                    return path, "sha256" if path == scratch else ""
            elif path != scratch:
                return path, ""
            elif verified := matching(path, entry.version):
                if verified == "md5":
                    self._compared(name, entry, equal=True)
                return path, verified
            else:
                digest = sha256(path)
                if digest == earlier or etags.kind(entry.version) in self._not_md5:
                    self._compared(name, entry, equal=False)
                    return path, "size"
            if path != scratch or digest == earlier:
                break
            earlier = digest
        raise self._differs(name, MANIFEST if name in self._recorded else "its ETag")

    def _compared(self, name: str, entry: FileState, *, equal: bool) -> None:
        """Record that a file equals its ETag, or that this seems to be no MD5.

        Raises:
            DataError: Some files equal ETags of this kind, others differ from them.
        """
        kind = etags.kind(entry.version)
        with self._lock:
            if equal:
                self._equal.add(kind)
            else:
                self._not_md5.setdefault(kind, []).append(name)
            if kind in self._equal and kind in self._not_md5:
                raise self._differs(self._not_md5[kind][0], "its ETag")

    def _differs(self, name: str, what: str) -> DataError:
        return DataError(
            f"--copy: {self._source.place}/{name} has not the checksum that {what} has; restore "
            "the file, then give the same command again"
        )

    def _read_manifests(self) -> None:
        """Read what the manifests of the set record of its files."""
        for name, entry in self._wanted.items():
            folder, slash, base = name.rpartition("/")
            if base != MANIFEST:
                continue
            with tempfile.TemporaryDirectory() as aside:
                path = self._source.fetch(name, entry, Path(aside, MANIFEST))
                try:
                    manifest = read_manifest(path.parent)
                except DataError:
                    continue  # of another program
            recorded = dict(manifest.metadata)
            for shard in manifest.shards:
                recorded |= shard.files
            self._recorded |= {f"{folder}{slash}{file}": facts for file, facts in recorded.items()}

    def _check_space(self, missing: Iterable[str]) -> None:
        sizes = sorted(self._wanted[name].size for name in missing)
        if not url_of(self._target.place):
            need = sum(sizes)
        elif isinstance(self._source, Objects):
            need = sum(sizes[-_FILES:])  # files pass through the disk
        else:
            return
        if need > (free := shutil.disk_usage(self._target.scratch).free):
            raise DataError(
                f"--copy: {need / GIB:,.2f} GiB are needed on the disk of {self._target.scratch}, "
                f"{free / GIB:,.2f} are free; free some or use another"
            )

    def _check_unchanged(self) -> None:
        """Raise a DataError if the source has not the files that it had at the start."""
        now = self._source.entries()
        if now != self._wanted:
            names = sorted(now.items() ^ self._wanted.items())
            raise changed(self._source.place, names[0][0])


def _each(names: Iterable[str], function: Callable[[str], None], ended: threading.Event) -> None:
    """Call a function for each name in threads; the first error ends all, and sets `ended`."""
    left = deque(names)
    errors: list[BaseException] = []

    def work() -> None:
        with contextlib.suppress(IndexError):
            while not ended.is_set():
                name = left.popleft()
                try:
                    function(name)
                except BaseException as error:
                    errors.append(error)
                    ended.set()

    threads = ThreadPoolExecutor(_FILES, "file")
    try:
        for running in [threads.submit(work) for _ in range(min(_FILES, len(left)))]:
            running.result()
    except BaseException:  # Ctrl-C
        ended.set()
        raise
    finally:
        threads.shutdown()
    if errors:
        raise errors[0]


def _check_apart(source: str, target: str) -> None:
    """Raise a ConfigError if one end of a copy lies in the other."""
    ends = []
    for place in (source, target):
        url = url_of(place)
        ends.append(f"{url.rstrip('/') if url else Path(place).resolve()}/")
    if ends[0].startswith(ends[1]) or ends[1].startswith(ends[0]):
        raise ConfigError(
            f"--copy: {shown(source)} and {shown(target)} overlap; use directories outside of each "
            "other"
        )
