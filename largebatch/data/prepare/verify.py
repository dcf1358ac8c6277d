"""Check of a finished set: files, checksums, counts, order, names, labels and images."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from largebatch.data import images
from largebatch.data.prepare import jobs, names, records
from largebatch.data.prepare.jobs import counted, system_errors
from largebatch.data.prepare.metadata import (
    INDEX,
    MANIFEST,
    Manifest,
    Shard,
    changes,
    directory_of,
    read_manifest,
)
from largebatch.data.prepare.shards import Check, check_image
from largebatch.errors import DataError


@dataclass(frozen=True)
class _Task:
    """A shard to be checked, and whether it has records, not pixels."""

    directory: Path
    shard: Shard
    check: Check
    records: bool


def verify(
    out: Path, *, check: Check = "full", processes: int = 1, report: Callable[[str], None] = print
) -> None:
    """Check a finished set, or two where there are both JPEGs and pixels.

    Args:
        out: `--out` of its preparation.
        check: See `shards.check_image`.
        processes: Number of processes.
        report: Prints a line.

    Raises:
        DataError: The set is unfinished, or anything in it is not as it was written.
    """
    with system_errors(out):
        jpegs = directory_of(out)
        directories = [path for path in (jpegs, out) if (path / MANIFEST).exists()] or [jpegs]
        manifests = {directory: read_manifest(directory) for directory in directories}
        problems = []
        for directory, manifest in manifests.items():
            problems += _verify(directory, manifest, check, processes, report)
    if problems:
        raise DataError(
            f"{counted('problems', problems)}; remove the files named here and give the command "
            "that prepared the set again: it writes what is missing"
        )


def _verify(
    directory: Path, manifest: Manifest, check: Check, processes: int, report: Callable[[str], None]
) -> list[str]:
    """Return what is wrong with one set; print a line if nothing is."""
    converted = "form" in manifest.plan  # by `convert`: any names, in any order
    tasks = [_Task(directory, shard, check, not converted) for shard in manifest.shards]
    total = sum(shard.examples for shard in manifest.shards)
    problems: dict[str, list[str]] = {}
    with jobs.progress("verifying", "images", total) as advance:
        for shard, found in jobs.run(_verify_shard, tasks, processes):
            problems[next(iter(shard.files), "")] = found
            advance(shard.examples)
    listed = [line for name in sorted(problems) for line in problems[name]]
    listed += (
        [] if converted or INDEX in manifest.metadata else [f"{MANIFEST} does not list {INDEX}"]
    )
    listed += changes(directory, manifest.metadata)
    if not listed:
        decoded = "all decoded" if check == "full" and not converted else "not decoded"
        report(
            f"{directory}: {total:,} images in {len(manifest.shards):,} shards are as they were "
            f"written ({manifest.store.describe()}; {decoded})"
        )
    return listed


def _verify_shard(task: _Task) -> tuple[Shard, list[str]]:
    """Return what is wrong with a shard."""
    problems = changes(task.directory, task.shard.files)
    if problems or not task.records:
        return task.shard, problems
    (name,) = task.shard.files
    keys = []
    for key, problem in _read(task.directory / name, task):
        keys.append(key)
        problems += [f"{name}: {problem}"] if problem else []
    if len(keys) != task.shard.examples:
        problems.append(f"{name} has {len(keys):,} images instead of {task.shard.examples:,}")
    if keys != sorted(set(keys)):
        problems.append(f"{name} is not in order")
    return task.shard, problems


def _read(path: Path, task: _Task) -> Iterator[tuple[int, str]]:
    """Yield the sort key of each record, and what is wrong with it."""
    from array_record.python.array_record_module import ArrayRecordReader
    from tensorflow_datasets.core.hashing import Hasher

    hasher = Hasher(task.shard.split)
    reader = ArrayRecordReader(str(path))
    for _ in range(reader.num_records()):
        name, label, image = records.parse(reader.read())
        problem = ""
        expected = names.image_label(name, str(path))
        if label != expected:
            problem = f"{name} has label {label} instead of {expected}"
        try:
            check_image(image, task.check)
        except images.UndecodableError as error:
            problem = f"{name}: {error}"
        yield hasher.hash_key(name), problem
