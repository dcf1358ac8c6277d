"""An index of the original tars of ImageNet, which are not trusted.

Tars are read in place. Nothing is unpacked, and any member that is not an image of the expected
name stops the preparation.
"""

import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from largebatch.data.prepare import names
from largebatch.data.prepare.archives import Row, Tar, index_parts
from largebatch.data.prepare.jobs import system_errors
from largebatch.errors import DataError

_LONGEST_HEADER = 1 << 16  # bytes; those of ImageNet have one block of 512
_LONGEST_NAME = 255


@dataclass(frozen=True)
class _TarPart:
    """The validation tar, or a class's tar within the training tar.

    Attributes:
        path: The file.
        where: The tar for messages.
        kinds: The names of images that it may hold.
        label: Label of all of its images; None where each has its own.
        begin: Offset of its first byte in the file.
        end: Offset of the byte after its last.
    """

    path: Path
    where: str
    kinds: tuple[str, ...]
    label: int | None
    begin: int
    end: int


def index_tar(path: Path, split: str, processes: int) -> tuple[Tar, list[Row]]:
    """Find the images of a tar from image-net.org.

    Args:
        path: The tar; that of the training split holds a tar of each class.
        split: `train` or `validation`.
        processes: Number of processes.

    Raises:
        DataError: It is not a complete tar, or holds anything but the expected names.
    """
    with system_errors(path):
        end = path.stat().st_size
    whole = _TarPart(path, str(path), ("validation",), None, 0, end)
    if split == "validation":
        return Tar(path), _index_tar_part(whole)
    parts: dict[str, _TarPart] = {}
    for member in _tar_members(whole):
        if member.name in parts:
            raise DataError(f"{path}: {member.name} occurs twice")
        begin, label = member.offset_data, names.tar_label(member.name, str(path))
        parts[member.name] = _TarPart(
            path, f"{path}: {member.name}", ("train",), label, begin, begin + member.size
        )
    return Tar(path), index_parts(path, _index_tar_part, list(parts.values()), processes)


def _index_tar_part(part: _TarPart) -> list[Row]:
    return [
        Row(
            member.name,
            names.image_label(member.name, part.where, part.kinds, part.label),
            member.offset_data,
            member.size,
        )
        for member in _tar_members(part)
    ]


def _tar_members(part: _TarPart) -> Iterator[tarfile.TarInfo]:
    """Yield the members of a tar, all of which must be plain files, and check that it is complete.

    Raises:
        DataError: It is not so.
    """
    remedy = "get the tar again"
    with system_errors(part.path), part.path.open("rb", buffering=0) as stream:
        stream.seek(part.begin)
        try:
            with tarfile.open(fileobj=_Headers(stream), mode="r:") as tar:
                while (member := tar.next()) is not None:
                    _check_member(member, part)
                    yield member
                    tar.members.clear()  # it would keep all
                # A damaged header ends the iteration like the end of the tar, a block of zeros.
                at = tar.offset
        # `tarfile` has no exception of its own for some damaged headers.
        except (tarfile.TarError, EOFError, ValueError, OverflowError, RecursionError) as error:
            raise DataError(f"{part.where} is not a complete tar ({error}); {remedy}") from error
        after = os.pread(stream.fileno(), tarfile.BLOCKSIZE, at)
    if at + tarfile.BLOCKSIZE > part.end or after != bytes(tarfile.BLOCKSIZE):
        raise DataError(
            f"{part.where} is damaged or ends early at byte {at:,} of {part.path}; {remedy}"
        )


def _check_member(member: tarfile.TarInfo, part: _TarPart) -> None:
    """Raise a DataError unless a member is a plain file that ends within its tar."""
    if len(member.name) > _LONGEST_NAME:
        problem = f"a member has a name of {len(member.name):,} characters, {member.name[:20]!r}…"
    elif member.sparse is not None or member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
        kind = "sparse" if member.sparse is not None else f"type {member.type!r}"
        problem = f"member {member.name!r} is not a plain file ({kind})"
    elif member.size < 0 or member.offset_data + member.size > part.end:
        problem = f"it ends within {member.name!r}"
    else:
        return
    raise DataError(f"{part.where}: {problem}; get the tar again")


class _Headers:
    """A file from which `tarfile` reads only headers, which are short.

    `tarfile` trusts what a header says of its own length, and could read all of a file into memory;
    in one format it looks for a number until it finds it, beyond the end of the file.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self.seek, self.tell = stream.seek, stream.tell
        self._stream = stream
        self._empty_reads = 0

    def read(self, size: int) -> bytes:
        """Read a header.

        Raises:
            tarfile.ReadError: Its length is impossible, or the file has ended.
        """
        if not 0 <= size <= _LONGEST_HEADER:
            raise tarfile.ReadError(f"a header of {size:,} bytes")
        data = self._stream.read(size)
        self._empty_reads = self._empty_reads + 1 if not data and size else 0
        if self._empty_reads > 2:
            raise tarfile.ReadError("unexpected end of data")
        return data
