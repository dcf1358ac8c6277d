"""Sets that TFDS prepared are read as TFDS reads them, and ArrayRecord files that others wrote."""

import importlib.util
import os
import pickle
import resource
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds

from largebatch.data.source import SourceOptions
from largebatch.data.tfds import open_array_record, open_tfds
from tests.data import stores

CLASSES = ["cat", "dog", "eel"]
TRAIN = stores.labelled_images(23, 3)
VALIDATION = stores.labelled_images(7, 3, first=100)
PATTERN = "birds-train.array_record-{i:05d}-of-{n:05d}"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A data_dir in which TFDS prepared `pets`; not to be changed."""
    data_dir = tmp_path_factory.mktemp("tfds")
    stores.prepare(data_dir, {"train": TRAIN, "validation": VALIDATION}, CLASSES)
    return data_dir


def as_tfds_reads(builder, split, image="image", label="label"):
    source = builder.as_data_source(split, decoders={image: tfds.decode.SkipDecoding()})
    return [(source[i][image], source[i][label]) for i in range(len(source))]


@pytest.mark.parametrize("split", ["train", "validation"])
def test_reads_what_tfds_reads(prepared, split):
    expected = as_tfds_reads(tfds.builder_from_directory(prepared / "pets" / "1.0.0"), split)
    # TFDS shuffled, and changed nothing.
    assert sorted(expected) == sorted(TRAIN if split == "train" else VALIDATION)
    records = open_tfds("tfds:pets", split, SourceOptions(data_dir=str(prepared)))
    assert records.classes == tuple(CLASSES)
    stores.check_source(records, expected)
    place = f"{prepared}/pets/1.0.0/pets-{split}.array_record-0000"
    assert records.where(0) == place + "0-of-00003, record 0 (counted from 0)"
    last = len(records) - 1
    assert records.where(last).startswith(place + "2-of-00003, record ")


def test_other_names_of_the_features_and_test_for_validation(tmp_path):
    builder = stores.prepare(
        tmp_path, {"train": TRAIN, "test": VALIDATION}, CLASSES, features=("photo", "kind")
    )
    records = open_tfds("tfds:pets", "validation", SourceOptions(data_dir=str(tmp_path)))
    stores.check_source(records, as_tfds_reads(builder, "test", "photo", "kind"))
    assert "split test, 3 shards" in records.describe()


def test_of_several_features_and_formats_the_usual_one_is_read(prepared, tmp_path):
    shutil.copytree(prepared, tmp_path / "data")
    directory = tmp_path / "data" / "pets" / "1.0.0"
    options = SourceOptions(data_dir=str(tmp_path / "data"))
    before = open_tfds("tfds:pets", "train", options).read(np.arange(23))

    def add(features):
        named = features["featuresDict"]["features"]
        named["thumbnail"] = named["image"]

    stores.edit(directory / "features.json", add)
    # `tfds convert_format` leaves these metadata.
    formats = {"fileFormat": "tfrecord", "alternativeFileFormats": ["array_record"]}
    stores.edit(directory / "dataset_info.json", lambda value: value.update(formats))
    after = open_tfds("tfds:pets", "train", options).read(np.arange(23))
    assert before[0] == after[0]
    np.testing.assert_array_equal(before[1], after[1])


def test_forms_of_the_name(tmp_path, monkeypatch):
    """Each version has another number of examples, by which it is known."""
    lengths = {"1.0.0": 4, "2.0.0": 5, "2.1.0": 6, "10.0.0": 7}
    for version, length in lengths.items():
        part = {"train": TRAIN[:length]}
        stores.prepare(tmp_path, part, CLASSES, version=version, config="small", shards=1)
    shutil.copytree(tmp_path / "pets" / "small", tmp_path / "toys")

    def length(spec):
        return len(open_tfds(spec, "train", SourceOptions(data_dir=str(tmp_path))))

    for spec in ("tfds:pets", "tfds:pets:small", "tfds:pets/small", "tfds:toys"):
        assert length(spec) == 7  # the newest, as numbers go
    for separator in ":/":
        assert length(f"tfds:pets/small{separator}2.0.0") == 5
        assert length(f"tfds:pets{separator}2.*.*") == 6
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    assert len(open_tfds("tfds:toys", "train", SourceOptions())) == 7
    monkeypatch.delenv("TFDS_DATA_DIR")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "tensorflow_datasets").symlink_to(tmp_path)
    assert len(open_tfds("tfds:toys", "train", SourceOptions())) == 7
    shutil.copytree(tmp_path / "pets" / "small", tmp_path / "pets" / "large")
    assert "large, small" in stores.complaint(length, "tfds:pets")


# ---- ArrayRecord files


def records_of(pairs, keys=("image", "label")):
    return [stores.example(image, label, keys) for image, label in pairs]


def opened(directory, split="train", classes=3):
    options = SourceOptions(classes=classes)
    return open_array_record(f"arrayrecord:{directory}", split, options)


def test_inception_keys_and_labels_as_they_are(tmp_path):
    """Labels from 1 are not shifted: without a name for 0, the last class has none."""
    counted = [(image, label + 1) for image, label in TRAIN]
    records = records_of(counted, ("image/encoded", "image/class/label"))
    stores.write_shards(tmp_path, "{i}-train.array_record", records, 2)
    stores.check_source(opened(tmp_path, classes=4), counted)
    last = next(i for i, (_, label) in enumerate(counted) if label == 3)
    assert "label 3" in stores.complaint(opened(tmp_path).read, np.array([last]))
    (tmp_path / "label.labels.txt").write_text("background\ntench\ncrane\ncrane\n")
    assert opened(tmp_path).classes == ("background", "tench", "crane", "crane")


def test_files_that_are_not_complete_are_named(tmp_path):
    shard = stores.write_shards(tmp_path, PATTERN, records_of(TRAIN), 4)[2]
    intact = shard.read_bytes()
    # Foreign, empty, a byte short, and without its last block, which the library ignores.
    for content in (b"x" * len(intact), b"", intact[:-1], intact[: len(intact) // 2]):
        shard.write_bytes(content)
        assert stores.complaint(opened, tmp_path).startswith(str(shard))


def test_a_shard_may_be_empty_and_a_split_may_not(tmp_path):
    pattern = "{i}-test.array_record"
    first, second = stores.write_shards(tmp_path, pattern, records_of(VALIDATION[:1]), 2)
    second.rename(tmp_path / "a")
    first.rename(second)
    (tmp_path / "a").rename(first)  # now the first one is empty
    records = opened(tmp_path, "validation")
    assert records.where(0).startswith(f"{second}, record 0")
    stores.check_source(records, VALIDATION[:1])
    second.unlink()
    assert str(tmp_path) in stores.complaint(opened, tmp_path, "validation")


def test_a_record_that_cannot_be_read_is_named_and_the_others_are_read(tmp_path):
    records = records_of(TRAIN)
    records[3] = b"\xff" * 100
    records[4] = stores.example(*TRAIN[4], keys=("picture", "label"))
    # Years are no series.
    shards = stores.write_shards(tmp_path, "train-20{i}4.array_record", records, 4)
    stores.damage(shards[2], TRAIN[15][0])
    source = opened(tmp_path)
    for example, shard, row in ((3, 0, 3), (4, 0, 4), (15, 2, 3)):
        said = stores.complaint(source.read, np.array([0, example]))
        assert said.startswith(f"{shards[shard]}, record {row} ")
    others = np.array([i for i in range(23) if i not in (3, 4, 15)])
    assert source.read(others)[0] == [TRAIN[i][0] for i in others]


@pytest.mark.parametrize(("hard", "most"), [(64, 16), (300, 60)])
def test_open_files_stay_within_the_limit(tmp_path, monkeypatch, hard, most):
    """Threads read 60 shards in random order where the process may open 64 files."""
    limits = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (64, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda which, pair: limits.append(pair))
    stores.write_shards(tmp_path, PATTERN, records_of(TRAIN * 4), 60)
    records = opened(tmp_path)
    parts = np.random.default_rng(0).integers(0, 92, (40, 25))
    with ThreadPoolExecutor(4) as threads:
        for ids, (images, _) in zip(parts, threads.map(records.read, parts), strict=True):
            assert images == [TRAIN[i % 23][0] for i in ids]
    links = [path for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    assert sum(os.path.realpath(link).startswith(f"{tmp_path}/") for link in links) == most
    assert set(limits) == {(hard, hard)}  # the soft limit is raised


# ---- what TensorFlow wrote; `.ci/tensorflow` runs this


def write(data_dir):
    """Prepare a set, and write what tf.data reads from it, in the order of the files."""
    splits = {"train": TRAIN, "validation": VALIDATION}
    builder = stores.prepare(data_dir, splits, CLASSES, shards=4, file_format="tfrecord")
    read = {}
    for split in splits:
        in_order = tfds.ReadConfig(interleave_cycle_length=1)
        dataset = builder.as_dataset(
            split, decoders={"image": tfds.decode.SkipDecoding()}, read_config=in_order
        )
        read[split] = [
            (bytes(example["image"]), int(example["label"])) for example in tfds.as_numpy(dataset)
        ]
    (Path(data_dir) / "read.pickle").write_bytes(pickle.dumps(read))


@pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed"
)
def test_reads_what_tf_data_reads(tmp_path):
    # A process of its own: TensorFlow never shares one with a training.
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-m", __name__, tmp_path], cwd=root, check=True)
    read = pickle.loads((tmp_path / "read.pickle").read_bytes())
    for split, expected in read.items():
        records = open_tfds("tfds:pets", split, SourceOptions(data_dir=str(tmp_path)))
        stores.check_source(records, expected)


if __name__ == "__main__":
    write(sys.argv[1])
