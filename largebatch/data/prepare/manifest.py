"""The record of a prepared dataset, while it is written and afterwards, and its check."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from largebatch.data import images
from largebatch.data.formats import KEYS, open_array_record_file, parse_example
from largebatch.data.prepare import jobs, records
from largebatch.data.progress import progress
from largebatch.data.source import PLAN, WORK
from largebatch.errors import DataError
from largebatch.files import read_json, write_json

NAME = "manifest.json"
_FORMAT = {"format": "largebatch prepared dataset", "version": 2}


class File(NamedTuple):
    """A file that has been written."""

    name: str
    size: int
    """Bytes."""
    sha256: str
    """Hexadecimal."""

    @classmethod
    def of(cls, path: Path) -> "File":
        """Return the facts of a file."""
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        return cls(path.name, path.stat().st_size, digest)

    def problem(self, directory: Path) -> str:
        """Return what differs from the file in a directory; '' if nothing does."""
        path = directory / self.name
        if not path.is_file():
            return f"{self.name} is missing"
        return "" if File.of(path) == self else f"{self.name} has changed"


class Shard(NamedTuple):
    """A shard that has been written."""

    split: str
    number: int
    examples: int
    payload: int
    """Bytes of its records."""
    file: File


@dataclass
class Manifest:
    """What is known of a dataset: `.prepare/plan.json` while it is written, then `manifest.json`.

    Attributes:
        plan: What the bytes of the shards depend on, in words; `dataset` is its name.
        classes: Number of classes.
        shards: The finished shards.
        metadata: The files beside them.
    """

    plan: dict[str, str]
    classes: int
    shards: list[Shard] = field(default_factory=list)
    metadata: list[File] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        write_json(path, _FORMAT | vars(self))

    @classmethod
    def read(cls, directory: Path) -> "Manifest | None":
        """Read that of a dataset, finished or not; None if there is none.

        Raises:
            DataError: It is damaged, or of another version.
        """
        paths = [directory / WORK / PLAN, directory / NAME]
        path = next((path for path in paths if path.exists()), None)
        if path is None:
            return None
        try:
            found = read_json(path)
            if not found.items() >= _FORMAT.items():
                raise ValueError(f"not of version {_FORMAT['version']}")
            return cls(
                dict(found["plan"]),
                int(found["classes"]),
                [Shard(*shard, File(*file)) for *shard, file in found["shards"]],
                [File(*file) for file in found["metadata"]],
            )
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path} cannot be read ({error}); prepare the dataset in another directory"
            ) from error

    def check_plan(self, directory: Path, wanted: Mapping[str, str]) -> None:
        """Raise a DataError unless the shards depend on what is wanted."""
        differing = [k for k in self.plan | wanted if self.plan.get(k) != wanted.get(k)]
        if differing:
            raise DataError(
                f"--out: {directory} holds another preparation: "
                + "; ".join(f"{k}: {self.plan.get(k)}, not {wanted.get(k)}" for k in differing)
                + "; use another directory, or the same input and options"
            )


def verify(out: Path, *, processes: int = 1) -> None:
    """Check a finished dataset: sizes and SHA-256 of all files, labels, and that images decode.

    Args:
        out: `--out` of its preparation.
        processes: Number of processes.

    Raises:
        DataError: The dataset is unfinished, or anything in it is not as it was written.
    """
    with jobs.system_errors(out):
        inner = records.directory_of(out, records.IMAGENET)
        directory = inner if (inner / NAME).exists() else out
        manifest = Manifest.read(directory)
        if manifest is None or (directory / WORK / PLAN).exists():
            raise DataError(
                f"{directory / NAME} is missing, or the dataset is unfinished; give the command "
                "that prepares it"
            )
        problems = [p for file in manifest.metadata if (p := file.problem(directory))]
        tasks = [(directory, manifest.classes, shard) for shard in manifest.shards]
        with (
            progress("verifying", "shards", len(tasks)) as advance,
            jobs.run(_verify_shard, tasks, processes) as results,
        ):
            for found in results:
                problems += found
                advance(1)
    if problems:
        raise DataError(
            f"{jobs.shortened('problems', sorted(problems))}; replace corrupt images, remove the "
            "files named here and give the command that prepared the dataset again"
        )
    total = sum(shard.examples for shard in manifest.shards)
    print(f"{directory}: {total:,} images in {len(tasks):,} shards are valid")


def _verify_shard(task: tuple[Path, int, Shard]) -> list[str]:
    """Return what is wrong with a shard."""
    directory, classes, shard = task
    name = shard.file.name
    if problem := shard.file.problem(directory):
        return [problem]
    problems = []
    reader = open_array_record_file(str(directory / name))
    if reader.num_records() != shard.examples:
        problems.append(f"{name} has {reader.num_records():,} images, not {shard.examples:,}")
    for row in range(reader.num_records()):
        record = reader.read([row])[0]
        image, label = parse_example(record, KEYS[:1])
        if not 0 <= label < classes:
            problems.append(f"{name}: {records.key_of(record)} has label {label} of {classes}")
        try:
            images.Picture(image).pixels()
        except images.UndecodableError as error:
            problems.append(f"{name}: {records.key_of(record)}: {error}")
    return problems
