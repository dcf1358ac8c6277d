"""Preparation of ImageNet from its tars, or from extracted images, to a set that sources read."""

import contextlib
import fcntl
import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from largebatch.data import images
from largebatch.data.prepare import archives, jobs, names, plan, shards, tar_index
from largebatch.data.prepare.jobs import counted, system_errors
from largebatch.data.prepare.metadata import (
    MANIFEST,
    Key,
    Manifest,
    Shard,
    begin,
    changes,
    directory_of,
    finished_shards,
    publish,
    read_manifest,
    work_of,
    write_index,
)
from largebatch.errors import ConfigError, DataError

GIB = 1 << 30
_SAMPLE = 64  # images of a split that are re-encoded to estimate the disk space


@dataclass(frozen=True)
class Options:
    """What to prepare, and how.

    Attributes:
        out: Where the set goes.
        tars: Folder of the two tars; or
        folders: folder of `train/` and `val/`.
        store: What is stored of an image.
        check: See `shards.check_image`; images that are re-encoded are decoded in any case. Shards
            that an earlier call checked less are written again.
        md5: Compare the tars with the published checksums first.
        partial: Accept fewer images, or one split.
        shards: Number of shards of each split; 0 is that of TFDS.
        processes: Number of processes.

    Raises:
        ConfigError: The options do not fit each other.
    """

    out: Path
    tars: Path | None = None
    folders: Path | None = None
    store: plan.Store = field(default_factory=plan.Store)
    check: shards.Check = "ends"
    md5: bool = False
    partial: bool = False
    shards: int = 0
    processes: int = 1

    def __post_init__(self) -> None:
        if (self.tars is None) == (self.folders is None):
            raise ConfigError("use one of --tars and --folders")
        if self.md5 and self.tars is None:
            raise ConfigError("--md5 is for --tars: no checksums are published for images")
        jobs.check_counts(self.processes, self.shards)


def prepare(options: Options, report: Callable[[str], None] = print) -> Path:
    """Prepare ImageNet, or continue where an earlier call ended.

    Args:
        options: What and how.
        report: Prints a line.

    Returns:
        The directory of the shards.

    Raises:
        ConfigError: An option does not fit the images.
        DataError: The images are not complete and valid, or the disk cannot hold them.
    """
    directory = directory_of(options.out)
    with working(directory):
        _prepare(options, directory, report)
    return directory


@contextlib.contextmanager
def working(directory: Path) -> Iterator[None]:
    """Write a set in the body: it has the lock, and its `work_of` without what a killed call left.

    That directory is deleted after the body, and kept if it raises.

    Args:
        directory: Directory of the set; it is created.

    Raises:
        DataError: Another process writes it, or the system reports an error.
    """
    work = work_of(directory)
    with system_errors(directory):
        work.mkdir(parents=True, exist_ok=True)
        with _locked(work / "lock"):
            for path in work.glob("writing-*"):
                shutil.rmtree(path, ignore_errors=True)
            yield
            shutil.rmtree(work, ignore_errors=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock, which the system releases whenever the process ends.

    Raises:
        DataError: Another process holds it.
    """
    with path.open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DataError(
                f"another process prepares {path.parent.parent}; wait until it has ended"
            ) from error
        except OSError:
            pass  # a file system without locks
        yield


def _prepare(options: Options, directory: Path, report: Callable[[str], None]) -> None:
    if options.md5:
        _check_md5(options, report)
    splits = [_find(split, path, options) for split, path in _sources(options).items()]
    for split in splits:
        report(f"{split.name}: {len(split.rows):,} images, {len(split.ends):,} shards")
    identity = plan.identity(options.store, splits)
    present = finished_shards(directory, identity)
    needed = shards.CHECKS.index(options.check)
    done = {k: shard for k, shard in present.items() if shards.CHECKS.index(shard.check) >= needed}
    tasks = [
        (split, number)
        for split in splits
        for number in range(len(split.ends))
        if (split.name, number) not in done
    ]
    if weaker := len(present) - len(done):
        report(f"--check {options.check}: {weaker:,} shards were checked less, rewriting them")
    if done and tasks:
        report(f"{len(done):,} shards are finished, {len(tasks):,} are missing")
    if tasks:
        _check_space(options, directory, splits, sum(s.bytes() for s in present.values()), report)
        begin(directory, identity)
        _write(options, directory, tasks, done)
    written = {
        split.name: [done[split.name, number] for number in range(len(split.ends))]
        for split in splits
    }
    _finish(options, directory, identity, written, report, fresh=bool(tasks))


def _sources(options: Options) -> dict[str, Path]:
    """Return the tar or folder of each split that exists."""
    source = options.tars or options.folders
    files = names.TARS if options.tars else names.FOLDERS
    present = {s: source / files[s] for s in names.SPLITS if (source / files[s]).exists()}
    missing = [files[split] for split in names.SPLITS if split not in present]
    if not present or (missing and not options.partial):
        remedy = "" if not present else ", or use --allow-partial"
        raise DataError(f"{source} has no {' and no '.join(missing)}; put it there{remedy}")
    for path in present.values():
        if not (path.is_file() if options.tars else path.is_dir()):  # a pipe would never end
            raise DataError(f"{path} is not a {'file' if options.tars else 'folder'}; replace it")
    return present


def _check_md5(options: Options, report: Callable[[str], None]) -> None:
    """Compare the tars with the published checksums, in parallel."""
    paths = _sources(options)
    size = sum(path.stat().st_size for path in paths.values())
    report(f"computing the MD5 of {size / GIB:,.1f} GiB of tars")
    sums = dict(jobs.run(md5, list(paths.values()), min(options.processes, len(paths))))
    for split, path in paths.items():
        if sums[path] != names.MD5[split]:
            raise DataError(
                f"{path}: expected MD5 {names.MD5[split]}, got {sums[path]}; get it again from "
                "image-net.org"
            )
        report(f"{path.name}: MD5 {sums[path]} as published")


def md5(path: Path) -> tuple[Path, str]:
    """Return a file and its MD5, hexadecimal."""
    with system_errors(path), path.open("rb") as stream:
        digest = hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False))
        return path, digest.hexdigest()


def _find(split: str, path: Path, options: Options) -> plan.Split:
    """Find, check and order the images of a split."""
    index = tar_index.index_tar if options.tars else archives.index_folder
    archive, found = index(path, split, options.processes)
    archives.check(found, split, path, partial=options.partial)
    return plan.split(split, archive, found, options.shards)


def _check_space(
    options: Options,
    directory: Path,
    splits: Sequence[plan.Split],
    present: int,
    report: Callable[[str], None],
) -> None:
    """Print the disk space that is needed and compare it with the free space."""
    need = sum(disk_need(split, options.store) for split in splits)
    more, free = max(0, need - present), shutil.disk_usage(directory).free
    about = "about " if options.store.shorter else ""
    report(
        f"{options.store.describe()}: needs {about}{need / GIB:,.2f} GiB, {more / GIB:,.2f} more "
        f"than is there; {free / GIB:,.2f} GiB free"
    )
    if more > free:
        raise DataError(
            f"{directory}: {more / GIB:,.2f} GiB are needed, {free / GIB:,.2f} are free; free "
            "some, or use another --out or --shorter"
        )


def disk_need(split: plan.Split, store: plan.Store) -> int:
    """Estimate the disk space of a split in bytes; re-encode a sample if images are shrunk."""
    before = after = 0
    if store.shorter:
        rows = split.rows[:: -(-len(split.rows) // _SAMPLE)]
        for row, data in zip(rows, split.archive.read(rows), strict=True):
            # A corrupt image is reported when its shard is written.
            with contextlib.suppress(images.UndecodableError):
                after += len(shards.stored_jpeg(row.name, data, store, "ends"))
                before += len(data)
    return plan.disk_bytes(split, ratio=after / before if before else 1.0)


def _write(
    options: Options,
    directory: Path,
    which: Sequence[tuple[plan.Split, int]],
    done: dict[Key, Shard],
) -> None:
    """Write shards and add them to `done`.

    Workers write into a folder of this process, which moves complete shards to the set: workers
    that outlive a killed preparation cannot change the set.

    Raises:
        DataError: Images are corrupt; all other shards have been written.
    """
    writing = Path(tempfile.mkdtemp(prefix="writing-", dir=work_of(directory)))
    tasks = [
        shards.Task(
            writing,
            options.store,
            options.check,
            split.name,
            number,
            len(split.ends),
            split.archive,
            split.shard(number),
        )
        for split, number in which
    ]
    problems: list[shards.Problem] = []
    before = sum(shard.examples for shard in done.values())
    total = before + sum(len(task.rows) for task in tasks)
    with jobs.progress("writing", "images", total, before) as advance:
        for result in jobs.run(shards.write, tasks, options.processes):
            if isinstance(result, Shard):
                publish(result, writing, directory)
                done[result.key] = result
                advance(result.examples)
            else:
                problems += result
    if problems:
        lines = [f"{where}: {what}" for where, what in sorted(problems)]
        path = work_of(directory) / "corrupt.txt"
        path.write_text("\n".join(lines) + "\n")
        raise DataError(
            f"{counted('corrupt images', lines)} (all in {path}); get them again (--md5 shows "
            "whether a tar is damaged), then give the same command again"
        )


def _finish(
    options: Options,
    directory: Path,
    identity: Mapping[str, str],
    written: Mapping[str, Sequence[Shard]],
    report: Callable[[str], None],
    *,
    fresh: bool,
) -> None:
    """Write the files beside the shards, unless they exist and belong to these shards."""
    listed = tuple(shard for split in written.values() for shard in split)
    checked = options.md5
    if not fresh and (directory / MANIFEST).exists():
        manifest = read_manifest(directory)
        same = manifest.shards == listed and manifest.metadata
        if same and not changes(directory, manifest.metadata):
            report(f"{directory} is complete; --verify checks it")
            return
        checked = manifest.md5_of_tars_checked  # those from which the shards were written
    metadata = write_index(directory, options.store, written)
    Manifest(options.store, checked, dict(identity), metadata, listed).write(directory)
    report(f"done: {sum(shard.bytes() for shard in listed) / GIB:,.2f} GiB in {directory}")
