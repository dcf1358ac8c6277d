"""What is written beside the shards: the manifest, and what TFDS reads.

While a set is written, `.prepare/` holds what its shards depend on (``plan.json``) and a file for
each finished shard. ``manifest.json`` takes their place and is written last.
"""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from largebatch.data.prepare.jobs import system_errors
from largebatch.data.prepare.plan import Store
from largebatch.data.unfinished import PLAN, WORK
from largebatch.errors import DataError
from largebatch.files import read_json, write_json

MANIFEST = "manifest.json"
_FORMAT = {"format": "largebatch ImageNet preparation", "version": 1}
NAME = "imagenet2012"
INDEX = "dataset_info.json"
"""The file that lists the shards and makes the directory a dataset."""

Files = dict[str, tuple[int, str]]
"""Size in bytes and SHA-256 of files, by name."""
Key = tuple[str, int]
"""Split and number of a shard."""


@dataclass(frozen=True)
class Shard:
    """A shard that has been written.

    Attributes:
        split: `train` or `validation`.
        shard: Its number.
        examples: Number of images.
        payload: Bytes of its records.
        check: How its images were checked.
        files: Its files.
    """

    split: str
    shard: int
    examples: int
    payload: int
    check: str
    files: Files

    def __post_init__(self) -> None:
        # JSON has lists in place of tuples.
        object.__setattr__(self, "files", {k: (int(n), d) for k, (n, d) in self.files.items()})

    @property
    def key(self) -> Key:
        """Split and number."""
        return self.split, self.shard

    def present(self, directory: Path) -> bool:
        """Return whether its files exist with their sizes."""
        paths = {directory / name: size for name, (size, _) in self.files.items()}
        return all(path.is_file() and path.stat().st_size == size for path, size in paths.items())

    def bytes(self) -> int:
        """Return the bytes of all its files."""
        return sum(size for size, _ in self.files.values())


@dataclass(frozen=True)
class Manifest:
    """The record of a finished set.

    Attributes:
        store: What is stored of an image.
        md5_of_tars_checked: Whether the tars had their published checksums.
        plan: What the shards depend on; see `plan.identity`.
        metadata: The files beside the shards.
        shards: All shards in their order.
    """

    store: Store
    md5_of_tars_checked: bool
    plan: dict[str, str]
    metadata: Files
    shards: tuple[Shard, ...]

    def write(self, directory: Path) -> None:
        """Write the manifest, which makes the set a finished one."""
        write_json(directory / MANIFEST, _FORMAT | asdict(self))


def read_manifest(directory: Path) -> Manifest:
    """Read the manifest of a finished set.

    Raises:
        DataError: There is none, or it is damaged.
    """
    path = directory / MANIFEST
    try:
        found = read_json(path)
        if not found.items() >= _FORMAT.items():
            raise ValueError(f"not a manifest of version {_FORMAT['version']}")
        return Manifest(
            Store(*(found["store"][key] for key in ("shorter", "quality"))),
            bool(found.get("md5_of_tars_checked")),
            found["plan"],
            {name: (size, digest) for name, (size, digest) in found.get("metadata", {}).items()},
            tuple(Shard(**shard) for shard in found["shards"]),
        )
    except FileNotFoundError as error:
        raise DataError(
            f"{path} is missing: the set is unfinished (give the command that prepares it again) "
            "or was prepared by other means"
        ) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path} cannot be read ({error}); remove it and prepare again") from error


def finished_shards(directory: Path, identity: Mapping[str, str]) -> dict[Key, Shard]:
    """Return the finished shards of a directory whose files exist with their sizes.

    Args:
        directory: Directory of the shards.
        identity: What the shards that are wanted depend on; see `plan.identity`.

    Raises:
        DataError: The directory holds another preparation.
    """
    manifest = read_manifest(directory) if (directory / MANIFEST).exists() else None
    plan = work_of(directory) / PLAN
    earlier = manifest.plan if manifest else read_json(plan) if plan.exists() else None
    if earlier is None:
        return {}
    if earlier != identity:
        differing = [key for key in earlier | identity if earlier.get(key) != identity.get(key)]
        raise DataError(
            f"{directory} holds another preparation: "
            + "; ".join(f"{k}: expected {identity.get(k)}, got {earlier.get(k)}" for k in differing)
            + "; use another --out or the same options, or remove the directory"
        )
    shards = {shard.key: shard for shard in manifest.shards} if manifest else {}
    if plan.exists():
        for path in sorted(work_of(directory).glob("shard-*.json")):
            shard = Shard(**read_json(path))
            shards[shard.key] = shard
    return {key: shard for key, shard in shards.items() if shard.present(directory)}


def begin(directory: Path, identity: Mapping[str, str]) -> None:
    """Record what the shards that follow depend on, unless a preparation has begun."""
    plan = work_of(directory) / PLAN
    if not plan.exists():
        for path in work_of(directory).glob("shard-*.json"):
            path.unlink()
        write_json(plan, identity)


def publish(shard: Shard, written: Path, directory: Path) -> None:
    """Move the files of a shard from where they were written, and record the shard."""
    for name in shard.files:
        os.replace(written / name, directory / name)
    write_json(work_of(directory) / f"shard-{shard.split}-{shard.shard:05d}.json", asdict(shard))


def work_of(directory: Path) -> Path:
    """Return the directory of unfinished work within that of a set."""
    return directory / WORK


def files_of(paths: Iterable[Path]) -> Files:
    """Return size and SHA-256 of files.

    Raises:
        DataError: One cannot be read.
    """
    return {path.name: (path.stat().st_size, sha256(path)) for path in paths}


def changes(directory: Path, recorded: Files) -> list[str]:
    """Return a line for each file that is missing or has changed since it was recorded."""
    found = []
    for name, (size, digest) in recorded.items():
        path = directory / name
        if not path.is_file():
            found.append(f"{name} is missing")
        elif path.stat().st_size != size:
            found.append(f"{name} has {path.stat().st_size:,} bytes instead of {size:,}")
        elif sha256(path) != digest:
            found.append(f"{name} has changed (its SHA-256 is not {digest[:16]}…)")
    return found


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, hexadecimal."""
    with system_errors(path), path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def directory_of(out: Path) -> Path:
    """Return where the shards go: `OUT/imagenet2012/5.1.0`, as TFDS has it."""
    from tensorflow_datasets.datasets.imagenet2012 import imagenet2012_dataset_builder as builder

    return out / NAME / str(builder.Builder.VERSION)


def write_index(directory: Path, store: Store, splits: Mapping[str, Sequence[Shard]]) -> Files:
    """Write the files that make a directory of shards a dataset.

    Args:
        directory: Directory of the shards.
        store: What was stored.
        splits: For each split, all of its shards in their order.
    """
    with tempfile.TemporaryDirectory(dir=work_of(directory)) as aside:
        written = sorted(_tfds_metadata(Path(aside), store, splits).iterdir())
        # The file that makes the directory a dataset comes last.
        for path in sorted(written, key=lambda path: path.name == INDEX):
            os.replace(path, directory / path.name)
    return files_of(directory / path.name for path in written)


def _tfds_metadata(aside: Path, store: Store, splits: Mapping[str, Sequence[Shard]]) -> Path:
    """Let TFDS write dataset_info.json, features.json and the names of the labels."""
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core import naming
    from tensorflow_datasets.core import splits as tfds_splits

    with _temporary_files_in(aside):
        builder = tfds.builder(NAME, data_dir=aside, file_format="array_record")
    template = naming.ShardedFileTemplate(
        dataset_name=NAME, data_dir=builder.data_path, filetype_suffix="array_record"
    )
    infos = [
        tfds_splits.SplitInfo(
            name=split,
            shard_lengths=[shard.examples for shard in shards],
            num_bytes=sum(shard.payload for shard in shards),
            filename_template=template.replace(split=split),
        )
        for split, shards in splits.items()
    ]
    builder.info.set_splits(tfds_splits.SplitDict(infos))
    if store.shorter:
        proto = builder.info.as_proto
        proto.description = f"Re-encoded: {store.describe()}.\n\n{proto.description}"
    builder.data_path.mkdir(parents=True)
    builder.info.write_to_directory(builder.data_path)
    return Path(builder.data_dir)


@contextlib.contextmanager
def _temporary_files_in(folder: Path) -> Iterator[None]:
    """Make temporary files in a folder; TFDS's constructor makes a directory and leaves it."""
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before
