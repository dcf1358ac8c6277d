"""Write a dataset from any input, shard by shard, and continue after an interruption.

While it is written, `.prepare/` in its directory holds its manifest and the shards that are not
finished. ``manifest.json`` takes its place at the end.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import __version__ as pillow_version

from largebatch.data.images import UndecodableError
from largebatch.data.prepare import jobs, records
from largebatch.data.prepare.inputs import Example, Input, Split
from largebatch.data.prepare.manifest import NAME, File, Manifest, Shard
from largebatch.data.progress import progress
from largebatch.data.source import PLAN, WORK
from largebatch.errors import ConfigError, DataError

_GIB = 1 << 30
# Bytes that the records and the files add, relative and for each shard.
_OVERHEAD, _SHARD_OVERHEAD = 1.01, 2 << 16
# Bytes of ImageNet with a shorter side of 256 pixels, relative to those of its files.
_SHRUNK = 0.24
_AS_IS = "as they are"


@dataclass(frozen=True)
class _Task:
    """A shard to be written.

    Attributes:
        part: Its examples.
        path: Where it is written.
        split: `train` or `validation`.
        number: Its number.
        classes: Number of classes.
        side: As for `prepare`.
        imagenet: Whether its images are ImageNet's, of which none may be corrupt.
    """

    part: Iterable[Example]
    path: Path
    split: str
    number: int
    classes: int
    side: int
    imagenet: bool


def prepare(found: Input, out: Path, *, side: int = 0, processes: int = 1) -> Path:
    """Write a dataset, or continue where an earlier call ended.

    Args:
        found: The images.
        out: Where the dataset goes.
        side: Pixels to which the shorter side of larger images is shrunk; 0 stores the files.
        processes: Number of processes.

    Returns:
        The directory of the shards.

    Raises:
        ConfigError: A number is out of range.
        DataError: The images cannot be read, the directory holds something else, or the disk cannot
            hold the dataset.
    """
    if side and not 8 <= side <= 4096:
        raise ConfigError(f"--side: expected 8 to 4096 pixels, got {side}; use 256")
    directory = records.directory_of(out, found.dataset)
    with jobs.system_errors(directory), _working(directory):
        _prepare(found, directory, side, processes)
    print(
        f"train with --config.data.source=tfds:{found.dataset} --config.data.data_dir={out}"
        if found.dataset == records.IMAGENET
        else f"train with --config.data.source=arrayrecord:{directory}"
    )
    return directory


@contextlib.contextmanager
def _working(directory: Path) -> Iterator[None]:
    """Write a dataset in the body, with its lock; `.prepare/` is kept if it is unfinished.

    Raises:
        DataError: Another process writes it, or the directory holds the files of another program.
    """
    work = directory / WORK
    own = (directory / NAME).exists() or (work / PLAN).exists()
    if directory.exists() and not own and any(path != work for path in directory.iterdir()):
        raise DataError(f"--out: {directory} is not empty; use another directory, or remove it")
    work.mkdir(parents=True, exist_ok=True)
    with (work / "lock").open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DataError(
                f"--out: another process prepares {directory}; wait until it has ended"
            ) from error
        except OSError:
            pass  # a file system without locks
        for path in work.glob("writing-*"):  # by a process that was killed
            shutil.rmtree(path, ignore_errors=True)
        try:
            yield
            (work / PLAN).unlink()
        finally:
            if not (work / PLAN).exists():
                shutil.rmtree(work, ignore_errors=True)


def _prepare(found: Input, directory: Path, side: int, processes: int) -> None:
    stored = f"shorter side {side}, JPEG {records.QUALITY}, Pillow {pillow_version}"
    plan = {
        "dataset": found.dataset,
        "images": stored if side else _AS_IS,
        "classes": hashlib.sha256("\n".join(found.classes).encode()).hexdigest()[:16],
    }
    for split in found.splits:
        plan[split.name] = f"{len(split.parts):,} shards of images {split.identity}"
    manifest = Manifest.read(directory) or Manifest(plan, len(found.classes))
    manifest.check_plan(directory, plan)
    manifest.shards = [
        shard
        for shard in manifest.shards
        if (path := directory / shard.file.name).is_file()
        and path.stat().st_size == shard.file.size
    ]
    done = {(shard.split, shard.number) for shard in manifest.shards}
    wanted = [(split, number) for split in found.splits for number in range(len(split.parts))]
    missing = [(split, number) for split, number in wanted if (split.name, number) not in done]
    print(f"{directory}: {len(missing):,} of {len(wanted):,} shards are to be written", flush=True)
    _check_space(found, manifest, directory, side)
    manifest.write(directory / WORK / PLAN)
    writing = Path(tempfile.mkdtemp(prefix="writing-", dir=directory / WORK))
    tasks = [
        _Task(
            split.parts[number],
            writing / _name(found, split, number),
            split.name,
            number,
            len(found.classes),
            side,
            found.dataset == records.IMAGENET,
        )
        for split, number in missing
    ]
    _write(tasks, manifest, directory, processes)
    order = [_name(found, split, number) for split, number in wanted]
    manifest.shards.sort(key=lambda shard: order.index(shard.file.name))
    manifest.metadata = _write_metadata(found, manifest, directory, writing)
    manifest.write(directory / NAME)
    print(f"done: {sum(s.examples for s in manifest.shards):,} images in {directory}")


def _name(found: Input, split: Split, number: int) -> str:
    return f"{found.dataset}-{split.name}.array_record-{number:05d}-of-{len(split.parts):05d}"


def _check_space(found: Input, manifest: Manifest, directory: Path, side: int) -> None:
    """Print the disk space that is needed and compare it with the free space."""
    ratio = min(1.0, _SHRUNK * (side / 256) ** 2) if side else 1.0
    size = sum(split.size for split in found.splits) * ratio * _OVERHEAD
    size += _SHARD_OVERHEAD * sum(len(split.parts) for split in found.splits)
    more = max(0.0, size - sum(shard.file.size for shard in manifest.shards)) / _GIB
    free = shutil.disk_usage(directory).free / _GIB
    print(f"needs about {more:,.2f} GiB more; {free:,.2f} GiB are free")
    if more > free:
        raise DataError(
            f"--out: {directory} needs {more:,.2f} GiB, {free:,.2f} are free; free some, use "
            "another directory or --side=256"
        )


def _write(tasks: Sequence[_Task], manifest: Manifest, directory: Path, processes: int) -> None:
    """Write shards and add them to the manifest.

    Workers write into a folder of this process, which moves complete shards to the dataset: workers
    that outlive a killed preparation cannot change it.

    Raises:
        DataError: Images of ImageNet are corrupt; all other shards have been written.
    """
    corrupt: list[str] = []
    finished = len(manifest.shards)
    with (
        progress("writing", "shards", finished + len(tasks), finished) as advance,
        jobs.run(_write_shard, tasks, processes) as results,
    ):
        for task, result in results:
            if isinstance(result, Shard):
                os.replace(task, directory / result.file.name)
                manifest.shards.append(result)
                manifest.write(directory / WORK / PLAN)
                advance(1)
            else:
                corrupt += result
    if corrupt:
        listed = directory / WORK / "corrupt.txt"
        listed.write_text("\n".join(sorted(corrupt)) + "\n")
        raise DataError(
            f"{jobs.shortened('corrupt images', sorted(corrupt))} (all in {listed}); get them "
            "again, then give the same command again"
        )


def _write_shard(task: _Task) -> tuple[Path, Shard | list[str]]:
    """Write a shard.

    Returns:
        Its path, and what was written; or the corrupt images of ImageNet.

    Raises:
        DataError: The images cannot be read, or a label is out of range.
        OSError: The file cannot be written.
    """
    examples = 0
    corrupt: list[str] = []

    def serialised() -> Iterator[bytes]:
        nonlocal examples
        for key, image, label, where in task.part:
            if not 0 <= label < task.classes:
                raise DataError(
                    f"{where}: expected a label from 0 to {task.classes - 1}, got {label}; correct "
                    "it, or name all classes"
                )
            try:
                stored = records.shrunk(image, task.side) if task.side else image
                if task.imagenet and stored is image:
                    stored = records.as_tfds(key, image)
            except UndecodableError as error:
                if task.imagenet:
                    corrupt.append(f"{where}: {error}")
                    continue
                stored = image  # training reports it
            examples += 1
            yield records.serialise(key, label, stored)

    with records.temporary_files_in(task.path.parent):
        payload = records.write(task.path, serialised())
    if corrupt:
        task.path.unlink()
        return task.path, corrupt
    if not examples:
        raise DataError(f"--out: {task.path.name} would hold no image; remove the empty input file")
    return task.path, Shard(task.split, task.number, examples, payload, File.of(task.path))


def _write_metadata(found: Input, manifest: Manifest, directory: Path, writing: Path) -> list[File]:
    """Write the files beside the shards; the one that makes the directory a dataset comes last."""
    facts: dict[str, list[tuple[int, int]]] = {}
    for shard in manifest.shards:
        facts.setdefault(shard.split, []).append((shard.examples, shard.payload))
    stored = manifest.plan["images"]
    note = "" if stored == _AS_IS else f"Images: {stored}."
    aside = Path(tempfile.mkdtemp(dir=writing))
    records.write_metadata(aside, found.dataset, found.classes, facts, note)
    paths = sorted(path for path in aside.iterdir() if path.is_file())
    written = []
    for path in sorted(paths, key=lambda path: path.name == records.INFO):
        os.replace(path, directory / path.name)
        written.append(File.of(directory / path.name))
    return written
