"""Forms in which a set of encoded images is written; the sources of the same names read them."""

import io
import json
import os
import re
import struct
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from largebatch.data.folder import class_order
from largebatch.data.prepare import records
from largebatch.data.prepare.metadata import Shard
from largebatch.files import replacing, write_json

if TYPE_CHECKING:
    import pyarrow as pa

_SIGNATURES = {
    b"\xff\xd8": "jpg",
    b"\x89PNG": "png",
    b"RIFF": "webp",
    b"BM": "bmp",
    b"II*\0": "tif",
    b"MM\0*": "tif",
    b"P6": "ppm",
    b"P5": "pgm",
}
_ARROW_BATCH = 16 << 20  # bytes


class Example(NamedTuple):
    """An image to be written."""

    number: int
    image: bytes
    label: int

    @property
    def name(self) -> str:
        """Name of the file: the number of the example and the suffix of its content."""
        found = (s for start, s in _SIGNATURES.items() if self.image.startswith(start))
        return f"{self.number:08}.{next(found, 'jpg')}"


Examples = Iterable[Example]
Classes = tuple[str, ...]


def folder_names(classes: Classes) -> Classes:
    """Return a folder for each class, in the order of the labels when they are sorted by name.

    They are the names of the classes if these are sorted, distinct and names of files; otherwise
    they begin with the label.
    """
    valid = all(re.fullmatch(r"[^./\0][^/\0]{0,199}", name) for name in classes)
    if valid and list(classes) == class_order(set(classes)):
        return classes
    width = len(str(len(classes) - 1))
    return tuple(
        f"{label:0{width}}_{re.sub(r'[^0-9A-Za-z]+', '_', name)[:60]}"
        for label, name in enumerate(classes)
    )


def _write_folder(path: Path, examples: Examples, classes: Classes) -> int:
    folders, payload = folder_names(classes), 0
    for example in examples:
        file = path / folders[example.label] / example.name
        file.parent.mkdir(exist_ok=True)
        unfinished = file.with_name(f".{file.name}")  # the source leaves out hidden files
        unfinished.write_bytes(example.image)
        unfinished.replace(file)
        payload += len(example.image)
    os.sync()  # once, not for each image
    return payload


def _serialised(examples: Examples) -> Iterator[bytes]:
    return (records.serialise(e.name, e.label, e.image) for e in examples)


def _write_array_record(path: Path, examples: Examples, classes: Classes) -> int:
    return records.write(path, _serialised(examples))


def _write_tfrecord(path: Path, examples: Examples, classes: Classes) -> int:
    from largebatch.files import masked_crc32c

    payload = 0
    with _synced(path) as stream:
        for record in _serialised(examples):
            length = struct.pack("<Q", len(record))
            stream.write(length + struct.pack("<I", masked_crc32c(length)))
            stream.write(record + struct.pack("<I", masked_crc32c(record)))
            payload += len(record)
    return payload


def _write_tar(path: Path, examples: Examples, classes: Classes) -> int:
    payload = 0
    with _synced(path) as stream, tarfile.open(fileobj=stream, mode="w") as tar:
        for example in examples:
            stem, _, extension = example.name.partition(".")
            for suffix, data in ((extension, example.image), ("cls", b"%d" % example.label)):
                member = tarfile.TarInfo(f"{stem}.{suffix}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
                payload += len(data)
    return payload


def _write_parquet(path: Path, examples: Examples, classes: Classes) -> int:
    import pyarrow.parquet as pq

    from largebatch.data.huggingface import LARGEST_GROUP

    payload = 0
    schema = _schema(classes)
    with _synced(path) as stream, pq.ParquetWriter(stream, schema, compression="none") as writer:
        # The names and labels of the images are a part of the group.
        for batch, size in _batches(examples, LARGEST_GROUP * 7 // 8, schema):
            writer.write_batch(batch)  # a row group
            payload += size
    return payload


def _write_arrow(path: Path, examples: Examples, classes: Classes) -> int:
    import pyarrow as pa

    payload = 0
    schema = _schema(classes)
    with _synced(path) as stream, pa.ipc.new_stream(stream, schema) as writer:
        for batch, size in _batches(examples, _ARROW_BATCH, schema):
            writer.write_batch(batch)
            payload += size
    return payload


def _features(classes: Classes) -> dict[str, Any]:
    """Return the features as `datasets` describes them."""
    return {
        "image": {"_type": "Image"},
        "label": {"names": list(classes), "_type": "ClassLabel"},
    }


def _schema(classes: Classes) -> "pa.Schema":
    import pyarrow as pa

    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    description = json.dumps({"info": {"features": _features(classes)}})
    return pa.schema([("image", image), ("label", pa.int64())], {"huggingface": description})


def _batches(
    examples: Examples, most: int, schema: "pa.Schema"
) -> Iterator[tuple["pa.RecordBatch", int]]:
    """Yield batches of at most some bytes, one example at least, and their bytes."""
    import pyarrow as pa

    def batch() -> tuple["pa.RecordBatch", int]:
        images = [{"bytes": e.image, "path": e.name} for e in kept]
        columns = [pa.array(images, schema.types[0]), pa.array([e.label for e in kept], pa.int64())]
        return pa.RecordBatch.from_arrays(columns, schema=schema), size

    kept: list[Example] = []
    size = 0
    for example in examples:
        if kept and size + len(example.image) > most:
            yield batch()
            kept, size = [], 0
        kept.append(example)
        size += len(example.image)
    if kept:
        yield batch()


@contextmanager
def _synced(path: Path) -> Iterator[BinaryIO]:
    """Open a file that is on the disk when the body has ended."""
    with path.open("wb") as stream:
        yield stream
        stream.flush()
        os.fsync(stream.fileno())


class Form(NamedTuple):
    """A form that can be written."""

    write: Callable[[Path, Examples, Classes], int]
    """Writes a shard and returns the bytes of its records."""
    file: str
    """Name of a shard; empty for a form without shards."""
    folder: str = ""
    """Folder of the shards of a split, with a slash at its end."""
    classes: Callable[[Classes], Classes] = lambda classes: classes
    """Returns the names under which a source finds the classes."""


_OF = "-{shard:05}-of-{shards:05}"
FORMS: dict[str, Form] = {
    "folder": Form(_write_folder, "", "{split}/", folder_names),
    "arrayrecord": Form(_write_array_record, "{split}.array_record" + _OF),
    "tfrecord": Form(_write_tfrecord, "{split}.tfrecord" + _OF),
    "webdataset": Form(_write_tar, "{split}" + _OF + ".tar"),
    "parquet": Form(_write_parquet, "{split}" + _OF + ".parquet"),
    "huggingface": Form(_write_arrow, "data" + _OF + ".arrow", "{split}/"),
}
"""By the scheme of the source that reads them."""


def write_metadata(
    form: str, out: Path, classes: Classes, shards: Mapping[str, Sequence[Shard]]
) -> list[Path]:
    """Write the files beside the shards and return their paths.

    Args:
        form: Name of the form.
        out: Directory of the set.
        classes: Name of each label.
        shards: For each split, its shards in their order.
    """
    if form in ("arrayrecord", "tfrecord", "webdataset"):
        with replacing(out / "labels.txt") as stream:
            stream.write(("\n".join(classes) + "\n").encode())
    if form == "webdataset":
        splits = {
            split: {
                "name": split,
                "filenames": [name for shard in own for name in shard.files],
                "shard_lengths": [shard.examples for shard in own],
                "num_samples": sum(shard.examples for shard in own),
            }
            for split, own in shards.items()
        }
        write_json(out / "_info.json", {"splits": splits})
        return [out / "labels.txt", out / "_info.json"]
    if form == "huggingface":
        for split, own in shards.items():
            names = [name.rpartition("/")[2] for shard in own for name in shard.files]
            state = {"_data_files": [{"filename": name} for name in names], "_split": split}
            write_json(out / split / "state.json", _STATE | state)
            write_json(out / split / "dataset_info.json", {"features": _features(classes)})
        write_json(out / "dataset_dict.json", {"splits": list(shards)})
        return [out / "dataset_dict.json"]
    return [out / "labels.txt"] if form in ("arrayrecord", "tfrecord") else []


# What `datasets.load_from_disk` also expects.
_STATE = {
    "_fingerprint": "largebatch",
    "_format_columns": None,
    "_format_kwargs": {},
    "_format_type": None,
    "_output_all_columns": False,
}
