"""The shards of a split in a directory or of a pattern, and the names of the labels beside them."""

import fnmatch
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from largebatch.data.ranges import Storage, absolute, storage_of
from largebatch.data.source import SPLIT_WORDS, SPLITS, SourceOptions, own_name, unreadable
from largebatch.errors import DataError

_SERIES = re.compile(r"-(\d{5,})-of-(\d{5,})")
_LABELS = ("labels.txt", "label.labels.txt")


class Found(NamedTuple):
    """The shards of a split."""

    storage: Storage
    """The directory that holds all of them."""
    own: str
    """The split's own name."""
    names: list[str]
    """Paths of the files below it, in order."""

    @property
    def note(self) -> str:
        """Directory and split, for descriptions."""
        return f"{self.directory}, split {self.own}"

    @property
    def directory(self) -> str:
        """Absolute path or URL of the directory."""
        return self.storage.path

    @property
    def paths(self) -> tuple[str, ...]:
        """Absolute paths of the files."""
        return tuple(os.path.join(self.directory, name) for name in self.names)


class Form(NamedTuple):
    """Names of the files of a format."""

    what: str
    """Name of the files, for messages."""
    name: str
    """Regular expression that is found in the name of each file."""
    example: str
    """Name of a file after the name of its split."""


def is_pattern(path: str) -> bool:
    """Return whether a path is a pattern of files in a directory."""
    return bool(re.search(r"[*?\[{]", os.path.basename(path))) and not os.path.isdir(path)


def of_split(
    spec: str,
    split: str,
    form: Form,
    options: SourceOptions,
    storage: Storage | None = None,
) -> Found:
    """Return the shards of a split.

    A file belongs to the split that is the last such word in its name: `train`; or `validation`,
    else `val`, else `test`. Where there are no such files, but folders with these names, their
    files are the splits. A split is one complete series `…-00000-of-00004…`, or else files in the
    order of their names.

    Args:
        spec: `scheme:PATH`. PATH is a directory, or a pattern of files in one directory with `*`,
            `?`, `[…]`, `{a,b}` and `{000..127}`. Where the braces name files, all must exist.
        split: `train` or `validation`.
        form: Names of the files.
        options: See `storage_of`.
        storage: The directory PATH; None opens it.

    Raises:
        DataError: There are no such files, or some are missing.
        ConfigError, StorageError: See `storage_of`.
    """
    path = absolute(spec.partition(":")[2])
    try:
        if is_pattern(path):
            found, wanted = _matching(spec, path, options)
        else:
            storage = storage or storage_of(path, options.cache_bytes)
            if not storage.exists():
                kind = "a file; use its directory, or a pattern of file names"
                raise DataError(
                    f"data.source: {spec}: expected a directory, got "
                    + (kind if os.path.isfile(path) else f"no {path}; correct the path")
                )
            found, wanted = Found(storage, "", _shards(storage, form)), []
        own, names = _split(found, split, form)
        own_wanted = [name for name in wanted if word_of(name) == own]
        check_present(found.directory, own_wanted, found.storage.listing()[0])
        for folder, inside in itertools.groupby(names, os.path.dirname):
            present = found.storage.listing(folder)[0]
            _check_series(found.directory, own, list(map(os.path.basename, inside)), present)
        return Found(found.storage, own, names)
    except OSError as error:
        remedy = "correct its permissions or the path"
        raise unreadable(error.filename or path, error, remedy) from error


def word_of(name: str) -> str:
    """Return the last word in a file's name, or its folder, that names a split, or `no split`."""
    folder, _, file = name.rpartition("/")
    named = [word for word in re.findall("[a-z]+", (folder or file).lower()) if word in SPLIT_WORDS]
    return named[-1] if named else "no split"


def class_names(storage: Storage, count: int) -> tuple[str, ...]:
    """Return the names of the labels, or their numbers.

    Args:
        storage: The directory; line i of its `labels.txt` or `label.labels.txt` names label i,
            from 0.
        count: `data.classes`, the number of classes where there is no such file.

    Raises:
        DataError: There is neither, or a line is empty, or the file cannot be read.
    """
    for name in _LABELS:
        path = os.path.join(storage.path, name)
        if storage.holds(name):
            try:
                text = storage.text(name).decode("utf-8-sig")
                classes = tuple(line.strip() for line in text.rstrip().split("\n"))
            except (OSError, UnicodeDecodeError) as error:
                raise unreadable(path, error, "write it in UTF-8, readable by you") from error
            if not all(classes):
                raise DataError(f"{path}: line {classes.index('') + 1} is empty; name every label")
            return classes
    if not count:
        raise DataError(
            f"{storage.path} does not say how many classes there are; write {_LABELS[0]}, one name "
            "a line, or set data.classes"
        )
    return tuple(map(str, range(count)))


def _split(found: Found, split: str, form: Form) -> tuple[str, list[str]]:
    """Return the split's own name and the names of its files, in order."""
    splits: dict[str, list[str]] = {}
    for name in found.names:
        splits.setdefault(word_of(name), []).append(name)
    own = own_name(splits, split, found.directory)
    if own is None:
        counts = ", ".join(f"{len(names)} of {name}" for name, names in splits.items())
        files, folders = found.storage.listing()
        every = sorted(name for name in files + folders if not name.startswith("."))
        raise DataError(
            f"{found.directory} has no {form.what} files of {split}: it holds "
            + (counts or f"{len(every)} other entries, such as {every[:3]}")
            + f"; expected e.g. {SPLITS[split][0]}{form.example}; "
            + ("add them" if counts else "uncompress the files, or correct the path")
        )
    return own, splits[own]


def _shards(storage: Storage, form: Form) -> list[str]:
    """Return the paths of the files of a format in a directory, or in its folders, sorted."""

    def shards(names: Iterable[str]) -> list[str]:
        visible = (name for name in names if not name.startswith("."))
        return sorted(name for name in visible if re.search(form.name, name, re.IGNORECASE))

    files, folders = storage.listing()
    own = [folder for folder in sorted(folders) if folder.lower() in SPLIT_WORDS]
    return shards(files) or [
        f"{folder}/{name}" for folder in own for name in shards(storage.listing(folder)[0])
    ]


def _matching(spec: str, pattern: str, options: SourceOptions) -> tuple[Found, list[str]]:
    """Return the files of a pattern, sorted, and the names that its braces list, if no others."""
    directory = os.path.dirname(pattern)
    wanted = list(dict.fromkeys(_expanded(os.path.basename(pattern))))
    literal = not re.search(r"[*?\[]", "".join(wanted))
    storage = storage_of(directory, options.cache_bytes)
    present = set(storage.listing()[0]) if storage.exists() else set()
    if literal:
        names = sorted(name for name in wanted if name in present)
    else:
        visible = [name for name in present if not name.startswith(".")]
        matched = (fnmatch.filter(visible, name) for name in wanted)
        names = sorted(set(itertools.chain.from_iterable(matched)))
    if not names:
        raise DataError(f"data.source: {spec}: no file matches {pattern}; correct the pattern")
    return Found(storage, "", names), wanted if literal else []


def _expanded(pattern: str) -> Iterator[str]:
    """Yield the names of a pattern with braces, such as `{train,val}-{00..63}.tar`; some twice."""
    match = re.search(r"\{([^{}]*)\}", pattern)  # an innermost one
    if match is None:
        yield pattern
        return
    numbers = re.fullmatch(r"(\d+)\.\.(\d+)", match[1])
    if numbers:
        first, last = int(numbers[1]), int(numbers[2])
        width = len(numbers[1])
        choices = [f"{number:0{width}}" for number in range(first, last + 1)]
    else:
        choices = match[1].split(",")
    for choice in choices:
        yield from _expanded(pattern[: match.start()] + choice + pattern[match.end() :])


def _check_series(directory: str, own: str, names: list[str], present: list[str]) -> None:
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
        series = [f"{start}{number}{end}" for number in numbers]
        check_present(directory, series, present)
    else:
        _check_numbers(directory, names, present)


def _check_numbers(directory: str, names: list[str], present: list[str]) -> None:
    """Raise a DataError where files differ in their last number alone and some are missing.

    Numbers of which fewer than half exist, such as years, are no series.
    """
    found = [match for name in names if (match := re.fullmatch(r"(.*?)(\d+)(\D*)", name))]
    kinds = {(match[1], len(match[2]), match[3]) for match in found}
    if len(kinds) != 1 or len(found) < len(names):
        return
    ((start, width, end),) = kinds
    numbers = [int(match[2]) for match in found]
    every = range(min(min(numbers), 1), max(numbers) + 1)
    if 2 * len(numbers) >= every.stop - every.start:
        series = [f"{start}{number:0{width}}{end}" for number in every]
        check_present(directory, series, present)


def check_present(directory: str, names: Sequence[str], present: Iterable[str]) -> None:
    """Raise a DataError with the first of the files that a directory lacks.

    Args:
        directory: Its path.
        names: The files.
        present: All files of the directory.
    """
    if missing := sorted(set(names).difference(present)):
        raise DataError(
            f"{directory} lacks {missing[0]}"
            + (f" and {len(missing) - 1:,} more" if len(missing) > 1 else "")
            + f" of {len(names):,} shards; restore the files or prepare the dataset again"
        )
