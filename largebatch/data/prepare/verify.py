"""Reading a finished set again: files, checksums, order, names, labels, images."""

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from largebatch.data import images
from largebatch.data.prepare import dataset, names, records, shards, stored
from largebatch.data.prepare.ledger import MANIFEST, Done, read_manifest, shards_of
from largebatch.data.prepare.plan import Store
from largebatch.data.prepare.progress import progress
from largebatch.data.prepare.workers import run, stop_if_orphaned
from largebatch.errors import DataError

_LISTED = 20  # problems named in the message


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
    """Reads a finished set again.

    Args:
        out: `--out` of its preparation.
        check: As of `stored.check`.
        processes: How many to use.
        say: Takes lines for the user.

    Raises:
        DataError: The set is unfinished, or anything in it is not as it was written.
    """
    directory = dataset.directory(out, Store())
    if not (directory / MANIFEST).exists() and (out / MANIFEST).exists():
        directory = out
    manifest = read_manifest(directory)
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
    problems += _order(results) + _beside(directory, store, listed)
    if problems:
        more = f"; and {len(problems) - _LISTED:,} more" if len(problems) > _LISTED else ""
        raise DataError(
            f"{len(problems):,} problems: {'; '.join(problems[:_LISTED])}{more}; remove the files "
            "named here and give the command that prepared the set: it writes what is missing"
        )
    decoded = "all decoded" if check == "full" and store.kind == "jpeg" else "not decoded"
    say(
        f"{directory}: {total:,} images in {len(listed):,} shards as they were written "
        f"({store.describe()}; {decoded})"
    )


def _verify_shard(task: Task) -> Found:
    problems: list[str] = []
    for name, (size, digest) in task.done.files.items():
        path = task.directory / name
        if not path.is_file():
            problems.append(f"{name} is missing")
        elif path.stat().st_size != size:
            problems.append(f"{name} has {path.stat().st_size:,} bytes instead of {size:,}")
        elif shards.sha256(path) != digest:
            problems.append(f"{name} has changed (its SHA-256 is not {digest[:16]}…)")
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


def _beside(directory: Path, store: Store, listed: list[Done]) -> list[str]:
    """What is wrong with the files beside the shards."""
    name = "index.json" if store.kind == "decoded" else "dataset_info.json"
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
    except (OSError, ValueError, KeyError, TypeError) as error:
        return [f"{name} cannot be read ({error})"]
    return [] if stated == counts else [f"{name} does not list the shards of {MANIFEST}"]
