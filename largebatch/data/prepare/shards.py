"""Writing one shard: whole or not at all, always the same bytes."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from largebatch.data import images
from largebatch.data.prepare import checksums, records, stored
from largebatch.data.prepare.ledger import Done
from largebatch.data.prepare.members import Archive, Members, Row
from largebatch.data.prepare.plan import Store
from largebatch.data.prepare.workers import stop_if_orphaned

Problem = tuple[str, str]
"""Where an image lies, and what is wrong with it."""


@dataclass(frozen=True)
class Task:
    """A shard to be written.

    Attributes:
        directory: Where.
        store: What is kept of an image.
        check: As of `stored.check`.
        split: `train` or `validation`.
        shard: Its number.
        shards: How many the split has.
        archive: What holds the images.
        members: They.
    """

    directory: Path
    store: Store
    check: stored.Check
    split: str
    shard: int
    shards: int
    archive: Archive
    members: Members


class _Spoilt(Exception):
    """Some image cannot be decoded: the shard must not appear."""


def write(task: Task) -> Done | list[Problem]:
    """Writes a shard.

    Args:
        task: Which.

    Returns:
        What was written; or, if images are corrupt, which, and nothing was written.

    Raises:
        DataError: The images cannot be read.
        OSError: The disk cannot be written.
    """
    problems: list[Problem] = []
    try:
        if task.store.kind == "decoded":
            files, payload = _decoded(task, problems)
        else:
            files, payload = _array_record(task, problems)
    except _Spoilt:
        return problems
    check = "full" if task.store.kind == "decoded" else task.check
    facts = checksums.files(files)
    return Done(task.split, task.shard, len(task.members), payload, check, facts)


def file_name(split: str, shard: int, shards: int) -> str:
    """TFDS's name of a shard."""
    return f"imagenet2012-{split}.array_record-{shard:05d}-of-{shards:05d}"


def remove_temporaries(directory: Path) -> None:
    """Removes what killed processes left half-written."""
    for path in directory.glob(".*.tmp"):
        path.unlink(missing_ok=True)


def _array_record(task: Task, problems: list[Problem]) -> tuple[list[Path], int]:
    path = task.directory / file_name(task.split, task.shard, task.shards)
    temporary = path.with_name(f".{path.name}.tmp")
    payload = 0

    def encoded() -> Iterator[bytes]:
        nonlocal payload
        for row, data in _read(task):
            try:
                image = stored.jpeg(row[0], data, task.store, task.check)
            except images.UndecodableError as error:
                problems.append((task.archive.where(row), str(error)))
                continue
            record = records.serialise(row[0], row[1], image)
            payload += len(record)
            yield record
        if problems:
            raise _Spoilt

    try:
        records.write(temporary, encoded())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return [path], payload


def _decoded(task: Task, problems: list[Problem]) -> tuple[list[Path], int]:
    from largebatch.data.decoded_store import file_name as decoded_name
    from largebatch.data.decoded_store import write_shard

    sizes: list[tuple[int, int]] = []

    def pixels() -> Iterator[np.ndarray]:
        for row, data in _read(task):
            try:
                sizes.append(images.size_of(data))
                yield stored.decoded(data, task.store.size)
            except images.UndecodableError as error:
                problems.append((task.archive.where(row), str(error)))
                yield np.zeros((task.store.size, task.store.size, 3), np.uint8)
        if problems:
            raise _Spoilt

    facts = write_shard(
        task.directory,
        task.split,
        task.shard,
        task.shards,
        pixels(),
        task.members.labels.tolist(),
        sizes,
    )
    paths = [
        task.directory / decoded_name(task.split, what, task.shard, task.shards)
        for what in ("images", "labels", "sizes")
    ]
    return paths, facts.examples * 3 * task.store.size**2


def _read(task: Task) -> Iterator[tuple[Row, bytes]]:
    rows = task.members.rows()
    task.archive.expect(rows)
    for row in rows:
        stop_if_orphaned()
        yield row, task.archive.read(row)
