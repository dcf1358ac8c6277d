"""The members of a tar and where they are, without reading their contents."""

from collections.abc import Iterator
from typing import NamedTuple

from largebatch.data.folder import SUFFIXES
from largebatch.data.ranges import Window

_BLOCK = 512
_LONGEST = 1 << 20  # bytes of an extended header
_PADDING = 2 * 20 * _BLOCK  # bytes after the end within which another tar would begin
_READ = (*SUFFIXES, ".cls", ".json")


class Member(NamedTuple):
    """A file in a tar."""

    name: str
    offset: int
    size: int


def members(file: Window, begin: int = 0, size: int | None = None) -> Iterator[Member]:
    """Yield the plain files of a tar, and the hard links to them, in order; contents are not read.

    POSIX ustar with the extended headers of pax and the long names of GNU. `tarfile` takes several
    times as long, which counts for the millions of members of ImageNet.

    Args:
        file: The file.
        begin: First byte of the tar in it.
        size: Bytes of the tar; None is all of the file.

    Raises:
        ValueError: The tar is damaged or ends early, or holds what is not a file.
        OSError: It cannot be read.
    """
    at, end = begin, begin + (file.size if size is None else size)
    name, target, size = "", "", -1  # of the next member, from an extended header
    seen: dict[str, Member] = {}
    while True:
        if at + _BLOCK > end:
            raise ValueError(f"it ends at byte {end:,} without the mark of its end")
        header = file.read(at, _BLOCK)
        if header == bytes(_BLOCK):
            if any(file.read(at, min(_PADDING, end - at))):
                raise ValueError(
                    f"after its end at byte {at:,} another one begins; join tars by tar "
                    "--concatenate, or keep them apart"
                )
            return
        if _octal(header[148:156]) != sum(header) - sum(header[148:156]) + 8 * 32:
            raise ValueError(f"the header at byte {at:,} has another checksum")
        kind = header[156:157]
        length = _octal(header[124:136]) if size < 0 or kind in b"xgLK" else size
        length = 0 if kind in b"12345" else length  # links and folders have no content
        start = at + _BLOCK
        if length < 0 or start + length > end:
            raise ValueError(f"it ends at byte {end:,}, expected {start + length:,}")
        if kind in b"xgLK" and length > _LONGEST:
            raise ValueError(f"the header at byte {at:,} has {length:,} bytes")
        if kind == b"x":
            extended = _extended(file.read(start, length))
            name, target = extended.get("path", name), extended.get("linkpath", target)
            size = int(extended.get("size", size))
        elif kind in b"LK":
            text = file.read(start, length).rstrip(b"\0").decode("utf-8", "surrogateescape")
            name, target = (text, target) if kind == b"L" else (name, text)
        elif kind != b"g":
            own = name or _name(header)
            if kind in b"\x0007":
                seen[own] = Member(own, start, length)
                yield seen[own]
            elif kind == b"1":
                to = target or header[157:257].partition(b"\0")[0].decode(errors="surrogateescape")
                if to not in seen:
                    raise ValueError(f"{own!r} is a link to {to!r}, which is not before it")
                yield seen[to]._replace(name=own)
            elif kind == b"2" and own.lower().endswith(_READ):
                raise ValueError(f"{own!r} is a symbolic link; write the tar with --dereference")
            name, target, size = "", "", -1
        at = start + -(-length // _BLOCK) * _BLOCK


def _extended(data: bytes) -> dict[str, str]:
    """Return the records `LENGTH KEY=VALUE` of an extended header."""
    found, at = {}, 0
    while at < len(data):
        number, _, _ = data[at : at + 20].partition(b" ")
        length = int(number)
        if length <= len(number):
            raise ValueError("an extended header is damaged")
        key, _, value = data[at + len(number) + 1 : at + length - 1].partition(b"=")
        if key.startswith(b"GNU.sparse"):
            raise ValueError("it holds a sparse file")
        found[key.decode(errors="replace")] = value.decode("utf-8", "surrogateescape")
        at += length
    return found


def _octal(text: bytes) -> int:
    """Return a number of a header, in octal digits or, with the first bit set, in binary."""
    if text[0] & 0x80:
        return int.from_bytes(text[1:], "big")
    return int(text.rstrip(b"\0 ") or b"0", 8)


def _name(header: bytes) -> str:
    name = header[:100].partition(b"\0")[0]
    prefix = header[345:500].partition(b"\0")[0] if header[257:263] == b"ustar\0" else b""
    return (prefix + b"/" + name if prefix else name).decode("utf-8", "surrogateescape")
