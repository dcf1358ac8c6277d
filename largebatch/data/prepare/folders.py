"""Extracted images: `train/nXXXXXXXX/*.JPEG`, and `val/` likewise or flat."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from largebatch.data.prepare import names
from largebatch.data.prepare.members import Members, Row, from_rows
from largebatch.data.prepare.problems import system_errors
from largebatch.data.prepare.progress import Report
from largebatch.errors import DataError

FOLDERS = {"train": "train", "validation": "val"}


@dataclass(frozen=True)
class Folder:
    """A folder of images.

    Attributes:
        path: The folder.
        flat: Whether the images lie in it and not in a folder for each class.
    """

    path: Path
    flat: bool

    def read(self, row: Row) -> bytes:
        """As of `Archive.read`."""
        path = self._path(row)
        with system_errors(path):
            data = path.read_bytes()
        if len(data) != row[3]:
            raise DataError(
                f"{path} has {len(data):,} bytes, {row[3]:,} when the preparation began; "
                "leave the images alone until it is done"
            )
        return data

    def expect(self, rows: Sequence[Row]) -> None:
        """As of `Archive.expect`; opening each file for it would not pay."""

    def where(self, row: Row) -> str:
        """As of `Archive.where`."""
        return str(self._path(row))

    def _path(self, row: Row) -> Path:
        name, label, _, _ = row
        return self.path / name if self.flat else self.path / names.classes()[label] / name


def index(path: Path, split: str, *, report: Report) -> tuple[Folder, Members]:
    """Finds the images of a folder.

    Args:
        path: The folder.
        split: `train` or `validation`; only the latter may be flat.
        report: Told of the class folders that are done and how many there are.

    Returns:
        The folder and its images, in the order of their names.

    Raises:
        DataError: It cannot be read or holds anything but the expected names.
    """
    entries = _entries(path)
    flat = split == "validation" and not any(entry.is_dir() for entry in entries)
    if flat:
        rows = [
            (entry.name, names.image_label(entry.name, str(path), ("validation",)), 0, _size(entry))
            for entry in entries
        ]
        return Folder(path, flat), from_rows(rows)
    labels = [names.class_label(entry.name, str(path)) for entry in entries]
    rows = []
    for done, (entry, label) in enumerate(zip(entries, labels, strict=True), start=1):
        rows += [
            (
                image.name,
                names.image_label_in_class(image.name, label, entry.path),
                0,
                _size(image),
            )
            for image in _entries(Path(entry.path))
        ]
        report(done, len(entries))
    return Folder(path, flat), from_rows(rows)


def _entries(path: Path) -> list[os.DirEntry]:
    with system_errors(path), os.scandir(path) as entries:
        return sorted(entries, key=lambda entry: entry.name)


def _size(entry: os.DirEntry) -> int:
    if not entry.is_file():
        raise DataError(f"{entry.path} is no file; remove it")
    return entry.stat().st_size
