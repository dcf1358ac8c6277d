"""Conversion of any source of encoded images to another form; the images are copied unchanged."""

import functools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from largebatch.data.openers import open_records
from largebatch.data.prepare import forms, jobs
from largebatch.data.prepare.jobs import system_errors
from largebatch.data.prepare.metadata import (
    MANIFEST,
    Manifest,
    Shard,
    begin,
    files_of,
    finished_shards,
    publish,
    work_of,
)
from largebatch.data.prepare.plan import Store, shard_ends
from largebatch.data.prepare.run import GIB, working
from largebatch.data.records import Records
from largebatch.data.sources import SourceOptions, check_sizes, differing, identity
from largebatch.errors import ConfigError, DataError

_SPLITS = ("train", "validation")
_SAMPLE = 256  # images of a split by which its bytes are estimated
_READ_AT_ONCE = 16  # images


@dataclass(frozen=True)
class Conversion:
    """What to convert.

    Attributes:
        source: As `data.source`; it has encoded images and both splits.
        form: Name of the new form, one of `forms.FORMS`.
        out: Directory of the new set.
        classes: As `data.classes`.
        shards: Number of shards of each split; 0 chooses it by the bytes, as TFDS does.
        processes: Number of processes.

    Raises:
        ConfigError: An option is out of range.
    """

    source: str
    form: str
    out: Path
    classes: int = 0
    shards: int = 0
    processes: int = 1

    def __post_init__(self) -> None:
        if self.form not in forms.FORMS:
            raise ConfigError(f"--to: expected one of {', '.join(forms.FORMS)}, got {self.form}")
        jobs.check_counts(self.processes, self.shards)

    @property
    def options(self) -> SourceOptions:
        """Options of the source."""
        return SourceOptions(classes=self.classes, sequential=True)

    def open(self, split: str) -> Records:
        """Open a split of the source.

        Raises:
            DataError: It is absent, has no encoded images or another number of classes.
        """
        records = open_records(self.source, split, self.options)
        if records is None:
            raise DataError(
                f"--from={self.source} has no encoded images; use a source of image files"
            )
        check_sizes(self.source, self.options, classes=len(records.classes))
        return records


@dataclass(frozen=True)
class _Task:
    """A shard to be written: examples [first, last) of a split."""

    conversion: Conversion
    written: Path
    identity: str
    split: str
    shard: int
    shards: int
    first: int
    last: int


def convert(conversion: Conversion, report: Callable[[str], None] = print) -> Path:
    """Convert a set, or continue where an earlier call ended; finished shards are kept.

    Args:
        conversion: What to convert.
        report: Prints a line.

    Returns:
        The directory of the new set.

    Raises:
        ConfigError: An option does not fit the source.
        DataError: The source cannot be read, the directory holds something else, or the disk cannot
            hold the set.
    """
    out = conversion.out
    if conversion.form in ("parquet", "huggingface"):
        from largebatch.data.arrow import check_installed

        check_installed()
    splits = {split: conversion.open(split) for split in _SPLITS}
    train, validation = (splits[split].classes for split in _SPLITS)
    if train != validation:
        raise DataError(
            f"--from={conversion.source}: training and validation have "
            f"{differing(train, validation)}; convert sets with the same classes"
        )
    work = work_of(out)
    with system_errors(out):
        known = (work / "plan.json").exists() or (out / MANIFEST).exists()
        if out.exists() and not known and any(path != work for path in out.iterdir()):
            raise DataError(f"--out={out} is not an empty directory; remove it or use another")
    with working(out):
        _convert(conversion, splits, report)
    return out


def _convert(
    conversion: Conversion, splits: dict[str, Records], report: Callable[[str], None]
) -> None:
    out, form = conversion.out, conversion.form
    size = {split: _bytes(records) for split, records in splits.items()}
    ends = {
        split: shard_ends(len(records), size[split], conversion.shards)
        for split, records in splits.items()
    }
    plan = {"form": form, "images": "copied"}
    for split, records in splits.items():
        plan[f"{split} source"] = f"{len(records):,} images ({identity(records)})"
        plan[f"{split} shards"] = f"{len(ends[split]):,}"
    done = finished_shards(out, plan)
    tasks = []
    writing = Path(tempfile.mkdtemp(prefix="writing-", dir=work_of(out)))
    for split in _SPLITS:
        firsts = (0, *ends[split][:-1])
        for number, (first, last) in enumerate(zip(firsts, ends[split], strict=True)):
            if (split, number) not in done:
                place = (split, number, len(ends[split]), first, last)
                tasks.append(_Task(conversion, writing, plan[f"{split} source"], *place))
    if not tasks and (out / MANIFEST).exists():
        _check(conversion, splits)
        report(f"{out} is complete")
        return
    if done and tasks:
        report(f"{len(done):,} shards are finished, {len(tasks):,} are missing")
    need = sum(size.values()) - sum(shard.payload for shard in done.values())
    if (free := shutil.disk_usage(out).free) < need:
        raise DataError(
            f"--out={out}: about {need / GIB:,.2f} GiB are needed, {free / GIB:,.2f} are free; "
            "free some or use another directory"
        )
    begin(out, plan)
    total, before = sum(map(len, splits.values())), sum(shard.examples for shard in done.values())
    for split in _SPLITS:
        for folder in (out, writing):
            (folder / forms.FORMS[form].folder.format(split=split)).mkdir(
                parents=True, exist_ok=True
            )
    with jobs.progress("converting", "images", total, before) as advance:
        for shard in jobs.run(_write, tasks, conversion.processes):
            publish(shard, writing, out)
            done[shard.key] = shard
            advance(shard.examples)
    written = {split: [done[split, i] for i in range(len(ends[split]))] for split in _SPLITS}
    metadata = files_of(forms.write_metadata(form, out, splits["train"].classes, written))
    listed = tuple(shard for split in _SPLITS for shard in written[split])
    _check(conversion, splits)
    Manifest(Store(), False, plan, metadata, listed).write(out)
    report(f"done: {total:,} images in {len(listed):,} shards in {out}")
    report(f"train with --config.data.source={form}:{out}")


def _write(task: _Task) -> Shard:
    """Write one shard."""
    conversion = task.conversion
    form = forms.FORMS[conversion.form]
    records = _opened(conversion, task.split, task.identity)
    name = form.folder.format(split=task.split) + form.file.format(
        split=task.split, shard=task.shard, shards=task.shards
    )
    target = conversion.out if form.file == "" else task.written
    payload = form.write(target / name, _examples(task, records), records.classes)
    files = {} if form.file == "" else {name: next(iter(files_of([target / name]).values()))}
    return Shard(task.split, task.shard, task.last - task.first, payload, "copied", files)


def _examples(task: _Task, records: Records) -> Iterator[forms.Example]:
    for first in range(task.first, task.last, _READ_AT_ONCE):
        ids = np.arange(first, min(first + _READ_AT_ONCE, task.last))
        images, labels = records.read(ids)
        for example, image, label in zip(ids.tolist(), images, labels.tolist(), strict=True):
            if not isinstance(image, bytes):
                raise DataError(
                    f"{records.where(example)} is not an encoded image; use a source of image files"
                )
            yield forms.Example(example, image, label)


@functools.lru_cache(maxsize=2)
def _opened(conversion: Conversion, split: str, identity: str) -> Records:
    """Open a split once per process."""
    return conversion.open(split)


def _bytes(records: Records) -> int:
    """Estimate the bytes of the images of a split from a sample of them."""
    count = min(_SAMPLE, len(records))
    # Neighbours are read together, which suits forms without fast random access.
    images = [
        image
        for start in np.linspace(0, len(records) - 16, -(-count // 16)).astype(np.int64)
        for image in records.read(np.arange(max(start, 0), min(start + 16, len(records))))[0]
    ]
    return sum(map(len, images)) * len(records) // len(images)


def _check_folders(conversion: Conversion, splits: dict[str, Records]) -> None:
    """Raise a DataError for a class without an image, which has no folder."""
    for split, records in splits.items():
        directory = conversion.out / forms.FORMS["folder"].folder.format(split=split)
        for label, folder in enumerate(forms.folder_names(records.classes)):
            if not (directory / folder).is_dir():
                raise DataError(
                    f"--to=folder: class {label} ({records.classes[label]}) has no {split} image, "
                    f"which class folders cannot express; remove {conversion.out} and use --to "
                    "arrayrecord"
                )


def _check(conversion: Conversion, splits: dict[str, Records]) -> None:
    """Raise a DataError unless the new set has the examples and classes of the source."""
    spec = f"{conversion.form}:{conversion.out}"
    if conversion.form == "folder":
        _check_folders(conversion, splits)
    for split, records in splits.items():
        found = open_records(spec, split, SourceOptions(sequential=True), finished=False)
        expected = forms.FORMS[conversion.form].classes(records.classes)
        if len(found) != len(records) or found.classes != expected:
            raise DataError(
                f"{spec} has {len(found):,} {split} images of {len(found.classes):,} classes, "
                f"expected {len(records):,} of {len(expected):,}; remove the directory and give "
                "the command again"
            )
