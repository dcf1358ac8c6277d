"""The same photographs in every form that a source reads, written by independent writers."""

import io
import json
import tarfile

import pyarrow as pa
import pyarrow.parquet as pq
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


def series(split, ending="", after="", number=None):
    """Names of the shards."""
    number = number or SHARDS[split]
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


def webdataset(root):
    """With `tarfile`; the first shard of pax with a time that needs an extended header."""
    root.mkdir()
    for split in SPLITS:
        for number, part in enumerate(parts(split)):
            path = root / f"pets-{split}-{number:04}.tar"
            with tarfile.open(
                path, "w", format=(tarfile.PAX_FORMAT, tarfile.GNU_FORMAT)[number % 2]
            ) as tar:
                for index, (name, image, label) in enumerate(part):
                    files = {"jpg": image, "cls": b"%d" % label, "json": b'{"label": 99}'}
                    if index % 3 == 1:
                        files = {"json": b'{"height": 9, "label": %d}' % label, "JPEG": image}
                    for extension, data in files.items():
                        folder = "x" * 120 if index == 2 else "images"
                        info = tarfile.TarInfo(f"{folder}/{name}.{extension}")
                        info.size = len(data)
                        info.mtime = 1234.5 if number == 0 else 1234
                        tar.addfile(info, io.BytesIO(data))
    _named(root)
    return f"webdataset:{root}"


_FEATURES = {
    "image": {"_type": "Image"},
    "label": {"names": list(CLASSES), "_type": "ClassLabel"},
}


def _table(part):
    images = [{"bytes": image, "path": f"{name}.jpg"} for name, image, _ in part]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    labels = pa.array([label for _, _, label in part], pa.int64())
    return pa.table({"image": pa.array(images, kind), "label": labels})


def huggingface(root):
    """The files of `datasets.DatasetDict.save_to_disk`."""
    for split in SPLITS:
        names = series("data", after=".arrow", number=SHARDS[split])
        (root / split).mkdir(parents=True)
        for name, part in zip(names, parts(split), strict=True):
            table = _table(part)
            with pa.ipc.new_stream(str(root / split / name), table.schema) as writer:
                writer.write_table(table, max_chunksize=10)
        state = {"_data_files": [{"filename": name} for name in names], "_split": split}
        (root / split / "state.json").write_text(json.dumps(state))
        (root / split / "dataset_info.json").write_text(json.dumps({"features": _FEATURES}))
    (root / "dataset_dict.json").write_text(json.dumps({"splits": list(SPLITS)}))
    return f"huggingface:{root}"


def parquet(root, rows=7):
    """Files as on Hugging Face's hub."""
    root.mkdir()
    metadata = {"huggingface": json.dumps({"info": {"features": _FEATURES}})}
    for split in SPLITS:
        for name, part in zip(series(split, after=".parquet"), parts(split), strict=True):
            table = _table(part).replace_schema_metadata(metadata)
            pq.write_table(table, root / name, row_group_size=rows)
    return f"parquet:{root}"


FORMS = {
    "folder": folder,
    "arrayrecord": arrayrecord,
    "tfrecord": tfrecord,
    "tfds ArrayRecord": tfds_array_record,
    "tfds TFRecord": tfds_tfrecord,
    "webdataset": webdataset,
    "huggingface": huggingface,
    "parquet": parquet,
}
IN_PLACE = [name for name in FORMS if name != "parquet"]
"""Forms that training reads; the other one must be converted."""
