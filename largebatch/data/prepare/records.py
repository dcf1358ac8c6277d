"""What is written: records, ArrayRecord shards and TFDS's metadata, without TensorFlow."""

import contextlib
import io
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from largebatch.data import imagenet, images

IMAGENET = "imagenet2012"
INFO = "dataset_info.json"
QUALITY = 90
"""Quality of shrunk JPEGs, in 1 to 100."""
_PNG, _JPEG_END = b"\x89PNG\r\n\x1a\n", b"\xff\xd9"


def serialise(key: str, label: int, image: bytes) -> bytes:
    """Return a `tf.train.Example` as TFDS's ImageNet has it: file name, label and encoded image.

    The features are in alphabetical order, so the same input gives the same bytes.
    """
    from tensorflow_datasets.proto import tf_example_pb2

    example = tf_example_pb2.Example()
    feature = example.features.feature
    feature["file_name"].bytes_list.value.append(key.encode("utf-8", "surrogateescape"))
    feature["image"].bytes_list.value.append(image)
    feature["label"].int64_list.value.append(label)
    return example.SerializeToString(deterministic=True)


def key_of(record: bytes) -> str:
    """Return the file name in a record that `serialise` made."""
    from tensorflow_datasets.proto import tf_example_pb2

    feature = tf_example_pb2.Example.FromString(record).features.feature
    return b"".join(feature["file_name"].bytes_list.value).decode("utf-8", "surrogateescape")


def write(path: Path, records: Iterable[bytes]) -> int:
    """Write an ArrayRecord file and wait until it is on the disk.

    Returns:
        Bytes of all records.

    Raises:
        OSError: It cannot be written.
    """
    from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

    # One record per chunk, as TFDS writes: reading one record then reads no other.
    writer = ArrayRecordWriter(str(path), "group_size:1")
    written = payload = 0
    try:
        for record in records:
            writer.write(record)
            written += 1
            payload += len(record)
            if not writer.ok():
                break
    finally:
        try:
            writer.close()  # raises the error of an earlier `write`, too
        except RuntimeError as error:
            raise OSError(str(error)) from error
    if (found := ArrayRecordReader(str(path)).num_records()) != written:
        raise OSError(f"{path} has {found:,} records after {written:,} were written")
    with path.open("rb") as stream:
        os.fsync(stream.fileno())
    return payload


def shrunk(image: bytes, side: int) -> bytes:
    """Return an image as a JPEG with a shorter side of some pixels; itself if it is not larger.

    Colour is stored at half resolution (4:2:0).

    Raises:
        UndecodableError: It is corrupt.
    """
    picture = images.Picture(image)
    shape = picture.height, picture.width
    if not 0 < side < min(shape):
        return image
    height, width = (max(1, round(length * side / min(shape))) for length in shape)
    return _jpeg(images.resize(picture.pixels(), (height, width), "antialias"), QUALITY)


def as_tfds(key: str, image: bytes) -> bytes:
    """Return an image of ImageNet as TFDS stores it, checked to be complete.

    A JPEG with its end marker is not decoded.

    Raises:
        UndecodableError: It is corrupt.
    """
    picture = images.Picture(image)
    if not image.endswith(_JPEG_END):
        picture.pixels()
    if key in imagenet.repaired() and (image.startswith(_PNG) or _is_cmyk(image)):
        # Quality, subsampling and density are TensorFlow's, so only rounding differs from TFDS.
        return _jpeg(picture.pixels(), 100, dpi=(300, 300))
    return image


def _is_cmyk(data: bytes) -> bool:
    with Image.open(io.BytesIO(data)) as image:
        return image.mode == "CMYK"


def _jpeg(pixels: np.ndarray, quality: int, **options: object) -> bytes:
    stream = io.BytesIO()
    image = Image.fromarray(np.ascontiguousarray(pixels))
    image.save(stream, "JPEG", quality=quality, subsampling="4:2:0", **options)
    return stream.getvalue()


def directory_of(out: Path, dataset: str) -> Path:
    """Return where the shards go: `OUT/imagenet2012/5.1.0` as TFDS has it, `OUT` for others."""
    if dataset != IMAGENET:
        return out
    from tensorflow_datasets.datasets.imagenet2012 import imagenet2012_dataset_builder as builder

    return out / IMAGENET / str(builder.Builder.VERSION)


def write_metadata(
    folder: Path,
    dataset: str,
    classes: Sequence[str],
    shards: Mapping[str, Sequence[tuple[int, int]]],
    note: str = "",
) -> None:
    """Let TFDS write `dataset_info.json`, `features.json` and the names of the labels.

    Args:
        folder: An empty folder for these files.
        dataset: `IMAGENET`, or another name.
        classes: Name of each label.
        shards: For each split, the number of examples and the bytes of the records of its shards.
        note: First words of the description.
    """
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core import dataset_info, naming

    with temporary_files_in(folder):
        if dataset == IMAGENET:
            info = tfds.builder(IMAGENET, data_dir=folder, file_format="array_record").info
            description = info.as_proto.description
        else:
            identity = dataset_info.DatasetIdentity(
                name=dataset, version=tfds.core.Version("1.0.0"), data_dir="", module_name=""
            )
            features = {
                "file_name": tfds.features.Text(),
                "image": tfds.features.Image(),
                "label": tfds.features.ClassLabel(names=classes),
            }
            description = "Labelled images."
            info = tfds.core.DatasetInfo(
                builder=identity, features=tfds.features.FeaturesDict(features)
            )
            info.set_file_format("array_record")
    info.as_proto.description = f"{note}\n\n{description}".strip()
    template = naming.ShardedFileTemplate(
        dataset_name=dataset, data_dir=folder, filetype_suffix="array_record"
    )
    splits = [
        tfds.core.SplitInfo(
            name=split,
            shard_lengths=[examples for examples, _ in own],
            num_bytes=sum(size for _, size in own),
            filename_template=template.replace(split=split),
        )
        for split, own in shards.items()
    ]
    info.set_splits(tfds.core.splits.SplitDict(splits))
    info.write_to_directory(folder)


@contextlib.contextmanager
def temporary_files_in(folder: Path) -> Iterator[None]:
    """Make temporary files in a folder that is deleted later."""
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before
