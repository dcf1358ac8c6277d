"""Small datasets on disk, and the checks of every reader of encoded images."""

import io
import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow_datasets as tfds
from array_record.python.array_record_module import ArrayRecordWriter
from PIL import Image
from tensorflow_datasets.proto import tf_example_pb2

from largebatch.errors import DataError


def image_of(index, form="JPEG"):
    """An encoded image of noise; another one, of another size, for each index."""
    size = (17 + 5 * (index % 7), 30 + 3 * (index % 11))
    pixels = np.random.default_rng(index).integers(0, 256, (*size, 3), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, form)
    return stream.getvalue()


def labelled_images(count, labels, first=0):
    """`count` pairs of an image and its label, labels in an order that no sorting restores."""
    return [(image_of(first + i), (7 * i + i // 3) % labels) for i in range(count)]


def example(image, label, keys=("image", "label")):
    """A serialized tf.train.Example, with a third feature as TFDS' ImageNet has it."""
    made = tf_example_pb2.Example()
    feature = made.features.feature
    feature["file_name"].bytes_list.value.append(b"n01440764_10026.JPEG")
    feature[keys[0]].bytes_list.value.append(image)
    feature[keys[1]].int64_list.value.append(label)
    return made.SerializeToString()


def write_shards(directory, pattern, records, shards):
    """Write records to files of nearly equal length; `pattern` has {i} and {n}."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for i, part in enumerate(np.array_split(np.arange(len(records)), shards)):
        paths.append(directory / pattern.format(i=i, n=shards))
        writer = ArrayRecordWriter(str(paths[-1]), "group_size:1,uncompressed")
        for index in part:
            writer.write(records[index])
        writer.close()
    return paths


def prepare(
    data_dir,
    splits,
    classes,
    *,
    features=None,
    version="1.0.0",
    config=None,
    shards=3,
    file_format="array_record",
):
    """Let TFDS prepare a dataset named `pets` of (image, label) by split; return its builder."""
    image, label = features or ("image", "label")

    class Builder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        # TFDS looks up the file of a class in a package by importlib_resources, which is not there.
        __module__ = "pytest"
        name = "pets"
        VERSION = tfds.core.Version(version)
        BUILDER_CONFIGS = [tfds.core.BuilderConfig(name=config)] if config else []

        def _info(self):
            named = {
                image: tfds.features.Image(),
                label: tfds.features.ClassLabel(names=classes),
                "file_name": tfds.features.Text(),
            }
            return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(named))

        def _split_generators(self, _):
            return {name: self._generate_examples(pairs) for name, pairs in splits.items()}

        def _generate_examples(self, pairs):
            for index, (data, number) in enumerate(pairs):
                features = {image: io.BytesIO(data), label: number, "file_name": f"{index}.jpg"}
                yield index, features

    tfds.disable_progress_bar()
    builder = Builder(data_dir=str(data_dir), file_format=file_format)
    builder.download_and_prepare(download_config=tfds.download.DownloadConfig(num_shards=shards))
    return builder


def edit(path, change):
    """Change a JSON file; `change` edits the value in place."""
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def damage(path, image):
    """Flip a byte of an image in a shard, so that its record cannot be read."""
    data = bytearray(path.read_bytes())
    data[data.index(image) + len(image) // 2] ^= 1
    path.write_bytes(data)


def check_source(records, expected):
    """Check the protocol of `Source`: read in any order and by threads."""
    images, labels = zip(*expected, strict=True)
    assert len(records) == len(expected)
    rng = np.random.default_rng(0)
    for ids in (np.arange(len(expected)), rng.integers(0, len(expected), 50), np.array([0, 0])):
        got, numbers = records.read(ids)
        assert got == [images[i] for i in ids]
        assert all(type(image) is bytes for image in got)
        np.testing.assert_array_equal(numbers, [labels[i] for i in ids])
        assert numbers.dtype == np.int32
    nothing = records.read(np.array([], np.int64))
    assert (nothing[0], nothing[1].shape, nothing[1].dtype) == ([], (0,), np.int32)

    parts = rng.integers(0, len(expected), (40, 8))
    with ThreadPoolExecutor(8) as threads:
        for ids, (got, _) in zip(parts, threads.map(records.read, parts), strict=True):
            assert got == [images[i] for i in ids]

    assert len({records.where(i) for i in range(len(expected))}) == len(expected)


def complaint(call, *arguments):
    """The message of the DataError that a call raises, which is one line."""
    with pytest.raises(DataError) as caught:
        call(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)
