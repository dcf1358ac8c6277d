"""Image files in a folder or a tar: ImageNet's two tars, or class folders.

Tars are not trusted: they are read in place and never unpacked. Files with another suffix and
hidden ones, such as those that macOS adds, are left out.
"""

import contextlib
import hashlib
import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from largebatch.data import imagenet
from largebatch.data.folder import SUFFIXES, class_order
from largebatch.data.prefetch import in_threads
from largebatch.data.prepare import jobs, records
from largebatch.data.prepare.inputs import Example, Input, Split, shard_ranges
from largebatch.data.progress import progress
from largebatch.data.randomness import held_out
from largebatch.data.ranges import Disk, Window
from largebatch.data.source import SPLIT_WORDS, SPLITS, check_class_names, own_name
from largebatch.data.tar import Member, members
from largebatch.errors import ConfigError, DataError, one_line
from largebatch.files import printable

_LARGEST_IMAGE = 1 << 28  # bytes; each image is read at once
_HEADERS = 512  # bytes that are read at a time of a tar


class Row(NamedTuple):
    """An image file."""

    key: str
    label: int
    path: str
    """Below the folder, or in the tar."""
    offset: int
    """First byte in the tar; 0 in a folder."""
    size: int


@dataclass(frozen=True)
class Rows:
    """Image files, read in their order.

    Attributes:
        source: The folder or the tar.
        rows: The files.
    """

    source: Path
    rows: Sequence[Row]

    def __iter__(self) -> Iterator[Example]:
        with contextlib.ExitStack() as stack:
            is_tar = self.source.is_file()
            tar = stack.enter_context(self.source.open("rb", buffering=0)).fileno() if is_tar else 0
            if is_tar and hasattr(os, "posix_fadvise"):  # read ahead in the order of the disk
                for row in sorted(self.rows, key=lambda row: row.offset):
                    os.posix_fadvise(tar, row.offset, row.size, os.POSIX_FADV_WILLNEED)
            for row in self.rows:
                path = self.source / row.path
                image = os.pread(tar, row.size, row.offset) if is_tar else path.read_bytes()
                if len(image) != row.size:
                    raise DataError(
                        f"{printable(path)} has {len(image):,} bytes, {row.size:,} when the "
                        "preparation began; give the command again when it does not change"
                    )
                yield Example(row.key, image, row.label, printable(path))


def _listed(path: Path, where: str, begin: int = 0, size: int | None = None) -> list[Member]:
    """Return the files of a tar, without those that begin with a dot.

    Args:
        path: The file.
        where: The tar for messages.
        begin: First byte of the tar within the file.
        size: Bytes of the tar; None is all of the file.

    Raises:
        DataError: It is damaged or ends early.
    """
    try:
        file = Window(Disk(str(path.parent)), path.name, _HEADERS)
        found = list(members(file, begin, size))
    except ValueError as error:
        raise DataError(
            f"{where} is not a complete tar ({one_line(error)}); get it again, unpack it if it is "
            "compressed, or use a folder"
        ) from error
    return [m for m in found if not m.name.rpartition("/")[2].startswith(".")]


def find_tars(folder: Path, *, partial: bool = False, shards: int = 0, processes: int = 1) -> Input:
    """Find the images of the two tars of image-net.org.

    Args:
        folder: The folder of both tars.
        partial: Accept fewer images, or one tar.
        shards: Number of shards of each split; 0 is that of TFDS.
        processes: Number of processes.

    Raises:
        DataError: A tar is missing, damaged or incomplete, or holds anything else.
    """
    paths = {split: folder / name for split, name in imagenet.TARS.items()}
    paths = {s: path for s, path in paths.items() if path.is_file()}  # a pipe would never end
    found = {}
    for split, path in paths.items():
        members = _listed(path, str(path))
        if split == "validation":
            rows = [_imagenet_row(str(path), member, "", ("validation",)) for member in members]
        else:
            _check_once(str(path), [member.name for member in members])
            rows = []
            tasks = [(path, member) for member in members]
            with (
                progress(f"indexing {path.name}", "classes", len(tasks)) as advance,
                jobs.run(_class_rows, tasks, processes) as parts,
            ):
                for part in parts:
                    rows += part
                    advance(1)
        found[split] = Rows(path, rows)
    return _imagenet(f"--tars={folder}", found, partial, shards)


def _class_rows(task: tuple[Path, Member]) -> list[Row]:
    """Return the images of a class's tar within the training tar."""
    path, tar = task
    where, folder = f"{path}: {printable(tar.name)}", imagenet.tar_class(tar.name, str(path))
    found = _listed(path, where, tar.offset, tar.size)
    return [_imagenet_row(where, member, folder, ("train",)) for member in found]


def _imagenet_row(where: str, member: Member, folder: str, kinds: Sequence[str]) -> Row:
    """Return an image of ImageNet, named by its last part; see `imagenet.image_label`."""
    name = member.name.rpartition("/")[2]
    return Row(name, imagenet.image_label(name, where, kinds, folder), *member)


def _imagenet(where: str, found: dict[str, Rows], partial: bool, shards: int) -> Input:
    """Check the images of ImageNet; order and divide them as TFDS does.

    The order is that of the MD5 of the split's name and the image's.
    """
    from tensorflow_datasets.core.hashing import Hasher

    missing = [split for split in SPLITS if split not in found]
    if not found or (missing and not partial):
        files = " and ".join(imagenet.TARS[split] for split in missing)
        remedy = ", or use --allow_partial" if found else ""
        raise DataError(
            f"{where}: no {' and no '.join(missing)} images; add those of {files}{remedy}"
        )
    splits = []
    for split, files in found.items():
        if not partial:
            imagenet.check_counts(where, split, [row.label for row in files.rows])
        hasher = Hasher(split)
        rows = sorted(files.rows, key=lambda row: hasher.hash_key(row.key))
        # Without sizes: corrupt images may be replaced before the preparation continues.
        identity = [row[:2] for row in rows]
        splits.append(_split(split, Rows(files.source, rows), shards, identity))
    return Input(records.IMAGENET, imagenet.classes(), tuple(splits))


def _split(name: str, files: Rows, shards: int, identity: Sequence[tuple]) -> Split:
    """Check the files of a split, in their final order, and divide them into shards."""
    where, rows = str(files.source), files.rows
    for row in rows:
        if not 0 < row.size <= _LARGEST_IMAGE:
            raise DataError(
                f"{where}: {row.path!a} has {row.size:,} bytes, expected 1 to {_LARGEST_IMAGE:,}; "
                "get it again or remove it"
            )
    _check_once(where, [row.key for row in rows])
    size = sum(row.size for row in rows)
    ranges = shard_ranges(name, len(rows), size, shards, rows[0].key)
    parts = [Rows(files.source, rows[first:last]) for first, last in ranges]
    text = "\n".join(map(repr, identity)).encode()
    return Split(name, parts, size, hashlib.sha256(text).hexdigest()[:16])


def _check_once(where: str, found: Sequence[str]) -> None:
    """Raise a DataError where there is nothing, or a name occurs twice."""
    if not found:
        raise DataError(f"{where} holds no images; get it again, or correct the path")
    name, count = Counter(found).most_common(1)[0]
    if count > 1:
        raise DataError(f"{where}: expected {name!a} once, got it {count} times; write it again")


class _Image(NamedTuple):
    """An image in class folders."""

    split: str
    """Name of the folder of its split; '' without one."""
    folder: str
    """That of its class; '' for ImageNet's validation images without one."""
    file: str
    """Its path within the folder of its class."""
    member: Member

    @property
    def path(self) -> str:
        """The path by which `data.validation_split` chooses: [SPLIT/]CLASS/FILE."""
        return "/".join(filter(None, self[:3]))


def find_images(
    source: Path, *, validation: float = 0.0, partial: bool = False, shards: int = 0
) -> Input:
    """Find the images of class folders, or of a tar of them that is not compressed.

    They are ImageNet if they have its 1,000 classes, or validation images `ILSVRC2012_val_…` beside
    each other: order, labels and shards are then those of TFDS. Otherwise the order is that of the
    source `folder:`, or of the tar.

    Args:
        source: Folder of ``train/CLASS/`` and ``val/CLASS/``, or of ``CLASS/``; or a tar of it.
        validation: Share of each class that becomes the validation split where there is none, as
            `data.validation_split` chooses it.
        partial: The images are a part of ImageNet.
        shards: Number of shards of each split; 0 chooses it by the bytes, as TFDS does.

    Raises:
        ConfigError: There is a validation split and ``validation``, or that is out of range.
        DataError: The source is damaged or not of that form.
    """
    where = f"--images={source}"
    if not 0 <= validation < 1:
        raise ConfigError(
            f"--validation: expected at least 0 and below 1, got {validation:g}; use 0.1"
        )
    if not source.exists():
        raise DataError(f"{where} does not exist; correct the path")
    files = _walk(source) if source.is_dir() else _listed(source, str(source))
    by_split = _by_split(where, [member for member in files if _is_image(member.name)])
    kept = sum(map(len, by_split.values()))
    if kept < len(files):
        print(f"{source}: {len(files) - kept:,} other files are left out", flush=True)
    folders = {image.folder for images in by_split.values() for image in images}
    if (partial or "" in folders or folders == set(imagenet.classes())) and not validation:
        found = {
            split: Rows(
                source, [_imagenet_row(where, i.member, i.folder, imagenet.SPLITS) for i in images]
            )
            for split, images in by_split.items()
        }
        return _imagenet(where, found, partial, shards)
    by_split = _with_validation(where, by_split, validation)
    classes = class_order({image.folder for image in by_split["train"]})
    labels = {name: label for label, name in enumerate(classes)}
    splits = []
    for split, images in by_split.items():
        rows = [Row(f"{i.folder}/{i.file}", labels[i.folder], *i.member) for i in images]
        if source.is_dir():  # files by name, then the folders within the class
            rows.sort(key=lambda row: (row.label, *row.key.rpartition("/")[::2]))
        splits.append(_split(split, Rows(source, rows), shards, rows))
    return Input("images", tuple(classes), tuple(splits))


def _walk(root: Path) -> list[Member]:
    """Return all files of a folder; links to class folders are followed, those below are not."""
    paths = []
    for folder, inner, files in os.walk(root, followlinks=True):
        below = "" if folder == str(root) else os.path.relpath(folder, root).replace(os.sep, "/")
        if below and below.lower() not in SPLIT_WORDS:  # a link within a class could lead back
            inner[:] = [n for n in inner if not os.path.islink(os.path.join(folder, n))]
        paths += [f"{below}/{name}".removeprefix("/") for name in files]
    sizes = in_threads(lambda path: _size(os.path.join(root, path)), paths, Disk.scanners)
    return [Member(path, 0, size) for path, size in zip(paths, sizes, strict=True)]


def _size(path: str) -> int:
    """Return the bytes of a file; 0, as no image has, for a pipe or a link to nothing."""
    with contextlib.suppress(FileNotFoundError):
        found = os.stat(path)
        return found.st_size if stat.S_ISREG(found.st_mode) else 0
    return 0


def _is_image(path: str) -> bool:
    """Return whether a path has the suffix of an image, and no part of it is hidden."""
    hidden = any(part.startswith(".") for part in path.removeprefix("./").split("/"))
    return path.lower().endswith(SUFFIXES) and not hidden


def _by_split(where: str, found: Sequence[Member]) -> dict[str, list[_Image]]:
    """Return the images of each split; without folders of splits, all are training images."""
    placed = [(member, member.name.removeprefix("./").split("/")) for member in found]
    images = []
    for member, parts in placed:
        at = next((i for i, part in enumerate(parts[:-1]) if part.lower() in SPLIT_WORDS), None)
        if at is not None and at < len(parts) - 2:
            images.append(_Image(parts[at], parts[at + 1], "/".join(parts[at + 2 :]), member))
        elif at is not None and imagenet.is_validation(parts[-1]):
            images.append(_Image(parts[at], "", parts[-1], member))
    if not images and found:
        paths = [parts for _, parts in placed]
        first, last = min(paths), max(paths)  # all share what these two share
        above = next((i for i, part in enumerate(first[:-1]) if part != last[i]), 0)
        parts_below = [(member, parts[above:]) for member, parts in placed]
        return {"train": [_Image("", p[0], "/".join(p[1:]), m) for m, p in parts_below if p[1:]]}
    own = {split: own_name({i.split for i in images}, split, where) for split in SPLITS}
    by_split = {split: [i for i in images if i.split == name] for split, name in own.items()}
    return {split: images for split, images in by_split.items() if images}


def _with_validation(
    where: str, by_split: dict[str, list[_Image]], share: float
) -> dict[str, list[_Image]]:
    """Choose a validation split where there is none; check the classes of both."""
    by_class: dict[str, list[str]] = {}
    for image in by_split.get("train", ()):
        by_class.setdefault(image.folder, []).append(image.path)
    check_class_names(where, sorted(by_class))
    if len(by_class) < 2:
        raise DataError(
            f"{where}: expected images of at least 2 classes, train/CLASS/*.jpg and "
            f"val/CLASS/*.jpg or CLASS/*.jpg, got {' and '.join(by_class) or 'none'}; correct the "
            f"path (suffixes: {' '.join(SUFFIXES)})"
        )
    if "validation" in by_split:
        if share:
            raise ConfigError(f"--validation: {where} has a validation split; leave it out")
        if only := sorted(set(by_class) ^ {image.folder for image in by_split["validation"]}):
            raise DataError(
                f"{where}: class {only[0]!a} has images in one split only; add it to the other"
            )
        return by_split
    if not share:
        raise DataError(
            f"{where} has no val/CLASS/ folders; add them, or use --validation=0.1 to take a tenth "
            "of each class for validation"
        )
    if single := [name for name, paths in by_class.items() if len(paths) < 2]:
        raise DataError(f"{where}: class {single[0]} has 1 image; add some or remove the class")
    taken = set().union(*(held_out(paths, share) for paths in by_class.values()))
    return {
        split: [i for i in by_split["train"] if (i.path in taken) == (split == "validation")]
        for split in SPLITS
    }
