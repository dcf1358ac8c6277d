"""`arrayrecord:PATH`: a directory of ArrayRecord shards."""

import contextlib
import os
import re

from largebatch.data.examples import (
    ExampleRecords,
    Keys,
    Shards,
    check_present,
    lengths_of,
    open_shard,
    parse,
)
from largebatch.data.sources import SourceOptions, nearby
from largebatch.data.tfds import is_prepared, open_prepared
from largebatch.errors import DataError

_SPLITS = {"train": ("train",), "validation": ("validation", "val", "test")}
_SERIES = re.compile(r"-(\d{5,})-of-(\d{5,})")
_KEYS = (Keys("image", "label"), Keys("image/encoded", "image/class/label"))
_LABELS = ("labels.txt", "label.labels.txt")


def open_array_record(spec: str, split: str, options: SourceOptions) -> ExampleRecords:
    """Open a split of a directory of ArrayRecord files.

    A directory with TFDS's metadata is opened as by `tfds:`. Otherwise:

    - A file with `array_record` or `arrayrecord` in its name belongs to the split that is the last
      such word in its name: `train`; or `validation`, else `val`, else `test`. A split is one
      complete series `…-00000-of-00004…`, or else files in the order of their names.
    - A record is a `tf.train.Example` with `image` and `label`, or with `image/encoded` and
      `image/class/label`; the first record decides which.
    - Line i of `labels.txt` or `label.labels.txt` names label i, from 0; labels that count from 1
      need a line for 0. Without such a file data.classes is needed: to read a million labels would
      take a minute at every start.

    Args:
        spec: `arrayrecord:PATH`.
        split: `train` or `validation`.
        options: `classes` is the number of classes where no file names them.

    Returns:
        The split.

    Raises:
        DataError: The directory is absent, incomplete or not of that form.
    """
    path = spec.partition(":")[2]
    if not path:
        raise DataError(f"data.source: {spec!r} has no directory; write arrayrecord:PATH")
    directory = os.path.abspath(os.path.expanduser(path))
    if not os.path.isdir(directory):
        raise DataError(f"data.source: {spec}: no directory {directory}; {_remedy(directory)}")
    if is_prepared(directory):
        return open_prepared(spec, split, directory, options)
    own, names = _files(directory, split)
    paths = tuple(os.path.join(directory, name) for name in names)
    lengths = lengths_of(paths)
    if not sum(lengths):
        raise DataError(
            f"{directory}: the {len(names)} files of {own} hold no record; write them again"
        )
    first = next(path for path, length in zip(paths, lengths, strict=True) if length)
    return ExampleRecords(
        spec,
        split,
        Shards(paths, lengths),
        _keys(first),
        _classes(directory, options.classes),
        f"{directory}, split {own}",
    )


def _files(directory: str, split: str) -> tuple[str, list[str]]:
    """Return the split's own name and the names of its files, in order."""
    splits: dict[str, list[str]] = {}
    words = {name for names in _SPLITS.values() for name in names}
    every = sorted(name for name in os.listdir(directory) if not name.startswith("."))
    for name in _shards(directory):
        said = [word for word in re.findall("[a-z]+", name.lower()) if word in words]
        splits.setdefault(said[-1] if said else "no split", []).append(name)
    own = next((name for name in _SPLITS[split] if name in splits), None)
    if own is None:
        found = ", ".join(f"{len(names)} of {name}" for name, names in splits.items())
        raise DataError(
            f"{directory} has no ArrayRecord files of {split}: it holds "
            + (found or f"{len(every)} other entries, such as {every[:3]}")
            + f"; expected e.g. {_SPLITS[split][0]}.array_record-00000-of-00004; "
            + ("add them" if found else _remedy(directory))
        )
    _check_series(directory, own, splits[own])
    return own, splits[own]


def _shards(directory: str) -> list[str]:
    """Return the names of the ArrayRecord files in a directory, sorted."""
    with os.scandir(directory) as entries:
        return sorted(
            entry.name
            for entry in entries
            if re.search("array_?record", entry.name, re.IGNORECASE)
            and not entry.name.startswith(".")
            and entry.is_file()
        )


def _remedy(directory: str) -> str:
    """Return what to do where a directory is absent or holds something else."""

    def fits(path: str) -> bool:
        with contextlib.suppress(OSError):
            return bool(_shards(path))
        return False

    meant = nearby(directory, fits)
    return f"{meant} looks right: write arrayrecord:{meant}" if meant else "correct the path"


def _check_series(directory: str, own: str, names: list[str]) -> None:
    """Raise a DataError unless the files are one complete series, or none is of a series."""
    found = [_SERIES.search(name) for name in names]
    kinds = {
        match and (name[: match.start()], match[2], name[match.end() :])
        for name, match in zip(names, found, strict=True)
    }
    if len(kinds) > 1:
        raise DataError(
            f"{directory} has more than one series of {own} files, e.g. {names[0]} and "
            f"{names[-1]}; keep each in a directory of its own"
        )
    (kind,) = kinds
    if kind:
        start, count, end = kind
        numbers = (f"-{index:0{len(count)}}-of-{count}" for index in range(int(count)))
        check_present(directory, [f"{start}{number}{end}" for number in numbers])


def _keys(path: str) -> Keys:
    """Return the keys of image and label, from a file's first record."""
    record = open_shard(path).read([0])[0]
    problems = []
    for keys in _KEYS:
        try:
            parse(record, keys)
            return keys
        except ValueError as error:
            problems.append(str(error))
    raise DataError(f"{path}, record 0: {'; '.join(problems)}; write the records again")


def _classes(directory: str, count: int) -> tuple[str, ...]:
    """Return the names of the labels, or their numbers."""
    for name in _LABELS:
        path = os.path.join(directory, name)
        if os.path.isfile(path):
            with open(path, encoding="utf-8") as file:
                classes = tuple(line.strip() for line in file.read().rstrip().split("\n"))
            if not all(classes):
                raise DataError(f"{path}: line {classes.index('') + 1} is empty; name every label")
            return classes
    if not count:
        raise DataError(
            f"{directory} does not say how many classes there are; write {_LABELS[0]}, one name "
            "a line, or set data.classes"
        )
    return tuple(map(str, range(count)))
