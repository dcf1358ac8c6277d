"""ILSVRC2012's tars, read in place: an index of where each image's bytes lie, then plain reads."""

import functools
import hashlib
import os
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from largebatch.data.prepare import names
from largebatch.data.prepare.members import Members, Row, from_rows, join
from largebatch.data.prepare.problems import system_errors
from largebatch.data.prepare.progress import Report
from largebatch.data.prepare.workers import run
from largebatch.errors import DataError
from largebatch.files import replacing

_CHUNK = 1 << 22  # bytes read at a time for a checksum
_LONGEST_HEADER = 1 << 16  # bytes; those of ImageNet have one block of 512
_LONGEST_NAME = 255


@dataclass(frozen=True)
class Tar:
    """A tar whose images lie at known offsets.

    Attributes:
        path: The file.
    """

    path: Path

    def read(self, row: Row) -> bytes:
        """As of `Archive.read`."""
        name, _, offset, size = row
        try:
            data = os.pread(_descriptor(self.path), size, offset)
        except OSError as error:
            raise DataError(f"{self.path}: {name} cannot be read: {error.strerror}") from error
        if len(data) != size:
            raise DataError(
                f"{self.path} ends within {name}; it has shrunk since the preparation began"
            )
        return data

    def expect(self, rows: Sequence[Row]) -> None:
        """As of `Archive.expect`: in the order of the disk, many at once."""
        if hasattr(os, "posix_fadvise"):
            file = _descriptor(self.path)
            for _, _, offset, size in sorted(rows, key=lambda row: row[2]):
                os.posix_fadvise(file, offset, size, os.POSIX_FADV_WILLNEED)

    def where(self, row: Row) -> str:
        """As of `Archive.where`."""
        return f"{row[0]} in {self.path}"


@dataclass(frozen=True)
class ClassTar:
    """A class's tar within the training tar.

    Attributes:
        path: The training tar.
        name: Such as `n01440764.tar`.
        offset: Of its first byte.
        size: Its bytes.
    """

    path: Path
    name: str
    offset: int
    size: int


def index(path: Path, split: str, cache: Path, *, processes: int, report: Report) -> Members:
    """Finds the images of a tar.

    Args:
        path: The tar as image-net.org delivers it.
        split: `train` or `validation`.
        cache: File that keeps the result, and gives it back while the tar is the same file.
        processes: How many to use.
        report: Told of the class tars that are done and how many there are.

    Returns:
        The images in the tar's order.

    Raises:
        DataError: The tar is no tar, ends early or holds anything but the expected names.
        OSError: It cannot be opened, or the cache not written.
    """
    stat = path.stat()
    identity = np.array([stat.st_size, stat.st_mtime_ns], np.int64)
    kept = _kept(cache, identity)
    if kept is not None:
        return kept
    found = _train(path, processes, report) if split == "train" else _validation(path, stat.st_size)
    with replacing(cache) as stream:
        columns = dict(zip(Members.__dataclass_fields__, found.columns(), strict=True))
        np.savez(stream, identity=identity, **columns)
    return found


def _kept(cache: Path, identity: np.ndarray) -> Members | None:
    """What an earlier call has found; None where the file is absent, damaged or of another tar."""
    try:  # of what is in it nothing runs: an array of Python objects is an error, too
        with cache.open("rb") as stream, np.load(stream, allow_pickle=False) as kept:
            if np.array_equal(kept["identity"], identity):
                return Members(*(kept[name] for name in Members.__dataclass_fields__))
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, zlib.error):
        pass
    return None


def md5(path: Path) -> str:
    """MD5 of a file, hexadecimal.

    Raises:
        DataError: It cannot be read.
    """
    digest = hashlib.md5(usedforsecurity=False)
    with system_errors(path), path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _train(path: Path, processes: int, report: Report) -> Members:
    tars: dict[str, ClassTar] = {}
    with path.open("rb", buffering=0) as stream:
        for member in _members(stream, path, str(path), end=path.stat().st_size):
            names.tar_label(member.name, str(path))
            if member.name in tars:
                raise DataError(f"{path}: {member.name} occurs twice")
            tars[member.name] = ClassTar(path, member.name, member.offset_data, member.size)
    if not tars:
        return from_rows([])
    parts: dict[str, Members] = {}
    for tar, part in run(_index_class, list(tars.values()), processes):
        parts[tar.name] = part
        report(len(parts), len(tars))
    return join([parts[name] for name in tars])


def _index_class(tar: ClassTar) -> tuple[ClassTar, Members]:
    where = f"{tar.path}: {tar.name}"
    label = names.tar_label(tar.name, str(tar.path))
    with tar.path.open("rb", buffering=0) as stream:
        stream.seek(tar.offset)
        rows = [
            (
                member.name,
                names.image_label_in_class(member.name, label, where, ("train",)),
                member.offset_data,
                member.size,
            )
            for member in _members(stream, tar.path, where, end=tar.offset + tar.size)
        ]
    return tar, from_rows(rows)


def _validation(path: Path, end: int) -> Members:
    with path.open("rb", buffering=0) as stream:
        return from_rows(
            [
                (
                    member.name,
                    names.image_label(member.name, str(path), ("validation",)),
                    member.offset_data,
                    member.size,
                )
                for member in _members(stream, path, str(path), end=end)
            ]
        )


def _members(stream: BinaryIO, path: Path, where: str, *, end: int) -> Iterator[tarfile.TarInfo]:
    """The members of a tar that begins where the stream stands; plain files, whole and closed."""
    remedy = "get the tar again"
    try:
        with system_errors(path), tarfile.open(fileobj=_Headers(stream), mode="r:") as tar:
            while (member := tar.next()) is not None:
                _check(member, where, end)
                yield member
                tar.members.clear()  # it would keep all
            # A damaged header ends the iteration as the end does, but is not the block of zeros.
            at = tar.offset
    # A header can be wrong in ways for which `tarfile` has no word of its own.
    except (tarfile.TarError, EOFError, ValueError, OverflowError, RecursionError) as error:
        raise DataError(f"{where} is no complete tar ({error}); {remedy}") from error
    with system_errors(path):
        after = os.pread(stream.fileno(), tarfile.BLOCKSIZE, at)
    if at + tarfile.BLOCKSIZE > end or after != bytes(tarfile.BLOCKSIZE):
        raise DataError(f"{where} is damaged or ends early at byte {at:,} of {path}; {remedy}")


def _check(member: tarfile.TarInfo, where: str, end: int) -> None:
    """Raises a DataError unless a member is a plain file that ends before `end`."""
    remedy = "get the tar again"
    if len(member.name) > _LONGEST_NAME:
        raise DataError(
            f"{where}: unexpected member with a name of {len(member.name):,} characters, "
            f"{member.name[:20]!r}…; {remedy}"
        )
    if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.sparse is not None:
        kind = "sparse" if member.sparse is not None else f"type {member.type!r}"
        raise DataError(f"{where}: member {member.name!r} is no plain file ({kind}); {remedy}")
    if member.size < 0 or member.offset_data + member.size > end:
        raise DataError(f"{where} ends within {member.name!r}; {remedy}")


class _Headers:
    """A file of which `tarfile` reads headers alone, which are short.

    It trusts what a header says of its own length, up to reading all of a file into memory, and in
    one format looks for a number until it comes, beyond the end of the file.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self.seek, self.tell = stream.seek, stream.tell
        self._stream = stream
        self._ended = 0

    def read(self, size: int) -> bytes:
        """Reads a header.

        Raises:
            tarfile.ReadError: Of an impossible length, or again and again beyond the end.
        """
        if not 0 <= size <= _LONGEST_HEADER:
            raise tarfile.ReadError(f"a header of {size:,} bytes")
        data = self._stream.read(size)
        self._ended = self._ended + 1 if not data and size else 0
        if self._ended > 2:
            raise tarfile.ReadError("unexpected end of data")
        return data


@functools.cache
def _descriptor(path: Path) -> int:
    """An open file, one for each process."""
    return os.open(path, os.O_RDONLY)
