"""Where the checkpoints of a run are: a folder on a disk, or one in an object store.

A file appears complete or not at all: on a disk by a rename, in a store because an object does.
"""

import contextlib
import os
import shutil
from pathlib import Path
from typing import Protocol

from largebatch.errors import CheckpointError
from largebatch.object_store import Bucket

_HIDDEN = ".{}.partial"
"""Name of a file while it is written."""


class Place(Protocol):
    """A folder of checkpoint files; names are relative to it.

    Errors are `OSError` or `StorageError`.
    """

    url: str
    """The folder, for messages: a path or a URL."""

    def names(self) -> list[str]:
        """Return the names of the files in the folder, without folders and temporary files."""
        ...

    def read(self, name: str, begin: int = 0, size: int | None = None) -> bytes:
        """Return bytes of a file from the byte ``begin``, at most ``size``; None: all.

        Raises:
          FileNotFoundError: there is no such file.
        """
        ...

    def write(self, name: str, content: bytes) -> None:
        """Create or replace a file atomically and durably."""
        ...

    def rename(self, name: str, new: str) -> None:
        """Give a file another name, which must be free."""
        ...

    def delete(self, name: str) -> None:
        """Delete a file."""
        ...

    def free_bytes(self) -> int | None:
        """Return the free space; None: not limited."""
        ...


class LocalPlace:
    """A folder on a disk."""

    def __init__(self, folder: Path) -> None:
        """Change nothing yet."""
        self.folder = folder.absolute()
        self.url = str(self.folder)

    def create(self) -> None:
        """Create the folder, and remove what a killed process was writing.

        Raises:
          CheckpointError: the folder cannot be created or written to.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for name in self.names():
                (self.folder / _HIDDEN.format(name)).unlink(missing_ok=True)
        except OSError as error:
            raise CheckpointError(
                f"{self.folder} cannot be written to ({error}); check its permissions"
            ) from error

    def names(self) -> list[str]:
        if not self.folder.is_dir():
            return []
        with os.scandir(self.folder) as found:
            return sorted(e.name for e in found if e.name[0] != "." and e.is_file())

    def read(self, name: str, begin: int = 0, size: int | None = None) -> bytes:
        with (self.folder / name).open("rb") as stream:
            stream.seek(begin)
            return stream.read(-1 if size is None else size)

    def write(self, name: str, content: bytes) -> None:
        # Creates no folder: one that was removed must not appear again.
        partial = self.folder / _HIDDEN.format(name)
        try:
            with partial.open("wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            partial.replace(self.folder / name)
        except BaseException:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
            raise
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, name: str, new: str) -> None:
        (self.folder / name).rename(self.folder / new)

    def delete(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)

    def free_bytes(self) -> int | None:
        return shutil.disk_usage(self.folder).free


class BucketPlace:
    """A folder in an object store."""

    def __init__(self, bucket: Bucket) -> None:
        """Send no request yet."""
        self._bucket = bucket
        self.url = bucket.url

    def names(self) -> list[str]:
        return sorted(self._bucket.entries())

    def read(self, name: str, begin: int = 0, size: int | None = None) -> bytes:
        entry = self._bucket.entries().get(name)
        if entry is None:
            raise FileNotFoundError(f"{self.url}/{name}")
        length = entry.size - begin if size is None else min(size, entry.size - begin)
        found = self._bucket.read_range(name, begin, length, entry) if length > 0 else b""
        if found is None:
            raise FileNotFoundError(f"{self.url}/{name} was replaced while it was read")
        return found

    def write(self, name: str, content: bytes) -> None:
        self._bucket.write(name, content)

    def rename(self, name: str, new: str) -> None:
        self._bucket.copy(name, new)
        self._bucket.delete(name)

    def delete(self, name: str) -> None:
        self._bucket.delete(name)

    def free_bytes(self) -> int | None:
        return None
