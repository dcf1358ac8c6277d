"""Reading a finished set again: files, checksums, order, names, labels, images."""

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from largebatch.data import images
from largebatch.data.prepare import dataset, names, records, stored
from largebatch.data.prepare.checksums import Files, changes
from largebatch.data.prepare.ledger import MANIFEST, Done, metadata_of, read_manifest, shards_of
from largebatch.data.prepare.plan import Store
from largebatch.data.prepare.problems import counted, system_errors
from largebatch.data.prepare.progress import progress
from largebatch.data.prepare.workers import run, stop_if_orphaned
from largebatch.errors import DataError


@dataclass(frozen=True)
class Task:
    """A shard to be read.

    Attributes:
        directory: Where.
        done: What the manifest says of it.
        check: As of `stored.check`.
        records: Whether it has records, or pixels.
    """

    directory: Path
    done: Done
    check: stored.Check
    records: bool


@dataclass(frozen=True)
class Found:
    """What was found of a shard.

    Attributes:
        done: What the manifest says of it.
        problems: In words.
        first, last: Sort keys of its ends; None where there are no records.
    """

    done: Done
    problems: list[str]
    first: int | None = None
    last: int | None = None


def verify(
    out: Path,
    *,
    check: stored.Check = "full",
    processes: int = 1,
    say: Callable[[str], None] = print,
) -> None:
    """Reads a finished set again; two where there are both JPEGs and pixels.

    Args:
        out: `--out` of its preparation.
        check: As of `stored.check`.
        processes: How many to use.
        say: Takes lines for the user.

    Raises:
        DataError: The set is unfinished, or anything in it is not as it was written.
    """
    with system_errors(out):
        jpegs = dataset.directory(out, Store())
        directories = [path for path in (jpegs, out) if (path / MANIFEST).exists()] or [jpegs]
        manifests = {directory: read_manifest(directory) for directory in directories}
        problems = [
            problem
            for directory, manifest in manifests.items()
            for problem in _verify(directory, manifest, check, processes, say)
        ]
    if problems:
        raise DataError(
            f"{counted('problems', problems)}; remove the files named here and give the command "
            "that prepared the set: it writes what is missing"
        )


def _verify(
    directory: Path,
    manifest: dict,
    check: stored.Check,
    processes: int,
    say: Callable[[str], None],
) -> list[str]:
    """What is wrong with one set; where nothing is, says so."""
    listed = shards_of(manifest)
    store = Store(**manifest["store"])
    tasks = [Task(directory, done, check, store.kind == "jpeg") for done in listed]
    total = sum(done.examples for done in listed)
    found: dict[tuple[str, int], Found] = {}
    count = 0
    with progress("verifying", "images") as report:
        for result in run(_verify_shard, tasks, processes):
            found[result.done.split, result.done.shard] = result
            count += result.done.examples
            report(count, total)
    results = [found[done.split, done.shard] for done in listed]
    problems = [problem for result in results for problem in result.problems]
    problems += _order(results) + _beside(directory, store, listed, metadata_of(manifest))
    if problems:
        return problems
    decoded = "all decoded" if check == "full" and store.kind == "jpeg" else "not decoded"
    say(
        f"{directory}: {total:,} images in {len(listed):,} shards as they were written "
        f"({store.describe()}; {decoded})"
    )
    return []


def _verify_shard(task: Task) -> Found:
    problems = changes(task.directory, task.done.files)
    if problems or not task.records:
        return Found(task.done, problems)
    (name,) = task.done.files
    keys = []
    for key, problem in _read(task.directory / name, task):
        keys.append(key)
        problems += [f"{name}: {problem}"] if problem else []
    if len(keys) != task.done.examples:
        problems.append(f"{name} has {len(keys):,} images instead of {task.done.examples:,}")
    if keys != sorted(set(keys)):
        problems.append(f"{name} is not in order")
    return Found(task.done, problems, keys[0], keys[-1])


def _read(path: Path, task: Task) -> Iterator[tuple[int, str]]:
    """Sort key of each record, and what is wrong with it."""
    from array_record.python.array_record_module import ArrayRecordReader
    from tensorflow_datasets.core.hashing import Hasher

    hasher = Hasher(task.done.split)
    reader = ArrayRecordReader(str(path))
    for _ in range(reader.num_records()):
        stop_if_orphaned()
        name, label, image = records.parse(reader.read())
        problem = ""
        if label != names.image_label(name, str(path)):
            problem = f"{name} has label {label} instead of {names.image_label(name, str(path))}"
        try:
            stored.check(image, task.check)
        except images.UndecodableError as error:
            problem = f"{name}: {error}"
        yield hasher.hash_key(name), problem


def _order(results: list[Found]) -> list[str]:
    """Where a shard begins before the last one's end."""
    readable = [result for result in results if result.first is not None]
    return [
        f"{next(iter(after.done.files))} does not follow {next(iter(before.done.files))}"
        for before, after in itertools.pairwise(readable)
        if before.done.split == after.done.split and after.first <= before.last
    ]


def _beside(directory: Path, store: Store, listed: list[Done], metadata: Files) -> list[str]:
    """What is wrong with the files beside the shards."""
    name = dataset.INDEX[store.kind]
    if name not in metadata:
        return [f"{MANIFEST} does not list {name}"]
    if problems := changes(directory, metadata):
        return problems
    counts: dict[str, list[int]] = {}
    for done in listed:
        counts.setdefault(done.split, []).append(done.examples)
    try:
        text = json.loads((directory / name).read_text())
        if store.kind == "decoded":
            stated = {
                split: [shard["examples"] for shard in shards]
                for split, shards in text["splits"].items()
            }
        else:
            stated = {
                split["name"]: [int(length) for length in split["shardLengths"]]
                for split in text["splits"]
            }
    except (ValueError, KeyError, TypeError) as error:
        return [f"{name} cannot be read ({error})"]
    return [] if stated == counts else [f"{name} does not list the shards of {MANIFEST}"]
