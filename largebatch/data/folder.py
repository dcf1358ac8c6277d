"""`folder:PATH`: a folder of image files for each class, like torchvision's ImageFolder."""

import os
import shlex
from collections.abc import Iterable, Sequence

import numpy as np

from largebatch.data.prefetch import in_threads
from largebatch.data.randomness import held_out
from largebatch.data.ranges import WHOLE, Disk, RangeSource, Storage, absolute, storage_of
from largebatch.data.source import SPLIT_WORDS, SPLITS, SourceOptions, own_name, unreadable
from largebatch.environment import command_path
from largebatch.errors import DataError

SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


def open_folder(spec: str, split: str, options: SourceOptions) -> RangeSource:
    """Open PATH/train or PATH/val of class folders, or a share of PATH/train or PATH.

    The order is that of torchvision's ImageFolder, classes by name, then folders and files by name;
    but classes named by numbers are in the order of these numbers. Folders within a class folder
    are a part of it. Hidden files, links to folders and files without the suffix of an image are
    left out and counted. Listing takes 1 µs per file.

    Args:
        spec: `folder:PATH`.
        split: `train`; or `validation`: see `SPLITS`.
        options: Only `validation_split`: both splits are then parts of PATH/train or, without it,
            of PATH (see `held_out`); `whole`: class folders in PATH are the validation split; and
            `cache_bytes`.

    Raises:
        DataError: A folder is absent, a class is empty, the splits have different classes, the
            folders of classes are those of whole datasets, or a folder to be split has a validation
            folder or a class of one image.
    """
    root = absolute(spec.partition(":")[2])
    storage, share = storage_of(root, options.cache_bytes), options.validation_split
    if not storage.exists():
        kind = "a file; unpack it" if os.path.isfile(root) else f"no {root}; correct the path"
        raise DataError(f"data.source: {spec}: expected a folder, got {kind}")
    own = _folder_to_split(storage, share) if share else _split_folder(storage, split)
    if own is None:
        divided = any(_split_folder(storage, each) for each in SPLITS)
        if not options.whole or divided or not _has_classes(storage):
            raise DataError(
                f"data.source: {spec}: no folder {' or '.join(SPLITS[split])} in {root}; expected "
                "train/CLASS/*.JPEG and val/CLASS/*.JPEG; add it, correct the path, or take a part "
                "of train/ or of CLASS/ by data.validation_split=0.1"
            )
        own = ""
    directory = os.path.join(root, own) if own else root
    classes = class_order(_folders(storage, own))
    if not classes:
        raise _no_classes(storage, own)
    if not share:
        _check_classes(storage, own, classes, split)
    folders = [os.path.join(own, name) for name in classes]
    listed = list(in_threads(lambda folder: _images(storage, folder), folders, storage.scanners))
    files = [files for files, _ in listed]
    _check_nesting(directory, classes, files)
    if empty := [name for name, found in zip(classes, files, strict=True) if not found]:
        raise DataError(
            f"{directory}: {len(empty):,} of {len(classes):,} class folders have no image, e.g. "
            f"{empty[0]}; fill or remove them (suffixes: {' '.join(SUFFIXES)})"
        )
    note = os.path.basename(directory) + "/"
    if share:
        note += f", split by data.validation_split={share:g}"
        files = [
            _part(root, folder, each, share, split)
            for folder, each in zip(folders, files, strict=True)
        ]
    if left_out := sum(count for _, count in listed):
        note += f", {left_out:,} other files left out"
    if nested := [(name, each) for name, each in zip(classes, files, strict=True) if _inner(each)]:
        name, each = nested[0]
        note += (
            f", images of {len(nested):,} of the classes lie in folders within the class folder, "
            f"such as {name}/{_inner(each)[0]}"
        )
    paths = [
        os.path.join(folder, file)
        for folder, each in zip(folders, files, strict=True)
        for file in each
    ]
    labels = np.repeat(np.arange(len(classes)), [len(each) for each in files])
    rows = np.column_stack([np.zeros_like(labels), np.full_like(labels, WHOLE), labels])
    lengths = np.ones(len(paths), np.int64)
    return RangeSource(spec, split, tuple(classes), storage, paths, lengths, rows, note)


def find_files(paths: Iterable[str]) -> list[str]:
    """Return the given files, and the images in and below the given folders, sorted.

    Hidden files, links to folders and files without the suffix of an image are left out of folders.
    A file that was given by name is not opened yet.

    Raises:
        DataError: A folder has no images.
    """
    files = []
    for path in paths:
        if not os.path.isdir(path):
            files.append(path)
            continue
        inside = sorted(os.path.join(path, name) for name in _images(Disk(path), "")[0])
        if not inside:
            raise DataError(
                f"{path} has no images (suffixes: {' '.join(SUFFIXES)}); use another folder, or "
                "name the files"
            )
        files += inside
    return files


def open_files(files: Sequence[str]) -> RangeSource:
    """Return image files as a source of one class, whose label means nothing."""
    rows = np.tile(np.array([0, WHOLE, 0], np.int64), (len(files), 1))
    lengths = np.ones(len(files), np.int64)
    return RangeSource("files", "validation", ("",), Disk(""), files, lengths, rows, "files")


def class_order(names: Iterable[str]) -> list[str]:
    """Sort the names of class folders: by text, but numbers such as 0 … 11 by their values."""
    names = list(names)
    return sorted(names, key=int if label_numbers(names) else None)


def label_numbers(names: Iterable[str]) -> tuple[int, ...]:
    """Return the values of class names that are different integers in digits; () otherwise."""
    names = list(names)
    if not all(name.isascii() and name.isdecimal() for name in names):
        return ()
    values = tuple(map(int, names))
    return values if len(set(values)) == len(values) else ()


def _split_folder(storage: Storage, split: str) -> str | None:
    """Return the name of the folder of a split, if it exists.

    `test` must hold folders, since unlabelled images are not a validation split. So must others
    without a folder `train` beside them, since a class can have such a name.
    """
    names = [name for name in _folders(storage, "") if name.lower() in SPLIT_WORDS]
    beside_train = any(name.lower() in SPLITS["train"] for name in names)
    sure = SPLIT_WORDS - {"test"} if beside_train else set(SPLITS["train"])
    names = [name for name in names if name.lower() in sure or _folders(storage, name)]
    return own_name(names, split, storage.path)


def _folder_to_split(storage: Storage, share: float) -> str | None:
    """Return the folder that holds both splits: `train`, '' for the root itself, or None.

    Raises:
        DataError: There is a validation folder.
    """
    own, taken = (_split_folder(storage, split) for split in SPLITS)
    if taken:
        raise DataError(
            f"data.validation_split={share:g}: expected a folder without validation images, got "
            f"{os.path.join(storage.path, taken)}; use data.validation_split=0, or move it",
            unused=("data.validation_split",),
        )
    if own:
        return own
    return "" if _has_classes(storage) else None


def _check_nesting(directory: str, classes: list[str], files: list[list[str]]) -> None:
    """Raise a DataError where class folders are those of datasets, or one that holds the classes.

    Args:
        directory: The folder of the class folders.
        classes: Their names.
        files: For each class, the paths of its images within its folder.
    """
    for name, found in zip(classes, files, strict=True):
        inner = _inner(found)
        holds_split = any(each.lower() in SPLITS["train"] for each in inner)
        if inner and (holds_split or len(classes) == 1):
            folder = os.path.join(directory, name)
            dots = ", …" if len(inner) > 3 else ""
            raise DataError(
                f"data.source: expected a folder for each class in {directory}, got {name}, which "
                f"holds {', '.join(inner[:3])}{dots}; use folder:{folder}, or move it away"
            )


def _inner(files: list[str]) -> list[str]:
    """Return the folders within a class folder that hold some of its images, sorted."""
    return sorted({file.partition(os.sep)[0] for file in files if os.sep in file})


def _no_classes(storage: Storage, own: str) -> DataError:
    """Return the error for the folder of a split without class folders."""
    directory = os.path.join(storage.path, own)
    if any(name.startswith("ILSVRC2012_val_") for name in _listing(storage, own)[0]):
        return DataError(
            f"{directory} has no class folders: its names are those of ImageNet's validation "
            f"images; use python {command_path('scripts/prepare_imagenet.py')} --images "
            f"{shlex.quote(storage.path)} --out DIR, which knows their classes"
        )
    return DataError(f"{directory} has no class folders; move each image into that of its class")


def _part(root: str, folder: str, files: list[str], share: float, split: str) -> list[str]:
    """Return the files of a class folder, a path below `root`, that belong to a split."""
    if len(files) < 2:
        raise DataError(
            f"data.validation_split={share:g}: expected at least 2 images in each class, got 1 in "
            f"{os.path.join(root, folder)}; add some or remove the class"
        )
    paths = [os.path.join(folder, file).replace(os.sep, "/") for file in files]
    taken = held_out(paths, share)
    wanted = split == "validation"
    return [f for f, path in zip(files, paths, strict=True) if (path in taken) == wanted]


def _has_classes(storage: Storage) -> bool:
    """Return whether the first folder has images."""
    return any(_images(storage, name)[0] for name in _folders(storage, "")[:1])


def _check_classes(storage: Storage, own: str, classes: list[str], split: str) -> None:
    """Raise a DataError unless the other split, if it exists, has the same classes."""
    other = _split_folder(storage, "validation" if split == "train" else "train")
    if other is None:
        return
    theirs = _folders(storage, other)
    if not theirs:
        raise _no_classes(storage, other)
    for name, some, rest in ((own, classes, theirs), (other, theirs, classes)):
        if only := sorted(set(some) - set(rest)):
            count = "1 is" if len(only) == 1 else f"{len(only):,} are"
            raise DataError(
                f"{storage.path}: the splits have different classes: {count} in {name} alone, e.g. "
                f"{only[0]}; both need the same class folders"
            )


def _listing(storage: Storage, folder: str) -> tuple[list[str], list[str]]:
    """Return the files and folders in a folder.

    Raises:
        DataError: It cannot be listed.
    """
    try:
        return storage.listing(folder)
    except OSError as error:
        path = os.path.join(storage.path, folder)
        raise unreadable(path, error, "correct its permissions") from error


def _folders(storage: Storage, folder: str) -> list[str]:
    """Return the names of the visible folders in a folder, sorted."""
    return sorted(name for name in _listing(storage, folder)[1] if not name.startswith("."))


def _images(storage: Storage, folder: str) -> tuple[list[str], int]:
    """Return the relative paths of the images below a folder, and the number of other files."""
    found, left_out, pending = [], 0, [""]
    while pending:
        inner = pending.pop()
        here = os.path.join(folder, inner)
        names, folders = _listing(storage, here.rstrip(os.sep))
        images = [n for n in names if n.lower().endswith(SUFFIXES) and not n.startswith(".")]
        left_out += len(names) - len(images)
        for name in folders:
            # A link could lead back.
            if name.startswith(".") or os.path.islink(os.path.join(storage.path, here, name)):
                left_out += 1
            else:
                pending.append(f"{inner}{name}{os.sep}")
        found.append((inner, sorted(images)))
    found.sort(key=lambda item: item[0].removesuffix(os.sep))  # "a" before "a-b"
    return [f"{inner}{name}" for inner, names in found for name in names], left_out
