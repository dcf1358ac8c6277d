"""The records that TFDS keeps of ImageNet: `tf.train.Example`s, without TensorFlow."""

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from largebatch.data.prepare.members import Members


def serialise(name: str, label: int, image: bytes) -> bytes:
    """One record, always the same bytes (keys in their order; TFDS leaves that to chance).

    Args:
        name: Of the file.
        label: Index of the class.
        image: The encoded image.
    """
    from tensorflow_datasets.proto import tf_example_pb2

    example = tf_example_pb2.Example()
    feature = example.features.feature
    feature["file_name"].bytes_list.value.append(name.encode("utf-8", "surrogateescape"))
    feature["image"].bytes_list.value.append(image)
    feature["label"].int64_list.value.append(label)
    return example.SerializeToString(deterministic=True)


def parse(record: bytes) -> tuple[str, int, bytes]:
    """The name, label and image of a record.

    Raises:
        ValueError: It is no such record.
    """
    from google.protobuf.message import DecodeError
    from tensorflow_datasets.proto import tf_example_pb2

    try:
        feature = tf_example_pb2.Example.FromString(record).features.feature
        (name,) = feature["file_name"].bytes_list.value
        (label,) = feature["label"].int64_list.value
        (image,) = feature["image"].bytes_list.value
        return name.decode("utf-8", "surrogateescape"), label, image
    except DecodeError as error:
        raise ValueError(f"no tf.train.Example ({error})") from error


def write(path: Path, records: Iterable[bytes]) -> None:
    """Writes a file of records, through to the disk.

    Args:
        path: The file.
        records: What `serialise` made.

    Raises:
        OSError: It cannot be written.
    """
    from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

    # One record to a chunk, as TFDS writes: reading one then reads no other.
    writer = ArrayRecordWriter(str(path), "group_size:1")
    written = 0
    try:
        for record in records:
            writer.write(record)
            written += 1
            if not writer.ok():
                break
    finally:
        try:
            writer.close()  # which says what went wrong, also in `write`
        except RuntimeError as error:
            raise OSError(str(error)) from error
    if (found := ArrayRecordReader(str(path)).num_records()) != written:
        raise OSError(f"{path} has {found:,} records after {written:,} were written")
    with path.open("rb") as stream:
        os.fsync(stream.fileno())


def lengths(members: Members) -> np.ndarray:
    """Bytes of the record of each image, int64 (n,), without making it."""
    name = _entry(len("file_name"), _field(_field(np.char.str_len(members.names))))
    image = _entry(len("image"), _field(_field(members.sizes)))
    label = _entry(len("label"), _field(_field(_varint(members.labels))))  # a packed list
    return _field(name + image + label)


def _varint(value: np.ndarray) -> np.ndarray:
    """Bytes of a number in protobuf: seven bits each."""
    value = np.asarray(value, np.int64)
    return 1 + sum((value >= 1 << 7 * k).astype(np.int64) for k in range(1, 9))


def _field(length: np.ndarray) -> np.ndarray:
    """Bytes of a field of so many bytes with its tag and length."""
    return 1 + _varint(length) + length


def _entry(key: int, value: np.ndarray) -> np.ndarray:
    """Bytes of an entry of a map: its key, and a value that is a message already framed once."""
    return _field(_field(np.int64(key)) + _field(value))
