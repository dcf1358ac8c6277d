"""`folder:PATH`: a folder of image files for each class, like torchvision's ImageFolder."""

import os
import shlex
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from largebatch.data.randomness import held_out
from largebatch.data.sources import SPLITS, SourceOptions, own_name
from largebatch.environment import command_path
from largebatch.errors import DataError
from largebatch.files import folder_within, folders, holds, printable

SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
_DOWNLOADS = {
    name: f"https://s3.amazonaws.com/fast-ai-imageclas/{name}.tgz"
    for name in ("imagenette2", "imagenette2-160", "imagenette2-320")
}
_LISTERS = 8  # threads, for file systems on which a listing waits


@dataclass(frozen=True)
class _Names:
    """A million file names in some 30 bytes each, which is small enough to send to processes.

    Attributes:
        joined: The concatenated names.
        ends: int64 (n,), the end of each.
    """

    joined: str
    ends: np.ndarray

    def __getitem__(self, index: int) -> str:
        start = self.ends[index - 1] if index else 0
        return self.joined[start : self.ends[index]]


class FolderRecords:
    """One split of class folders, a `Records`."""

    def __init__(
        self,
        name: str,
        split: str,
        directory: str,
        classes: tuple[str, ...],
        files: list[list[str]],
        found: str,
    ) -> None:
        """Read nothing yet.

        Args:
            name: The specification it was opened by.
            split: `train` or `validation`.
            directory: Absolute path of the folder that holds the class folders.
            classes: Their names.
            files: For each class, its files' paths within its folder.
            found: A note on other files, for `describe`.
        """
        self.name = name
        self.classes = classes
        self._split = split
        self._directory = directory
        self._found = found
        names = [name for names in files for name in names]
        self._names = _Names("".join(names), np.cumsum([len(name) for name in names]))
        self._class_ends = np.cumsum([len(names) for names in files])

    def __len__(self) -> int:
        return int(self._class_ends[-1])

    def read(self, ids: np.ndarray) -> tuple[list[bytes], np.ndarray]:
        images = []
        for example in np.asarray(ids).tolist():
            path = self._path(example)
            try:
                with open(path, "rb", buffering=0) as file:
                    images.append(file.readall())
            except OSError as error:
                raise DataError(
                    f"{printable(path)} cannot be read: {error.strerror}; restore the file, or "
                    "start a new run if the folder has changed"
                ) from error
        return images, self._labels(ids).astype(np.int32)

    def where(self, example: int) -> str:
        return printable(self._path(example))

    def class_counts(self) -> list[int]:
        return np.diff(self._class_ends, prepend=0).tolist()

    def marks(self) -> tuple[bytes, ...]:
        """Return the names of the files."""
        ends = (self._names.ends, self._class_ends)
        return os.fsencode(self._names.joined), *(e.astype("<i8").tobytes() for e in ends)

    def names(self) -> list[str]:
        """Return CLASS/FILE of each example."""
        labels = self._labels(np.arange(len(self))).tolist()
        return [f"{self.classes[label]}/{self._names[i]}" for i, label in enumerate(labels)]

    def describe(self) -> str:
        return (
            f"{self.name}: {len(self):,} {self._split} images, {len(self.classes):,} classes "
            f"({os.path.basename(self._directory)}/{self._found})"
        )

    def _path(self, example: int) -> str:
        return os.path.join(
            self._directory, self.classes[self._labels(example)], self._names[example]
        )

    def _labels(self, ids: np.ndarray | int) -> np.ndarray:
        return np.searchsorted(self._class_ends, ids, side="right")


def open_folder(spec: str, split: str, options: SourceOptions) -> FolderRecords:
    """Open PATH/train or PATH/val of class folders, or a share of PATH/train or PATH.

    The order is that of torchvision's ImageFolder, classes by name, then folders and files by name;
    but classes named by numbers are in the order of these numbers. Folders within a class folder
    are a part of it. Hidden files, links to folders and files without the suffix of an image are
    left out and counted. Listing takes 1 µs per file.

    Args:
        spec: `folder:PATH`.
        split: `train`; or `validation`: see `SPLITS`.
        options: Only `validation_split`: both splits are then parts of PATH/train or, without it,
            of PATH (see `held_out`); and `whole`: class folders in PATH are the validation split.

    Returns:
        The split.

    Raises:
        DataError: A folder is absent, a class is empty, the splits have different classes, the
            folders of classes are those of whole datasets, or a folder to be split has a validation
            folder or a class of one image.
    """
    path = spec.partition(":")[2]
    if not path:
        raise DataError(f"data.source: {spec!r} has no directory; write folder:PATH")
    root = os.path.abspath(os.path.expanduser(path))
    share = options.validation_split
    own = _folder_to_split(root, share) if share else _split_folder(root, split)
    if own is None:
        divided = any(_split_folder(root, each) for each in SPLITS)
        if not options.whole or divided or not _has_classes(root):
            names = " or ".join(SPLITS[split])
            raise DataError(
                f"data.source: {spec}: no folder {names} in {root}, which {holds(root)}; expected "
                "train/CLASS/*.JPEG and val/CLASS/*.JPEG; "
                + ("put them there" if options.whole and divided else _remedy(root, split))
            )
        own = ""
    directory = os.path.join(root, own) if own else root
    classes = class_order(_folders(directory))
    if not classes:
        raise _no_classes(root, directory)
    if not share:
        _check_classes(directory, classes, root, split)
    with ThreadPoolExecutor(_LISTERS) as threads:
        listed = list(threads.map(_pictures, [os.path.join(directory, c) for c in classes]))
    files = [files for files, _ in listed]
    _check_nesting(root, directory, classes, files)
    empty = [name for name, found in zip(classes, files, strict=True) if not found]
    if empty:
        raise DataError(
            f"{directory}: {len(empty):,} of {len(classes):,} class folders have no image, e.g. "
            f"{empty[0]}; fill or remove them (suffixes: {' '.join(SUFFIXES)})"
        )
    inner = [(n, _inner(found)) for n, found in zip(classes, files, strict=True) if _inner(found)]
    note = f", split by data.validation_split={share:g}" if share else ""
    if left_out := sum(count for _, count in listed):
        note += f", {left_out:,} other files left out"
    if inner:
        name, within = inner[0]
        note += (
            f", images of {len(inner):,} of the classes lie in folders within the class folder, "
            f"such as {name}/{within[0]}"
        )
    if share:
        places = [os.path.join(own, name) for name in classes]
        pairs = zip(places, files, strict=True)
        files = [_part(root, place, each, share, split) for place, each in pairs]
    return FolderRecords(spec, split, directory, tuple(classes), files, note)


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


def _split_folder(root: str, split: str) -> str | None:
    """Return the name of the folder of a split, if it exists.

    `test` must hold folders, since unlabelled images are not a validation split. So must others
    without a folder `train` beside them, since a class can have such a name.
    """
    words = {word for words in SPLITS.values() for word in words}
    try:
        names = [name for name in os.listdir(root) if name.lower() in words]
    except OSError:
        return None  # reported where the folder is listed
    names = [name for name in names if os.path.isdir(os.path.join(root, name))]
    beside_train = any(name.lower() in SPLITS["train"] for name in names)
    sure = words - {"test"} if beside_train else set(SPLITS["train"])
    names = [n for n in names if n.lower() in sure or _folders(os.path.join(root, n))]
    return own_name(names, split, root)


def _folder_to_split(root: str, share: float) -> str | None:
    """Return the folder of `root` that holds both splits: `train`, '' for `root` itself, or None.

    Raises:
        DataError: There is a validation folder.
    """
    own, taken = (_split_folder(root, split) for split in SPLITS)
    if taken:
        raise DataError(
            f"data.validation_split={share:g}: expected a folder without validation images, got "
            f"{os.path.join(root, taken)}; use data.validation_split=0, or move it",
            unused=("data.validation_split",),
        )
    if own:
        return own
    return "" if _has_classes(root) else None


def _check_nesting(root: str, directory: str, classes: list[str], files: list[list[str]]) -> None:
    """Raise a DataError where class folders are those of datasets, or one that holds the classes.

    Args:
        root: The path that was given.
        directory: The folder of the class folders.
        classes: Their names.
        files: For each class, the paths of its images within its folder.
    """
    within = {name: _inner(found) for name, found in zip(classes, files, strict=True)}
    for name, inner in within.items():
        if any(each.lower() in SPLITS["train"] for each in inner):
            raise DataError(
                f"data.source=folder:{root}: {os.path.join(directory, name)} is not a class: it "
                f"holds {', '.join(inner[:3])}; use folder:{os.path.join(directory, name)}, or "
                "move it away"
            )
    if len(classes) == 1 and within[classes[0]]:
        only = os.path.join(directory, classes[0])
        inner = within[classes[0]]
        dots = ", …" if len(inner) > 3 else ""
        remedy = (
            f"use folder:{only}"
            if directory == root
            else f"if these are the classes, move them from {only} to {directory}"
        )
        raise DataError(
            f"data.source=folder:{root}: expected a folder for each class, got one, {only}, which "
            f"holds {', '.join(inner[:3])}{dots}; {remedy}"
        )


def _inner(files: list[str]) -> list[str]:
    """Return the folders within a class folder that hold some of its images, sorted."""
    return sorted({file.partition(os.sep)[0] for file in files if os.sep in file})


def _no_classes(root: str, directory: str) -> DataError:
    """Return the error for the folder of a split without class folders."""
    if any(name.startswith("ILSVRC2012_val_") for name in os.listdir(directory)):
        return DataError(
            f"{directory} has no class folders: its names are those of ImageNet's validation "
            f"images; use python scripts/prepare_imagenet.py --folders {shlex.quote(root)} --out "
            "DIR, which knows their classes"
        )
    return DataError(
        f"{directory} has no class folders: it {holds(directory)}; move each image into the "
        "folder of its class"
    )


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


def _remedy(root: str, split: str) -> str:
    """Return what to do where a split is absent."""
    quoted = shlex.quote(root)
    if os.path.isfile(root):
        return (
            f"unpack the file and name the folder, or run python scripts/prepare_imagenet.py "
            f"--images {quoted} --out DIR and use arrayrecord:DIR"
        )
    separate = (
        "use --config.data.validation_split=0.1, which takes a tenth of each class for validation; "
        f"python {command_path('scripts/prepare_imagenet.py')} --images {quoted} --validation 0.1 "
        "--out DIR writes the same splits for data.source=arrayrecord:DIR"
    )
    if _split_folder(root, "train"):
        return f"put the {split} images there, or {separate}"
    if _split_folder(root, "validation"):
        return f"put the {split} images there"
    if within := folder_within(root, lambda path: all(_split_folder(path, s) for s in SPLITS)):
        return f"use folder:{within}"
    if any(os.path.basename(root).lower() in words for words in SPLITS.values()):
        return f"use the folder that holds train/ and val/, or {separate}"
    if os.path.basename(root) in _DOWNLOADS and not os.path.exists(root):
        parent = shlex.quote(os.path.dirname(root))
        return (
            f"download it (curl -L {_DOWNLOADS[os.path.basename(root)]} | tar -xz -C {parent}), "
            "or use data.source=folder:PATH for another set"
        )
    if _has_classes(root):
        return separate
    return "correct the path"


def _has_classes(root: str) -> bool:
    """Return whether a path is a directory, in which the first folder has images."""
    if not os.path.isdir(root):
        return False
    return any(_pictures(os.path.join(root, name))[0] for name in _folders(root)[:1])


def _check_classes(directory: str, classes: list[str], root: str, split: str) -> None:
    """Raise a DataError unless the other split, if it exists, has the same classes."""
    other = _split_folder(root, "validation" if split == "train" else "train")
    if other is None:
        return
    theirs = _folders(os.path.join(root, other))
    if not theirs:
        raise _no_classes(root, os.path.join(root, other))
    for name, some, rest in (
        (os.path.basename(directory), classes, theirs),
        (other, theirs, classes),
    ):
        only = sorted(set(some) - set(rest))
        if only:
            count = "1 is" if len(only) == 1 else f"{len(only):,} are"
            raise DataError(
                f"{root}: the splits have different classes: {count} in {name} alone, e.g. "
                f"{only[0]}; both need the same class folders"
            )


def _folders(directory: str) -> list[str]:
    """Return the names of the folders in a directory; raise a DataError if it cannot be listed."""
    with _listing(directory):
        return folders(directory)


def _pictures(folder: str) -> tuple[list[str], int]:
    """Return the relative paths of the images below a folder, and the number of other files."""
    found, left_out, pending = [], 0, [""]
    while pending:
        inner = pending.pop()
        here = os.path.join(folder, inner)
        with _listing(here):
            names = os.listdir(here)
        pictures = []
        for name in names:
            if name.lower().endswith(SUFFIXES) and not name.startswith("."):
                pictures.append(name)
            elif _is_inner(os.path.join(here, name)):
                pending.append(f"{inner}{name}{os.sep}")
            else:
                left_out += 1
        found.append((inner, sorted(pictures)))
    found.sort(key=lambda item: item[0].removesuffix(os.sep))  # "a" before "a-b"
    return [f"{inner}{name}" for inner, names in found for name in names], left_out


def _is_inner(path: str) -> bool:
    """Return whether a path is a folder to search; a link could lead back."""
    hidden = os.path.basename(path).startswith(".")
    return not hidden and os.path.isdir(path) and not os.path.islink(path)


@contextmanager
def _listing(directory: str) -> Iterator[None]:
    """Turn an OSError of listing a directory into a DataError."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{directory} cannot be listed: {error.strerror}; correct its permissions"
        ) from error
