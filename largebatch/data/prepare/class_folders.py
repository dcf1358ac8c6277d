"""Any class folders, or a tar of them, as ArrayRecord shards that ``arrayrecord:`` reads.

Expected are ``train/CLASS/*.jpg`` and ``val/CLASS/*.jpg`` below the folder or anywhere in the tar.
A tar, compressed or not, is read as a stream, twice, and never unpacked: nothing is written but the
set. Images are stored byte for byte; whether they can be decoded shows in training
(``data.max_unreadable``).
"""

import dataclasses
import hashlib
import lzma
import os
import shutil
import tarfile
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from largebatch.data.folder import SUFFIXES
from largebatch.data.prepare import records
from largebatch.data.prepare.problems import system_errors
from largebatch.data.prepare.progress import progress
from largebatch.errors import ConfigError, DataError

GIB = 1 << 30
_LARGEST = 1 << 28  # bytes of an image
_SPLITS = {"train": ("train",), "validation": ("val", "validation", "test")}
_DAMAGED = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError)


@dataclasses.dataclass(frozen=True)
class _Image:
    """An image of the set."""

    path: str
    """In the folder or tar, parts separated by slashes."""
    split: str
    class_name: str
    size: int
    """Bytes."""


def prepare_class_folders(
    source: Path,
    out: Path,
    *,
    validation: float = 0.0,
    say: Callable[[str], None] = print,
) -> Path:
    """Write the images of class folders as ``OUT/{train,validation}.array_record-*``.

    Args:
      source: folder of ``train/CLASS/`` and ``val/CLASS/``, or a tar of it (.tar, .tgz, .tar.xz…).
      out: directory of the set; it must not exist, or be empty. It appears when it is complete.
      validation: share of each class that becomes the validation split where the source has none;
        which images is a function of their names.
      say: takes lines for the user.

    Returns:
      ``out``.

    Raises:
      ConfigError: ``validation`` is out of range, or the source has a validation split.
      DataError: the source is damaged or not of that form, or the disk cannot hold the set.
    """
    if not 0 <= validation < 1:
        raise ConfigError(f"--validation={validation:g} must be at least 0 and below 1")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"--out={out} is not an empty directory; remove it or choose another")
    with system_errors(source):
        found, left_out = _find(source, validation)
    with system_errors(out):
        out.absolute().parent.mkdir(parents=True, exist_ok=True)
    classes = sorted({image.class_name for image in found})
    counts = Counter(image.split for image in found)
    need, free = sum(image.size for image in found), shutil.disk_usage(out.absolute().parent).free
    if need > free:
        raise DataError(
            f"--out={out}: {need / GIB:,.2f} GiB are needed, {free / GIB:,.2f} are free; free "
            "some or choose another directory"
        )
    with (
        system_errors(out),
        tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.absolute().parent) as aside,
    ):
        made = Path(aside, "set")
        made.mkdir()
        _write(source, found, classes, made)
        (made / "labels.txt").write_text("\n".join(classes) + "\n", encoding="utf-8")
        if out.exists():
            out.rmdir()
        made.rename(out)
    say(
        f"done: {counts['train']:,} training and {counts['validation']:,} validation images of "
        f"{len(classes):,} classes in {out}"
        + (f", {left_out:,} other files left out" if left_out else "")
    )
    say(f"train with --config.data.source=arrayrecord:{out}")
    return out


def _find(source: Path, validation: float) -> tuple[list[_Image], int]:
    """The images in the order of the source, and the number of other files."""
    if not source.exists():
        raise DataError(f"--images={source} does not exist; correct the path")
    listed = [(path, size) for path, size, _ in _files(source, lambda path: False)]
    chosen = [(path, size) for path, size in listed if _is_image(path)]
    split_of = {path: _place(path) for path, _ in chosen}
    present = {own for own, _ in filter(None, split_of.values())}
    names = {
        split: next((name for name in known if name in present), None)
        for split, known in _SPLITS.items()
    }
    found = []
    for path, size in chosen:
        parts = path.split("/")
        if present:
            if split_of[path] is None:
                continue
            own, class_name = split_of[path]
            split = next((split for split, name in names.items() if name == own), None)
        else:  # class folders without splits
            split, class_name = "train", parts[-2] if len(parts) > 1 else ""
        if split is None or not class_name:
            continue
        if not class_name.isprintable():
            raise DataError(f"{source}: class {class_name!r} is not a printable name; rename it")
        if size > _LARGEST:
            raise DataError(f"{source}: {path} has {size:,} bytes, no image has; remove it")
        found.append(_Image(path, split, class_name, size))
    if names["train"] is None and present:
        raise DataError(f"{source} has no train/CLASS/ folders; add them")
    if not found:
        raise DataError(
            f"{source} has no images in class folders; expected train/CLASS/*.jpg and "
            f"val/CLASS/*.jpg (suffixes: {' '.join(SUFFIXES)})"
        )
    repeated = [path for path, count in Counter(i.path for i in found).items() if count > 1]
    if repeated:
        raise DataError(f"{source} holds {repeated[0]} more than once; write the tar again")
    return _split(source, found, validation), len(listed) - len(found)


def _split(source: Path, found: list[_Image], share: float) -> list[_Image]:
    """Separate a validation split where there is none; check that both have the same classes."""
    classes = {split: {i.class_name for i in found if i.split == split} for split in _SPLITS}
    if classes["validation"]:
        if share:
            raise ConfigError(
                f"--validation={share:g} is for sources without a validation split, {source} has "
                "one; leave it out"
            )
        for some, rest in (("train", "validation"), ("validation", "train")):
            if only := sorted(classes[some] - classes[rest]):
                raise DataError(
                    f"{source}: class {only[0]} has images in {some} and none in {rest}; both "
                    "need the same classes"
                )
        return found
    if not share:
        raise DataError(
            f"{source} has no val/CLASS/ folders; add them, or use --validation=0.1 to take a "
            "tenth of each class for validation"
        )
    taken: set[str] = set()
    for name in classes["train"]:
        own = [image.path for image in found if image.class_name == name]
        if len(own) < 2:
            raise DataError(f"{source}: class {name} has 1 image; add some or remove the class")
        own.sort(key=lambda path: hashlib.md5(path.encode("utf-8", "surrogateescape")).digest())
        taken.update(own[: min(len(own) - 1, max(1, round(share * len(own))))])
    return [dataclasses.replace(i, split="validation") if i.path in taken else i for i in found]


def _write(source: Path, found: list[_Image], classes: list[str], directory: Path) -> None:
    """Write the shards of both splits in one pass over the source."""
    labels = {name: label for label, name in enumerate(classes)}
    images = {image.path: image for image in found}
    shards = {
        split: _Shards(directory, split, [i.size for i in found if i.split == split])
        for split in _SPLITS
    }
    done = 0
    with progress("writing", "images") as report:
        for path, size, data in _files(source, images.__contains__):
            if data is None:
                continue
            image = images[path]
            if size != image.size:
                raise DataError(
                    f"{source}: {path} has {size:,} bytes, {image.size:,} before; leave the "
                    "images alone until the preparation is done"
                )
            name = f"{image.class_name}/{path.rpartition('/')[2]}"
            shards[image.split].add(records.serialise(name, labels[image.class_name], data))
            done += 1
            report(done, len(found))
    if done != len(found):
        raise DataError(f"{source} has changed since the preparation began; start again")


class _Shards:
    """The shards of a split, filled one after the other."""

    def __init__(self, directory: Path, split: str, sizes: list[int]) -> None:
        """Open nothing yet; ``sizes`` are the bytes of the split's images."""
        from tensorflow_datasets.core.utils import shard_utils

        number = shard_utils.ShardConfig.calculate_number_shards(sum(sizes), len(sizes))
        ends = shard_utils.get_shard_boundaries(len(sizes), number)
        self._ends = {
            end: directory / f"{split}.array_record-{index:05}-of-{number:05}"
            for index, end in enumerate(ends)
        }
        self._kept: list[bytes] = []
        self._done = 0

    def add(self, record: bytes) -> None:
        """Add the split's next record."""
        self._kept.append(record)
        self._done += 1
        if self._done in self._ends:
            records.write(self._ends[self._done], self._kept)
            self._kept = []


def _files(source: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, int, bytes | None]]:
    """Each file's path, size and, where it is wanted, content; always in the same order."""
    if source.is_dir():
        yield from _in_folder(source, wanted)
        return
    try:
        with tarfile.open(source, "r|*") as archive:
            for member in archive:
                if not member.isreg():
                    continue
                path = "/".join(part for part in member.name.split("/") if part not in ("", "."))
                stream = archive.extractfile(member) if wanted(path) else None
                yield path, member.size, None if stream is None else stream.read()
    except _DAMAGED as error:
        raise DataError(
            f"{source} is not a tar, or damaged ({error}); get it again, or give the folder"
        ) from error


def _in_folder(
    source: Path, wanted: Callable[[str], bool]
) -> Iterable[tuple[str, int, bytes | None]]:
    for folder, inner, names in os.walk(source):
        inner.sort()
        for name in sorted(names):
            path = Path(folder, name)
            if path.is_file():
                relative = path.relative_to(source).as_posix()
                data = path.read_bytes() if wanted(relative) else None
                yield relative, path.stat().st_size if data is None else len(data), data


def _is_image(path: str) -> bool:
    """Whether a path has the suffix of an image, and neither it nor its folders are hidden."""
    hidden = any(part.startswith(".") for part in path.split("/"))
    return path.lower().endswith(SUFFIXES) and not hidden


def _place(path: str) -> tuple[str, str] | None:
    """The folder of the split and that of the class, where there are both."""
    parts = path.split("/")
    known = {name for names in _SPLITS.values() for name in names}
    for index, part in enumerate(parts[:-2]):
        if part in known:
            return part, parts[index + 1]
    return None
