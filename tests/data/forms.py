"""The same photographs in every form that a source reads, written by independent writers."""

import tensorflow_datasets as tfds
from array_record.python.array_record_module import ArrayRecordWriter
from tensorboardX.record_writer import RecordWriter

from tests.data import stores

CLASSES = ("bee", "cat", "dog", "eel")
SPLITS = {"train": 160, "validation": 40}
SHARDS = {"train": 3, "validation": 2}


def photographs(split):
    """Names, images and labels in the order of `folder:`."""
    first = 0 if split == "train" else 1000
    return [
        (f"{first + i:06}", stores.image_of(first + i), i * len(CLASSES) // SPLITS[split])
        for i in range(SPLITS[split])
    ]


def parts(split):
    """The photographs of each shard; the last one has fewer."""
    found, shards = photographs(split), SHARDS[split]
    size = -(-len(found) // shards) + 1
    return [found[size * i : size * (i + 1)] for i in range(shards)]


def series(split, ending="", after=""):
    """Names of the shards."""
    number = SHARDS[split]
    return [f"{split}{ending}-{i:05}-of-{number:05}{after}" for i in range(number)]


def folder(root):
    for split in SPLITS:
        for name, image, label in photographs(split):
            path = root / split / CLASSES[label] / f"{name}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(image)
    return f"folder:{root}"


def write_array_record(path, records):
    writer = ArrayRecordWriter(str(path), "group_size:1")
    for record in records:
        writer.write(record)
    writer.close()


def write_tfrecord(path, records):
    """With tensorboardX, which has a CRC-32C of its own."""
    writer = RecordWriter(str(path))
    for record in records:
        writer.write(record)
    writer.close()


def _examples(root, write, kind, prefix=""):
    root.mkdir(parents=True)
    for split in SPLITS:
        for name, part in zip(series(split, f".{kind}"), parts(split), strict=True):
            records = [stores.example(image, label) for _, image, label in part]
            write(root / f"{prefix}{name}", records)


def _named(root):
    (root / "labels.txt").write_text("\n".join(CLASSES) + "\n")


def arrayrecord(root):
    _examples(root, write_array_record, "array_record")
    _named(root)
    return f"arrayrecord:{root}"


def tfrecord(root):
    _examples(root, write_tfrecord, "tfrecord")
    _named(root)
    return f"tfrecord:{root}"


def _tfds(root, write, kind):
    """With TFDS's own metadata."""
    place = root / "pets" / "1.0.0"
    _examples(place, write, kind, prefix="pets-")
    splits = [
        tfds.core.SplitInfo(name=s, shard_lengths=[len(p) for p in parts(s)], num_bytes=1)
        for s in SPLITS
    ]
    label = tfds.features.ClassLabel(names=CLASSES)
    tfds.folder_dataset.write_metadata(
        data_dir=place,
        features={"image": tfds.features.Image(), "label": label},
        split_infos=splits,
        check_data=False,  # which needs TensorFlow
    )
    return f"arrayrecord:{place}"  # the directory of a version needs no data.data_dir


def tfds_array_record(root):
    return _tfds(root, write_array_record, "array_record")


def tfds_tfrecord(root):
    return _tfds(root, write_tfrecord, "tfrecord")


FORMS = {
    "folder": folder,
    "arrayrecord": arrayrecord,
    "tfrecord": tfrecord,
    "tfds ArrayRecord": tfds_array_record,
    "tfds TFRecord": tfds_tfrecord,
}
