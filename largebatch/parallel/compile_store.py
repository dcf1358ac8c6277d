"""Compiled programs in an object store, in front of which a local folder stands.

JAX reads and writes the entries of its cache through `etils.epath`, in which a class can be
registered for a scheme of URLs. So each entry is looked up locally, then in the store, at the
moment at which JAX would compile. With ``gs://`` and ``s3://`` themselves, JAX needs gcsfs or s3fs,
reads each entry from the network at every start, and uploads it before the program is used.
"""

import contextlib
import hashlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
from etils import epath

from largebatch.errors import ConfigError
from largebatch.files import replacing
from largebatch.object_store import Bucket, StorageError

SCHEME = "largebatch-cache://"


class StoredPrograms:
    """The entries of JAX's persistent cache in a local folder and in an object store.

    The first error of the store is a warning; from then on only the local folder is used.
    """

    def __init__(self, bucket: Bucket, folder: Path, warn: Callable[[str], None]) -> None:
        """Send no request yet.

        Args:
          bucket: the folder in the store.
          folder: the local folder.
          warn: prints a warning of one line.
        """
        self.bucket, self.folder = bucket, folder
        self._warn = warn
        # Not a daemon: the interpreter waits for the uploads when the process ends.
        self._uploads = ThreadPoolExecutor(1, "compile-cache")
        self._absent: set[str] = set()
        self._submitted: set[str] = set()
        self._read: dict[str, bytes] = {}  # hashes of what JAX has read
        self._stored: set[str] | None = None
        self._failing = threading.Lock()
        self._failed = False

    def contains(self, name: str) -> bool:
        """Return whether there is an entry; one that is only in the store is downloaded."""
        path = self.folder / name
        if path.exists():
            self._submit(name)
            return True
        if name in self._absent or self._failed:
            return False
        try:
            found = self.bucket.read(name)
        except StorageError as error:
            self._fail(error)
            return False
        if found is None:
            self._absent.add(name)
            return False
        with replacing(path, shared=True) as stream:
            stream.write(found[0])
        self._submitted.add(name)
        return True

    def read(self, name: str) -> bytes:
        """Return the content of an entry in the local folder."""
        content = (self.folder / name).read_bytes()
        self._read[name] = hashlib.sha256(content).digest()
        return content

    def write(self, name: str, content: bytes) -> None:
        """Add an entry; it is uploaded in a thread."""
        with replacing(self.folder / name, shared=True) as stream:
            stream.write(content)
        self._submit(name)

    def remove(self, name: str) -> None:
        """Delete a damaged entry; the one that is written next replaces it in the store.

        An entry that another process has replaced since it was read here is kept, and so is one
        that was not read here.
        """
        read = self._read.pop(name, None)
        if read is None:
            return
        with contextlib.suppress(FileNotFoundError):
            if hashlib.sha256((self.folder / name).read_bytes()).digest() == read:
                (self.folder / name).unlink()
        self._absent.add(name)
        self._submitted.discard(name)

    def _submit(self, name: str) -> None:
        if name not in self._submitted and jax.process_index() == 0:
            self._submitted.add(name)
            self._uploads.submit(self._upload, name, replaces=name in self._absent)

    def _upload(self, name: str, *, replaces: bool) -> None:
        try:
            if self._stored is None and not self._failed:
                self._stored = set(self.bucket.objects())
            if not self._failed and (replaces or name not in (self._stored or ())):
                self.bucket.write(name, (self.folder / name).read_bytes())
        except StorageError as error:
            self._fail(error)
        except FileNotFoundError:
            return  # deleted locally meanwhile

    def _fail(self, error: StorageError) -> None:
        with self._failing:
            if not self._failed:
                self._failed = True
                self._warn(f"run.compile_cache: {error}; programs are kept in {self.folder} only")


_opened: dict[str, StoredPrograms] = {}


@epath.register_path_cls(SCHEME)
class _Path:
    """What JAX uses of a path; as text it is the local one, as JAX needs it for XLA."""

    def __init__(self, place: str, name: str = "") -> None:
        self._place, self._name = place, name
        self._programs = _opened[place]

    def joinpath(self, *parts: str) -> "_Path":
        return _Path(self._place, "/".join((self._name, *parts)).strip("/"))

    __truediv__ = joinpath

    def mkdir(self, **options: bool) -> None:
        Path(str(self)).mkdir(**options)

    def exists(self) -> bool:
        return self._programs.contains(self._name)

    def read_bytes(self) -> bytes:
        return self._programs.read(self._name)

    def write_bytes(self, content: bytes) -> int:
        self._programs.write(self._name, content)
        return len(content)

    def __str__(self) -> str:
        return str(self._programs.folder / self._name)


def register(programs: StoredPrograms) -> str:
    """Return the value of ``jax_compilation_cache_dir`` that makes JAX use these programs.

    Raises:
      ConfigError: JAX is to limit the size of the cache, which it does for local folders only.
    """
    if (limit := jax.config.values["jax_compilation_cache_max_size"]) != -1:
        raise ConfigError(
            f"run.compile_cache={programs.bucket.url}: expected no limit of the size, got "
            f"JAX_COMPILATION_CACHE_MAX_SIZE={limit}; unset it"
        )
    # The folder of XLA's own cache would be part of the key of a program in JAX before 0.12.
    jax.config.update("jax_persistent_cache_enable_xla_caches", "none")
    place = f"{SCHEME}{programs.folder}"
    _opened[place] = programs
    return place


def url_behind(place: str) -> str:
    """Return the URL of the store behind a value of ``jax_compilation_cache_dir``; '' if local."""
    return _opened[place].bucket.url if place in _opened else ""
