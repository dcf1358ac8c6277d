"""A run directory in an object store (``--workdir=gs://…``): a local copy that is kept equal.

The run reads and writes a local directory as always. Process 0 uploads what has changed, in a
thread: logs every `EVERY_S` seconds, and a checkpoint as soon as it is complete, after the logs
that belong to it and with its manifest last. So the newest complete checkpoint in the store always
has its rows in ``metrics.jsonl``, whenever the process is killed. A listing shows the manifest only
of complete checkpoints, because an object appears at once or not at all; nothing is renamed there.
"""

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

import jax

from largebatch.checkpoint import arrays, directories, lock, manifest
from largebatch.checkpoint.directories import CHECKPOINT_NAME, is_complete, numbered
from largebatch.checkpoint.run_directory import own_names
from largebatch.object_store import Bucket, StorageError
from largebatch.parallel import processes

EVERY_S = 30.0
"""Seconds between two uploads of the logs."""
_LOOK_S = 2.0
"""Seconds between two looks for a new checkpoint."""
_DOWNLOADS = 8
CHECKPOINTS = "checkpoints"
_PREVIOUS = "previous"
_LOCAL = (lock.NAME, directories.SAVED)
"""Files that are not uploaded. A checkpoint may be saved here, and not in the store yet."""


class RemoteDirectory:
    """A run directory in an object store and its local copy."""

    def __init__(self, bucket: Bucket, local: Path, *, deletes: bool = True) -> None:
        """Transfer nothing yet.

        Args:
          bucket: the run directory in the store.
          local: an empty directory, which may be made later.
          deletes: whether `push` deletes objects; only the process that holds the lock does.
        """
        self.bucket = bucket
        self.local = local
        self._deletes = deletes
        self._equal: dict[str, tuple[int, int]] = {}
        """Size and modification time of each local file that is equal to its object, by name."""
        self._pushing = threading.Lock()
        self._closed = False
        self._held_back = False

    def archive(self) -> str | None:
        """Copy an earlier run to ``previous/N/`` and delete the originals.

        Objects that this program has not written stay, such as those of runs below the directory.

        Returns:
          The URL of the archive; None if there is no earlier run.
        """
        old = _own(self.bucket.objects())
        if not old:
            self._held_back = False
            return None
        numbers = [int(name) for name in self.bucket.folders(_PREVIOUS) if name.isdigit()]
        target = f"{_PREVIOUS}/{1 + max(numbers, default=0)}"
        with ThreadPoolExecutor(_DOWNLOADS) as threads:
            list(threads.map(lambda name: self.bucket.copy(name, f"{target}/{name}"), old))
        self.bucket.delete(*_manifests_first(old))
        self._held_back = False
        return f"{self.bucket.url}/{target}"

    def pull(self, *, newest_only: bool = False, checkpoints: bool = True) -> None:
        """Download the files of the run and its complete checkpoints.

        Archives, and checkpoints that are marked as corrupt or left out, become empty directories.

        Args:
          newest_only: leave out all checkpoints but the newest.
          checkpoints: False to leave out all of them.

        Raises:
          StorageError: the store cannot be read.
        """
        found = [name for name in self.bucket.objects() if _is_valid(name)]
        complete = _complete(found)
        steps = sorted(complete, key=int, reverse=True) if checkpoints else []
        wanted = [name for name in _own(found) if "/" not in name]
        for step in steps[:1] if newest_only else steps:
            wanted += [name for name in found if name.startswith(f"{CHECKPOINTS}/{step}/")]
        for parts in (PurePosixPath(name).parts for name in found):
            kept = parts[0] == CHECKPOINTS and (parts[1] in complete or not parts[1].isdigit())
            if len(parts) > 2 and (kept or parts[0] == _PREVIOUS):
                (self.local / parts[0] / parts[1]).mkdir(parents=True, exist_ok=True)
        self._download(wanted)

    def pull_checkpoint(self, step: int) -> None:
        """Download one checkpoint, also if there is a copy.

        Raises:
          StorageError: the store cannot be read.
        """
        folder = f"{CHECKPOINTS}/{step}"
        shutil.rmtree(self.local / folder, ignore_errors=True)
        self._download(name for name in self.bucket.objects(folder) if _is_valid(name))

    def share(self, step: int) -> None:
        """Give all processes the checkpoint that process 0 has; each process calls this.

        Raises:
          StorageError: the store cannot be read or written to.
        """
        processes.first_process_does(lambda: self.push(last=True))
        if jax.process_index():
            self.pull_checkpoint(step)

    def clear(self) -> None:
        """Delete checkpoints of this program whose upload was interrupted."""
        found = _own(self.bucket.objects(CHECKPOINTS))
        complete = _complete(found)
        steps = {PurePosixPath(name).parts[1] for name in found}
        for step in (step for step in steps if step.isdigit() and step not in complete):
            self.bucket.delete(*(n for n in found if n.startswith(f"{CHECKPOINTS}/{step}/")))

    def push(self, *, last: bool = False, patience_s: float = -1) -> None:
        """Upload all files that differ from their objects; delete objects whose file is deleted.

        Args:
          last: also replace a checkpoint that is the only one, which is not complete meanwhile.
          patience_s: seconds to wait for another thread's upload; below 0: any time.

        Raises:
          StorageError: the store cannot be written to; the next call continues.
        """
        if not self._pushing.acquire(timeout=patience_s):
            raise StorageError(f"{self.bucket.url}: another upload hangs")
        with contextlib.ExitStack() as stack:
            stack.callback(self._pushing.release)
            if self._closed or self._held_back:
                return
            files = self._files()
            fresh = [name for name in files if self._equal.get(name) != files[name]]
            for folder in {_checkpoint(name) for name in fresh} - {""}:
                replaced = f"{folder}/{manifest.NAME}"
                if replaced not in self._equal:
                    continue
                if not last and not any(map(_is_manifest, self._equal.keys() - {replaced})):
                    fresh = [name for name in fresh if _checkpoint(name) != folder]
                    continue
                self.bucket.delete(replaced)
                del self._equal[replaced]
                fresh += [replaced] * (replaced not in fresh)
            # The rows of a checkpoint first, its manifest last.
            fresh.sort(key=lambda name: (name.startswith(CHECKPOINTS), _is_manifest(name)))
            for name in fresh:
                if self._closed:
                    return
                path = self.local / name
                with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                    # A log may grow during its upload; a file of a checkpoint is never changed.
                    is_log = not name.startswith(CHECKPOINTS)
                    self.bucket.write(name, path.read_bytes() if is_log else path)
                    self._equal[name] = files[name]
            gone = [name for name in self._equal if name not in files and self._is_gone(name)]
            if self._deletes and not self._closed:
                self.bucket.delete(*_manifests_first(gone))
                for name in gone:
                    del self._equal[name]

    def hold_back(self) -> None:
        """Upload nothing until `archive` has made room for a new run."""
        self._held_back = True

    def close(self) -> None:
        """Transfer nothing any more: all is uploaded, or another process has the lock."""
        self._closed = True

    def _is_gone(self, name: str) -> bool:
        """Return whether the run has deleted a file, and not somebody else the local copy."""
        if folder := _checkpoint(name):
            local = self.local / folder
            return is_complete(local) if local.exists() else any(local.parent.glob("*"))
        return any(self.local.glob(f"{_PREVIOUS}/*/{name}"))

    @contextlib.contextmanager
    def pushed(self, warn: Callable[[str], None]) -> Iterator[None]:
        """Push in a thread while the body runs; report the first of consecutive failures."""
        ended = threading.Event()

        def upload() -> None:
            last, failed, known = time.monotonic(), False, numbered(self.local / CHECKPOINTS)
            while not ended.wait(_LOOK_S):
                now = numbered(self.local / CHECKPOINTS)
                if now == known and time.monotonic() - last < EVERY_S:
                    continue
                try:
                    self.push()
                    failed, known = False, now
                except StorageError as error:
                    if not failed:
                        warn(f"{error}; training continues, and the upload is repeated")
                    failed = True
                last = time.monotonic()

        thread = threading.Thread(target=upload, name="largebatch-upload", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _download(self, names: Iterable[str]) -> None:
        def download(name: str) -> None:
            path = self.local / name
            self.bucket.download(name, path)
            self._equal[name] = _stat(path)

        with ThreadPoolExecutor(_DOWNLOADS) as threads:
            list(threads.map(download, sorted(names, key=_is_manifest)))

    def _files(self) -> dict[str, tuple[int, int]]:
        """Return size and modification time of all files by name; temporary ones are hidden."""
        found = {}
        for parent, folders, names in os.walk(self.local):
            folders[:] = [name for name in folders if not name.startswith(".")]
            for name in names:
                path = Path(parent, name)
                relative = path.relative_to(self.local).as_posix()
                if not name.startswith(".") and relative not in _LOCAL:
                    with contextlib.suppress(FileNotFoundError):
                        found[relative] = _stat(path)
        return found


def _complete(names: Iterable[str]) -> set[str]:
    """Return the steps of the checkpoints with a manifest."""
    paths = [PurePosixPath(name).parts for name in names]
    return {
        parts[1]
        for parts in paths
        if len(parts) == 3
        and (parts[0], parts[2]) == (CHECKPOINTS, manifest.NAME)
        and parts[1].isdigit()
    }


def _own(names: Iterable[str]) -> list[str]:
    """Return the names of objects that this program has written, by their places."""
    names = list(names)
    foreign = {_checkpoint(name) for name in names if not _is_of_checkpoint(name)} | {""}
    names = [n for n in names if n.split("/")[0] != CHECKPOINTS or _checkpoint(n) not in foreign]
    kept = own_names({name.split("/")[0] for name in names})
    return [name for name in names if name.split("/")[0] in kept]


def _is_of_checkpoint(name: str) -> bool:
    """Return whether an object has a name that `directories.write` gives to a checkpoint's."""
    folder = _checkpoint(name)
    rest = name.removeprefix(f"{folder}/").partition("/")[0]
    return bool(CHECKPOINT_NAME.fullmatch(PurePosixPath(folder).name)) and rest in (
        manifest.NAME,
        arrays.FOLDER,
    )


def _is_valid(name: str) -> bool:
    """Return whether an object's name is a relative path without hidden or parent folders."""
    return not any(part.startswith(".") for part in name.split("/")) and not name.startswith("/")


def _checkpoint(name: str) -> str:
    """Return the directory of the checkpoint that a file belongs to; '' if to none."""
    parts = name.split("/")
    return "/".join(parts[:2]) if parts[0] == CHECKPOINTS and len(parts) > 2 else ""


def _is_manifest(name: str) -> bool:
    return name.endswith(f"/{manifest.NAME}")


def _manifests_first(names: Iterable[str]) -> list[str]:
    """Return names in an order of deletion in which no checkpoint looks complete."""
    return sorted(names, key=lambda name: not _is_manifest(name))


def _stat(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns
