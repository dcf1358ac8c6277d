"""The preparation from end to end."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from largebatch.data import images
from largebatch.data.prepare import (
    checksums,
    dataset,
    folders,
    members,
    names,
    plan,
    shards,
    stored,
    tars,
)
from largebatch.data.prepare.ledger import Done, Ledger, metadata_of, shards_of
from largebatch.data.prepare.locks import HeldElsewhere, held
from largebatch.data.prepare.problems import counted, system_errors
from largebatch.data.prepare.progress import progress
from largebatch.data.prepare.workers import run
from largebatch.errors import ConfigError, DataError

GIB = 1 << 30
_SAMPLE = 64  # images of a split that are re-encoded to estimate the disk need


@dataclass(frozen=True)
class Options:
    """What to prepare, and how.

    Attributes:
        out: Where the set goes.
        tars: Folder of the two tars; or
        folders: folder of `train/` and `val/`.
        store: What is kept of an image.
        check: As of `stored.check`; whatever is re-encoded or decoded is decoded anyway. Shards
            that an earlier call checked less are written again.
        md5: Whether to compare the tars with the published checksums first.
        partial: Whether fewer images, or one split, will do.
        shards: Shards of each split; 0 is as TFDS.
        processes: How many to use.
    """

    out: Path
    tars: Path | None = None
    folders: Path | None = None
    store: plan.Store = field(default_factory=plan.Store)
    check: stored.Check = "ends"
    md5: bool = False
    partial: bool = False
    shards: int = 0
    processes: int = 1

    def __post_init__(self) -> None:
        """Checks the combination.

        Raises:
            ConfigError: It makes no sense.
        """
        if (self.tars is None) == (self.folders is None):
            raise ConfigError("say where the images are: one of --tars and --folders")
        if self.md5 and self.tars is None:
            raise ConfigError("--md5 is for --tars: no checksums are published for images")
        if self.processes < 1 or self.shards < 0:
            raise ConfigError("--processes is at least 1, --shards at least 0")


def prepare(options: Options, say: Callable[[str], None] = print) -> Path:
    """Prepares ImageNet, or goes on where an earlier call ended.

    Args:
        options: What and how.
        say: Takes lines for the user.

    Returns:
        The directory of the shards.

    Raises:
        ConfigError: An option does not fit the images.
        DataError: The images are not what they should be, or the disk cannot hold them.
    """
    directory = dataset.directory(options.out, options.store)
    try:
        with system_errors(directory):
            ledger = Ledger(directory)
            with held(ledger.work / "lock", "exclusive, at once"):
                # Workers of a killed preparation end at their next image.
                with held(ledger.work / "workers", "exclusive"):
                    shards.remove_temporaries(directory)
                _prepare(options, ledger, say)
                shutil.rmtree(ledger.work, ignore_errors=True)
    except HeldElsewhere as error:
        raise DataError(f"another process is preparing {directory}; wait for its end") from error
    return directory


def _prepare(options: Options, ledger: Ledger, say: Callable[[str], None]) -> None:
    if options.md5:
        _check_md5(options, say)
    splits = _find(options, ledger)
    for split in splits:
        say(f"{split.name}: {len(split.members):,} images, {len(split.ends):,} shards")
    identity = plan.identity(options.store, splits)
    present = ledger.shards(identity)
    done = {
        key: shard for key, shard in present.items() if stored.suffices(shard.check, options.check)
    }
    tasks = [
        (split, shard)
        for split in splits
        for shard in range(len(split.ends))
        if (split.name, shard) not in done
    ]
    if weaker := len(present) - len(done):
        say(f"{weaker:,} shards were checked less than --check {options.check}: written again")
    if done and tasks:
        say(f"{len(done):,} shards are there; {len(tasks):,} to go")
    if tasks:
        space = sum(shard.bytes() for shard in present.values())
        _check_space(options, ledger, splits, space, say)
        ledger.begin(identity)
        _write(options, ledger, tasks, done)
    written = {
        split.name: [done[split.name, shard] for shard in range(len(split.ends))]
        for split in splits
    }
    _finish(options, ledger, identity, written, say, fresh=bool(tasks))


def _finish(
    options: Options,
    ledger: Ledger,
    identity: dict[str, str],
    written: dict[str, list[Done]],
    say: Callable[[str], None],
    *,
    fresh: bool,
) -> None:
    """Writes what lies beside the shards, unless it is there and is theirs."""
    listed = [shard for split in written.values() for shard in split]
    manifest = ledger.manifest()
    md5 = options.md5
    if manifest is not None and not fresh:
        metadata = metadata_of(manifest)
        if (
            shards_of(manifest) == listed
            and metadata
            and not checksums.changes(ledger.directory, metadata)
        ):
            say(f"{ledger.directory} is complete; --verify reads it again")
            return
        md5 = manifest["md5_of_tars_checked"]  # of the tars from which the shards were written
    metadata = checksums.files(dataset.write(ledger, options.store, written))
    facts = {"store": asdict(options.store), "md5_of_tars_checked": md5}
    ledger.finish(identity, listed, metadata, facts)
    say(f"done: {sum(shard.bytes() for shard in listed) / GIB:,.2f} GiB in {ledger.directory}")


def _check_md5(options: Options, say: Callable[[str], None]) -> None:
    """Compares the tars with the published checksums, the two at once if there are processes."""
    paths = _sources(options)
    size = sum(path.stat().st_size for path in paths.values())
    say(f"computing the MD5 of {size / GIB:,.1f} GiB of tars")
    sums = dict(run(_md5, list(paths.values()), min(options.processes, len(paths))))
    for split, path in paths.items():
        if sums[path] != names.MD5[split]:
            raise DataError(
                f"{path} has MD5 {sums[path]}, not {names.MD5[split]}; get it again from "
                "image-net.org"
            )
        say(f"{path.name}: MD5 {sums[path]} as published")


def _md5(path: Path) -> tuple[Path, str]:
    return path, tars.md5(path)


def _sources(options: Options) -> dict[str, Path]:
    """For each split that there is its tar or folder."""
    source = options.tars or options.folders
    files = names.TARS if options.tars else folders.FOLDERS
    present = {s: source / files[s] for s in names.SPLITS if (source / files[s]).exists()}
    missing = [files[split] for split in names.SPLITS if split not in present]
    if not present or (missing and not options.partial):
        remedy = "" if not present else ", or say --allow-partial"
        raise DataError(f"{source} has no {' and no '.join(missing)}; put it there{remedy}")
    for path in present.values():
        if not (path.is_file() if options.tars else path.is_dir()):  # a pipe would never end
            raise DataError(f"{path} is no {'file' if options.tars else 'folder'}; put one there")
    return present


def _find(options: Options, ledger: Ledger) -> list[plan.Split]:
    """Finds, checks and orders the images of each split."""
    splits = []
    for split, path in _sources(options).items():
        with progress(f"indexing {path.name}", "classes") as report:
            if options.tars:
                archive = tars.Tar(path)
                cache = ledger.work / f"index-{split}.npz"
                processes = options.processes
                found = tars.index(path, split, cache, processes=processes, report=report)
            else:
                archive, found = folders.index(path, split, report=report)
        members.check(found, split, path, partial=options.partial)
        splits.append(plan.split(split, archive, found, options.shards))
    return splits


def _check_space(
    options: Options,
    ledger: Ledger,
    splits: Sequence[plan.Split],
    present: int,
    say: Callable[[str], None],
) -> None:
    """States the disk need and compares it with what is free."""
    need = sum(
        plan.disk_bytes(options.store, split, ratio=_ratio(split, options.store))
        for split in splits
    )
    more = max(0, need - present)
    free = shutil.disk_usage(ledger.directory).free
    about = "about " if options.store.shorter else ""
    say(
        f"{options.store.describe()}: needs {about}{need / GIB:,.2f} GiB, {more / GIB:,.2f} more "
        f"than is there; {free / GIB:,.2f} GiB free"
    )
    if more > free:
        raise DataError(
            f"{ledger.directory} has {free / GIB:,.2f} GiB free, {more / GIB:,.2f} are needed; "
            "free some, choose another --out or a smaller --store"
        )


def _ratio(split: plan.Split, store: plan.Store) -> float:
    """Bytes of a re-encoded image over those of the original, from a sample."""
    if not store.shorter:
        return 1.0
    step = -(-len(split.members) // _SAMPLE)
    before = after = 0
    for row in split.members.take(slice(None, None, step)).rows():
        data = split.archive.read(row)
        try:
            after += len(stored.jpeg(row[0], data, store, "ends"))
        except images.UndecodableError:
            continue  # reported when its shard is written
        before += len(data)
    return after / before if before else 1.0


def _write(
    options: Options,
    ledger: Ledger,
    which: Sequence[tuple[plan.Split, int]],
    done: dict[tuple[str, int], Done],
) -> None:
    """Writes shards and adds them to `done`."""
    tasks = [
        shards.Task(
            ledger.directory,
            options.store,
            options.check,
            split.name,
            shard,
            len(split.ends),
            split.archive,
            split.shard(shard),
        )
        for split, shard in which
    ]
    images_before = sum(shard.examples for shard in done.values())
    total = images_before + sum(len(task.members) for task in tasks)
    problems: list[shards.Problem] = []
    count = images_before
    with progress("writing", "images", first=images_before) as report:
        for result in run(shards.write, tasks, options.processes, ledger.work / "workers"):
            if isinstance(result, Done):
                ledger.add(result)
                done[result.split, result.shard] = result
                count += result.examples
                report(count, total)
            else:
                problems += result
    if problems:
        _raise_corrupt(sorted(problems), ledger)


def _raise_corrupt(problems: Sequence[shards.Problem], ledger: Ledger) -> None:
    lines = [f"{where}: {what}" for where, what in problems]
    path = ledger.work / "corrupt.txt"
    path.write_text("\n".join(lines) + "\n")
    raise DataError(
        f"{counted('corrupt images', lines)} (all in {path}); "
        "get them again (--md5 tells whether a tar is damaged), then the same command goes on"
    )
