"""Any class folders, or a tar of them, as ArrayRecord shards that `arrayrecord:` reads.

A tar, compressed or not, is read as a stream, twice, and never unpacked: only the set is written.
Images are stored byte for byte; training reports those that cannot be decoded.
"""

import lzma
import os
import shutil
import tarfile
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from largebatch.data.folder import SUFFIXES, class_order
from largebatch.data.prepare import jobs, records
from largebatch.data.prepare.jobs import system_errors
from largebatch.data.prepare.plan import shard_ends
from largebatch.data.randomness import held_out
from largebatch.data.sources import SPLITS, check_class_names, own_name
from largebatch.errors import ConfigError, DataError

GIB = 1 << 30
_LARGEST_IMAGE = 1 << 28  # bytes
_KNOWN = {name for names in SPLITS.values() for name in names}
_DAMAGED = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError)


class _Image(NamedTuple):
    """An image: its path in the source with slashes, its split and class, and its bytes."""

    path: str
    split: str
    class_name: str
    size: int


def prepare_class_folders(
    source: Path, out: Path, *, validation: float = 0.0, report: Callable[[str], None] = print
) -> Path:
    """Write the images of class folders as ``OUT/{train,validation}.array_record-*``.

    Args:
        source: Folder of ``train/CLASS/`` and ``val/CLASS/``, or a tar of it (.tar, .tgz, …).
        out: Directory of the set; it must not exist, or be empty. It appears when it is complete.
        validation: Share of each class that becomes the validation split where the source has none;
            a hash of the path chooses the images.
        report: Prints a line.

    Returns:
        ``out``.

    Raises:
        ConfigError: ``validation`` is out of range, or the source has a validation split.
        DataError: The source is damaged or not of that form, or the disk cannot hold the set.
    """
    if not 0 <= validation < 1:
        raise ConfigError(f"--validation: expected at least 0 and below 1, got {validation:g}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"--out={out} is not an empty directory; remove it or use another")
    if not source.exists():
        raise DataError(f"--images={source} does not exist; correct the path")
    with system_errors(source):
        found, left_out = _find(source)
    found = _with_validation(source, found, validation)
    parent = out.absolute().parent
    with system_errors(out):
        parent.mkdir(parents=True, exist_ok=True)
        need, free = sum(image.size for image in found), shutil.disk_usage(parent).free
        if need > free:
            raise DataError(
                f"--out={out}: {need / GIB:,.2f} GiB are needed, {free / GIB:,.2f} are free; free "
                "some or use another directory"
            )
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=parent) as aside:
            written = Path(aside, "set")
            written.mkdir()
            classes = _write(source, found, written)
            if out.exists():
                out.rmdir()
            written.rename(out)
    counts = Counter(image.split for image in found)
    report(
        f"done: {counts['train']:,} training and {counts['validation']:,} validation images of "
        f"{classes:,} classes in {out}"
        + (f", {left_out:,} other files left out" if left_out else "")
    )
    report(f"train with --config.data.source=arrayrecord:{out}")
    return out


def _find(source: Path) -> tuple[list[_Image], int]:
    """Return the images in the order of the source, and the number of other files."""
    listed = [(path, size) for path, size, _ in _files(source, lambda path: False)]
    images = [(path, size, _place(path)) for path, size in listed if _is_image(path)]
    present = {place[0] for _, _, place in images if place}
    if not present:  # class folders without split folders
        images = [(p, size, ("train", p.split("/")[-2])) for p, size, _ in images if "/" in p]
        present = {"train"}
    splits = {own_name(present, split, str(source)): split for split in SPLITS}
    if "train" not in {split for name, split in splits.items() if name}:
        raise DataError(f"{source} has no train/CLASS/ folders; add them")
    found = []
    for path, size, place in images:
        if place is None or place[0] not in splits:
            continue
        if size > _LARGEST_IMAGE:
            raise DataError(
                f"{source}: {path} has {size:,} bytes, too many for an image; remove it"
            )
        found.append(_Image(path, splits[place[0]], place[1], size))
    if not found:
        raise DataError(
            f"{source} has no images in class folders; expected train/CLASS/*.jpg and "
            f"val/CLASS/*.jpg (suffixes: {' '.join(SUFFIXES)})"
        )
    classes = {image.class_name for image in found}
    check_class_names(f"--images={source}", sorted(classes))
    if len(classes) < 2:
        raise DataError(
            f"--images={source}: expected a folder for each of at least 2 classes, got "
            f"{', '.join(classes)} alone; put the folders of the classes where it is"
        )
    path, count = Counter(image.path for image in found).most_common(1)[0]
    if count > 1:
        raise DataError(f"{source} holds {path} {count} times; write the tar again")
    return found, len(listed) - len(found)


def _with_validation(source: Path, found: list[_Image], share: float) -> list[_Image]:
    """Choose a validation split where there is none; check that both have the same classes."""
    classes = {split: {i.class_name for i in found if i.split == split} for split in SPLITS}
    if classes["validation"]:
        if share:
            raise ConfigError(f"--validation: {source} has a validation split; leave it out")
        if only := sorted(classes["train"] ^ classes["validation"]):
            raise DataError(
                f"{source}: class {only[0]} has images in one split only; add it to the other"
            )
        return found
    if not share:
        raise DataError(
            f"{source} has no val/CLASS/ folders; add them, or use --validation=0.1 to take a "
            "tenth of each class for validation"
        )
    paths: dict[str, list[str]] = {}
    for image in found:
        paths.setdefault(image.class_name, []).append(image.path)
    taken: set[str] = set()
    for name, own in paths.items():
        if len(own) < 2:
            raise DataError(f"{source}: class {name} has 1 image; add some or remove the class")
        taken |= held_out(own, share)
    return [i._replace(split="validation") if i.path in taken else i for i in found]


def _write(source: Path, found: Sequence[_Image], directory: Path) -> int:
    """Write both splits in one pass over the source, and the class names; return their number."""
    classes = class_order({image.class_name for image in found})
    (directory / "labels.txt").write_text("\n".join(classes) + "\n", encoding="utf-8")
    labels = {name: label for label, name in enumerate(classes)}
    images = {image.path: image for image in found}
    ends = {
        split: _shards(directory, split, [i.size for i in found if i.split == split])
        for split in SPLITS
    }
    kept: dict[str, list[bytes]] = {split: [] for split in SPLITS}
    written = Counter()
    with jobs.progress("writing", "images", len(found)) as advance:
        for path, size, data in _files(source, images.__contains__):
            if data is None:
                continue
            image = images[path]
            if size != image.size:
                raise DataError(
                    f"{source}: {path} has {size:,} bytes, {image.size:,} before; do not change "
                    "the images before the preparation has ended"
                )
            name = f"{image.class_name}/{path.rpartition('/')[2]}"
            kept[image.split].append(records.serialise(name, labels[image.class_name], data))
            written[image.split] += 1
            if shard := ends[image.split].get(written[image.split]):
                records.write(shard, kept[image.split])
                kept[image.split].clear()
            advance(1)
    if written.total() != len(found):
        raise DataError(f"{source} has changed since the preparation began; start it again")
    return len(classes)


def _shards(directory: Path, split: str, sizes: Sequence[int]) -> dict[int, Path]:
    """Return the files of a split by the number of images up to their end, chosen as TFDS does."""
    ends = shard_ends(len(sizes), sum(sizes))
    return {
        end: directory / f"{split}.array_record-{index:05}-of-{len(ends):05}"
        for index, end in enumerate(ends)
    }


def _files(source: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, int, bytes | None]]:
    """Yield each file's path, size and, where it is wanted, contents; always in the same order."""
    if source.is_dir():
        for folder, inner, names in os.walk(source):
            inner.sort()
            for path in (Path(folder, name) for name in sorted(names)):
                if path.is_file():
                    relative = path.relative_to(source).as_posix()
                    data = path.read_bytes() if wanted(relative) else None
                    yield relative, path.stat().st_size if data is None else len(data), data
        return
    try:
        with tarfile.open(source, "r|*") as archive:
            for member in archive:
                if member.isreg():
                    path = "/".join(p for p in member.name.split("/") if p not in ("", "."))
                    stream = archive.extractfile(member) if wanted(path) else None
                    yield path, member.size, None if stream is None else stream.read()
    except _DAMAGED as error:
        raise DataError(
            f"{source} is not a tar, or damaged ({error}); get it again, or use the folder"
        ) from error


def _is_image(path: str) -> bool:
    """Return whether a path has the suffix of an image, and no part of it is hidden."""
    hidden = any(part.startswith(".") for part in path.split("/"))
    return path.lower().endswith(SUFFIXES) and not hidden


def _place(path: str) -> tuple[str, str] | None:
    """Return the folder of the split and that of the class, where there are both."""
    parts = path.split("/")
    for index, part in enumerate(parts[:-2]):
        if part.lower() in _KNOWN:
            return part, parts[index + 1]
    return None
