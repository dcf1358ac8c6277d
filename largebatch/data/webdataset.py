"""`webdataset:PATTERN`: tars of images, each followed or preceded by its label, read at random.

A member `KEY.EXTENSION` belongs to the sample KEY, which ends at the first dot of the file's name.
The members of a sample are next to each other (https://github.com/webdataset/webdataset). The order
of the samples is that of the tars by name, and within each of its members.
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from largebatch.data import shard_files
from largebatch.data.folder import SUFFIXES
from largebatch.data.index import IndexedShards, positions
from largebatch.data.sharded import ShardedRecords
from largebatch.data.sources import SourceOptions
from largebatch.data.storage import File, Storage
from largebatch.errors import DataError, one_line

_FORM = shard_files.Form("webdataset", "WebDataset", r"\.tar$", "-0000.tar")
_IMAGES = tuple(suffix.removeprefix(".") for suffix in SUFFIXES)
_DOTTED = tuple(SUFFIXES)
_LABELS = ("cls", "json")  # the first that a sample has is read
_JSON_KEYS = ("label", "cls", "class")
_BLOCK = 512
_SCANNED = 8 * _BLOCK  # bytes that hold a label and the headers around it
_LONGEST = 1 << 20  # bytes of a label or of an extended header
_INFO = "_info.json"  # as timm writes it


class Member(NamedTuple):
    """A file in a tar."""

    name: str
    offset: int
    size: int


@dataclass(frozen=True, eq=False)
class TarShards(IndexedShards):
    """Tars of samples; `rows` has offset and bytes of each image, and its label."""

    def open(self, shard: int) -> "_Samples":
        return _Samples(self.storage.open(self.paths[shard]), self.rows[shard])


class _Samples:
    """An open tar; reading releases the interpreter lock."""

    def __init__(self, file: File, rows: np.ndarray) -> None:
        self._file = file
        self._rows = rows

    def read(self, row: int) -> tuple[bytes, int]:
        return self.read_rows([row])[0]

    def read_rows(self, rows: Sequence[int]) -> list[tuple[bytes, int]]:
        found = self._rows[list(rows)].tolist()
        spans = [(row, at, size) for row, (at, size, _) in zip(rows, found, strict=True)]
        images = self._file.read_spans(spans)
        return [(image, label) for image, (_, _, label) in zip(images, found, strict=True)]


def open_webdataset(spec: str, split: str, options: SourceOptions) -> ShardedRecords:
    """Open a split of tars in the form of WebDataset.

    A sample has one image (jpg, png, webp, …) and its label, an integer: `KEY.cls`, or `label`,
    `cls` or `class` in `KEY.json`. Other members are left out. The files of a split are found by
    their names; see `shard_files.of_split`. Where there is an `_info.json`, its counts are
    verified.

    Args:
        spec: `webdataset:PATH`, a directory of tars or a pattern of their names.
        split: `train` or `validation`.
        options: `classes` is the number of classes where no `labels.txt` beside the tars names
            them.

    Returns:
        The split.

    Raises:
        DataError: Tars are absent or incomplete, or a sample is not of that form.
    """
    found = shard_files.of_split(spec, split, _FORM, options)
    stated = _stated(found)
    rows = tuple(positions(spec, "webdataset", found.paths, scan, found.storage))
    lengths = tuple(map(len, rows))
    for path, length in zip(found.paths, lengths, strict=True):
        if stated.get(os.path.basename(path), length) != length:
            raise DataError(
                f"{path} holds {length:,} samples, and {_INFO} says "
                f"{stated[os.path.basename(path)]:,}; restore the file or write the tars again"
            )
    if not sum(lengths):
        raise DataError(
            f"{found.directory}: the {len(found.names)} tars of {found.own} hold no sample; write "
            "them again"
        )
    classes = shard_files.class_names(found.storage, options.classes)
    note = f"{found.directory}, split {found.own}"
    shards = TarShards(found.paths, lengths, rows, found.storage)
    return ShardedRecords(spec, split, shards, classes, note)


def scan(path: str, storage: Storage) -> np.ndarray:
    """Return offset and bytes of the image and the label of each sample, int64 (n, 3).

    Raises:
        DataError: It is not a complete tar of samples.
    """
    file = storage.open(path, scan=_SCANNED)
    rows: list[tuple[int, int, int]] = []
    key: tuple[str, str] = ("", "")
    image: Member | None = None
    labels: dict[str, Member] = {}
    other = ""  # an image with a further dot in its name, such as KEY.left.jpg

    def finish() -> None:
        kind = next((kind for kind in _LABELS if kind in labels), None)
        if image and kind:
            rows.append((image.offset, image.size, _label(file, labels[kind], kind)))
        elif image or (kind == "cls" and not other):  # a json alone may describe the tar
            raise ValueError(f"sample {key[1]!r} has no {'label' if image else 'image'}")
        elif other:
            raise ValueError(
                f"{other!r} has a dot before its extension, and a sample's name ends at the first "
                "dot; rename the members of such samples"
            )

    try:
        for member in members(file):
            folder, _, name = member.name.rpartition("/")
            stem, _, extension = name.partition(".")
            extension = extension.lower()
            if (folder, stem) != key:
                finish()
                key, image, labels, other = (folder, stem), None, {}, ""
            if extension in _IMAGES:
                if image is not None:
                    raise ValueError(f"sample {stem!r} has two images")
                image = member
            elif extension in _LABELS:
                labels[extension] = member
            elif extension.endswith(_DOTTED):
                other = other or member.name
        finish()
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path} is not a complete tar of samples: {one_line(error)}; restore the file or "
            "write the tars again"
        ) from error
    return np.array(rows, np.int64).reshape(-1, 3)


def members(file: File) -> Iterator[Member]:
    """Yield the plain files of a tar, and the hard links to them, in order; contents are not read.

    POSIX ustar with the extended headers of pax and the long names of GNU. `tarfile` takes several
    times as long, which counts for the millions of members of ImageNet.

    Raises:
        ValueError: The tar is damaged or ends early, or holds what is not a file.
        OSError: It cannot be read.
    """
    end = file.size
    at = 0
    name, target, size = "", "", -1  # of the next member, from an extended header
    seen: dict[str, Member] = {}
    while True:
        if at + _BLOCK > end:
            raise ValueError(f"it ends at byte {end:,} without the mark of its end")
        header = file.read(at, _BLOCK)
        if header == bytes(_BLOCK):
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
            if kind in b"\x000":
                seen[own] = Member(own, start, length)
                yield seen[own]
            elif kind == b"1":
                to = target or header[157:257].partition(b"\0")[0].decode(errors="surrogateescape")
                if to not in seen:
                    raise ValueError(f"{own!r} is a link to {to!r}, which is not before it")
                yield seen[to]._replace(name=own)
            elif kind == b"2" and own.lower().endswith((*SUFFIXES, *_LABELS)):
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


def _label(file: File, member: Member, extension: str) -> int:
    """Return the label in a member; raises a ValueError if it holds none."""
    if member.size > _LONGEST:
        raise ValueError(f"{member.name!r} has {member.size:,} bytes")
    data = file.read(member.offset, member.size)
    try:
        if extension == "cls":
            label = int(data)
        else:
            value = json.loads(data)
            stored = next(value[key] for key in _JSON_KEYS if key in value)
            if isinstance(stored, bool | float):
                raise TypeError
            label = int(stored)
        if not -(2**63) <= label < 2**63:
            raise ValueError
        return label
    except (ValueError, TypeError, StopIteration, RecursionError) as error:
        raise ValueError(f"{member.name!r} has no label, an integer: {data[:40]!r}") from error


def _stated(found: shard_files.Found) -> dict[str, int]:
    """Return the number of samples of each tar that `_info.json` states, if it exists.

    Its form is {"splits": {NAME: {"filenames": […], "shard_lengths": […]}}}.
    """
    path = os.path.join(found.directory, _INFO)
    if not found.storage.holds(_INFO):
        return {}
    try:
        splits = json.loads(found.storage.text(_INFO))["splits"].values()
        stated = {
            str(name): int(length)
            for split in splits
            for name, length in zip(split["filenames"], split["shard_lengths"], strict=True)
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{path} cannot be read ({one_line(error)}); restore or remove it"
        ) from error
    own = [name for name in stated if shard_files.word_of(name) == found.own]
    if missing := sorted(set(own) - set(found.names)):
        raise DataError(
            f"{found.directory} lacks {missing[0]} of {len(own):,} tars that {_INFO} names; "
            "restore the files or correct the pattern"
        )
    return stated
