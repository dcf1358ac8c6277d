"""What lies beside the shards so that TFDS, or the decoded store's source, reads them."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from largebatch.data.prepare import names
from largebatch.data.prepare.ledger import Done, Ledger
from largebatch.data.prepare.plan import Store

NAME = "imagenet2012"
INDEX = {"jpeg": "dataset_info.json", "decoded": "index.json"}
"""For each kind of store the file that lists the shards and makes the directory a set."""


def directory(out: Path, store: Store) -> Path:
    """Where the shards go: `OUT/imagenet2012/5.1.0` as TFDS has it, `OUT` itself for pixels."""
    if store.kind == "decoded":
        return out
    from tensorflow_datasets.datasets.imagenet2012 import imagenet2012_dataset_builder as builder

    return out / NAME / str(builder.Builder.VERSION)


def write(ledger: Ledger, store: Store, splits: dict[str, Sequence[Done]]) -> list[Path]:
    """Writes it; from then on the set can be opened.

    Args:
        ledger: Of the directory.
        store: What was kept.
        splits: For each split all of its shards, in their order.

    Returns:
        The files.
    """
    if store.kind == "decoded":
        return _write_index(ledger.directory, store, splits)
    return _write_info(ledger, store, splits)


def _write_index(folder: Path, store: Store, splits: dict[str, Sequence[Done]]) -> list[Path]:
    from largebatch.data.decoded_store import ShardFacts, write_index

    shards = {}
    for split, done in splits.items():
        shards[split] = []
        for shard in done:
            (file,) = (name for name in shard.files if "-images-" in name)
            shards[split].append(ShardFacts(file, shard.examples, shard.files[file][1]))
    write_index(folder, size=store.size, classes=names.classes(), shards=shards)
    return [folder / INDEX["decoded"]]


def _write_info(ledger: Ledger, store: Store, splits: dict[str, Sequence[Done]]) -> list[Path]:
    """Has TFDS write what it writes itself: dataset_info.json, features.json, label names."""
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core import naming
    from tensorflow_datasets.core import splits as tfds_splits

    aside = ledger.work / "info"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    with _temporary_files_in(aside):
        builder = tfds.builder(NAME, data_dir=aside, file_format="array_record")
    template = naming.ShardedFileTemplate(
        dataset_name=NAME, data_dir=builder.data_path, filetype_suffix="array_record"
    )
    builder.info.set_splits(
        tfds_splits.SplitDict(
            [
                tfds_splits.SplitInfo(
                    name=split,
                    shard_lengths=[shard.examples for shard in done],
                    num_bytes=sum(shard.payload for shard in done),
                    filename_template=template.replace(split=split),
                )
                for split, done in splits.items()
            ]
        )
    )
    if store.shorter:
        proto = builder.info.as_proto
        proto.description = f"Re-encoded: {store.describe()}.\n\n{proto.description}"
    builder.data_path.mkdir(parents=True)
    builder.info.write_to_directory(builder.data_path)
    written = sorted(Path(builder.data_dir).iterdir())
    # The one that makes the directory a set comes last.
    for path in sorted(written, key=lambda path: path.name == INDEX["jpeg"]):
        os.replace(path, ledger.directory / path.name)
    return [ledger.directory / path.name for path in written]


@contextlib.contextmanager
def _temporary_files_in(folder: Path) -> Iterator[None]:
    """Keep temporary files in a folder; TFDS' constructor makes a directory and leaves it there."""
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before
