"""The records of TFDS's ImageNet: `tf.train.Example`s, without TensorFlow."""

import os
from collections.abc import Iterable
from pathlib import Path


def serialise(name: str, label: int, image: bytes) -> bytes:
    """Return one record: the file's name, the label and the encoded image.

    The keys are in alphabetical order, so the same input gives the same bytes.
    """
    from tensorflow_datasets.proto import tf_example_pb2

    example = tf_example_pb2.Example()
    feature = example.features.feature
    feature["file_name"].bytes_list.value.append(name.encode("utf-8", "surrogateescape"))
    feature["image"].bytes_list.value.append(image)
    feature["label"].int64_list.value.append(label)
    return example.SerializeToString(deterministic=True)


def parse(record: bytes) -> tuple[str, int, bytes]:
    """Return the name, label and image of a record.

    Raises:
        ValueError: It is not such a record.
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
        raise ValueError(f"not a tf.train.Example ({error})") from error


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
