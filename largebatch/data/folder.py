"""`folder:PATH`: a folder of image files for each class, like torchvision's ImageFolder."""

import os
import shlex
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from largebatch.data.randomness import held_out
from largebatch.data.sources import SourceOptions
from largebatch.data.suggestions import holds, nearby
from largebatch.environment import command_path
from largebatch.errors import DataError
from largebatch.files import folders

_SPLITS = {"train": ("train",), "validation": ("val", "validation", "test")}
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
            path = self.where(example)
            try:
                with open(path, "rb", buffering=0) as file:
                    images.append(file.readall())
            except OSError as error:
                raise DataError(
                    f"{path} cannot be read: {error.strerror}; restore the file, or start a new "
                    "run if the folder has changed"
                ) from error
        return images, self._labels(ids).astype(np.int32)

    def where(self, example: int) -> str:
        return os.path.join(
            self._directory, self.classes[self._labels(example)], self._names[example]
        )

    def marks(self) -> tuple[bytes, ...]:
        """Return the names of the files."""
        ends = (self._names.ends, self._class_ends)
        return os.fsencode(self._names.joined), *(e.astype("<i8").tobytes() for e in ends)

    def describe(self) -> str:
        return (
            f"{self.name}: {len(self):,} {self._split} images, {len(self.classes):,} classes "
            f"({os.path.basename(self._directory)}/{self._found})"
        )

    def _labels(self, ids: np.ndarray | int) -> np.ndarray:
        return np.searchsorted(self._class_ends, ids, side="right")


def open_folder(spec: str, split: str, options: SourceOptions) -> FolderRecords:
    """Open PATH/train or PATH/val of class folders, or a share of PATH/train or PATH.

    The order is that of torchvision's ImageFolder: classes by name, then folders and files by name.
    Folders within a class folder are a part of it. Hidden files, links to folders and files without
    the suffix of an image are left out and counted. Listing takes 1 µs per file.

    Args:
        spec: `folder:PATH`.
        split: `train`; or `validation`, the first of `val`, `validation` and `test` that exists.
        options: Only `validation_split`: both splits are then parts of PATH/train or, without it,
            of PATH (see `held_out`); and `whole`: class folders in PATH are the validation split.

    Returns:
        The split.

    Raises:
        DataError: A folder is absent, a class is empty, the splits have different classes, or a
            folder to be split has a validation folder or a class of one image.
    """
    path = spec.partition(":")[2]
    if not path:
        raise DataError(f"data.source: {spec!r} has no directory; write folder:PATH")
    root = os.path.abspath(os.path.expanduser(path))
    share = options.validation_split
    own = _folder_to_split(root, share) if share else _split_folder(root, split)
    if own is None:
        divided = any(_split_folder(root, each) for each in _SPLITS)
        if not options.whole or divided or not _has_classes(root):
            raise DataError(
                f"data.source: {spec}: no folder {' or '.join(_SPLITS[split])} in {root}, which "
                f"{holds(root)}; expected train/CLASS/*.JPEG and val/CLASS/*.JPEG; "
                + ("put them there" if options.whole and divided else _remedy(root, split))
            )
        own = ""
    directory = os.path.join(root, own) if own else root
    classes = _folders(directory)
    if not classes:
        raise DataError(
            f"{directory} has no class folders: it {holds(directory)}; move each image into the "
            "folder of its class"
        )
    _check_classes(directory, classes, root, split)
    with ThreadPoolExecutor(_LISTERS) as threads:
        listed = list(threads.map(_pictures, [os.path.join(directory, c) for c in classes]))
    empty = [name for name, (files, _) in zip(classes, listed, strict=True) if not files]
    if empty:
        raise DataError(
            f"{directory}: {len(empty):,} of {len(classes):,} class folders have no image, e.g. "
            f"{empty[0]}; fill or remove them (suffixes: {' '.join(SUFFIXES)})"
        )
    left_out = sum(count for _, count in listed)
    found = f", {left_out:,} other files left out" if left_out else ""
    files = [files for files, _ in listed]
    if share:
        places = [os.path.join(own, name) for name in classes]
        pairs = zip(places, files, strict=True)
        files = [_part(root, place, each, share, split) for place, each in pairs]
        found = f", split by data.validation_split={share:g}{found}"
    return FolderRecords(spec, split, directory, tuple(classes), files, found)


def _folder_to_split(root: str, share: float) -> str | None:
    """Return the folder of `root` that holds both splits: `train`, '' for `root` itself, or None.

    Raises:
        DataError: There is a validation folder.
    """
    if taken := _split_folder(root, "validation"):
        raise DataError(
            f"data.validation_split={share:g}: expected a folder without validation images, got "
            f"{os.path.join(root, taken)}; use data.validation_split=0, or move it",
            unused=("data.validation_split",),
        )
    if own := _split_folder(root, "train"):
        return own
    return "" if _has_classes(root) else None


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


def _split_folder(root: str, split: str) -> str | None:
    """Return the name of the folder of a split, if it exists."""
    return next((n for n in _SPLITS[split] if os.path.isdir(os.path.join(root, n))), None)


def _remedy(root: str, split: str) -> str:
    """Return what to do where a split is absent."""
    separate = (
        "use --config.data.validation_split=0.1, which takes a tenth of each class for validation; "
        f"python {command_path('scripts/prepare_imagenet.py')} --images {shlex.quote(root)} "
        "--validation 0.1 "
        "--out DIR writes the same splits for data.source=arrayrecord:DIR"
    )
    if _split_folder(root, "train"):
        return f"put the {split} images there, or {separate}"
    if any(_split_folder(root, other) for other in _SPLITS):
        return f"put the {split} images there"
    # Both splits: many folders have one called train.
    meant = nearby(root, lambda path: all(_split_folder(path, each) for each in _SPLITS))
    if meant:
        return f"{meant} looks right: write folder:{meant}"
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
