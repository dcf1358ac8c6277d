import resource
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from largebatch.data.source import SourceOptions
from largebatch.data.tfds import open_array_record
from tests.data import stores

TRAIN = stores.labelled_images(23, 4)
VALIDATION = stores.labelled_images(5, 4, first=100)
NAMES = "tench\ngreat white shark\ncrane\ncrane\n"  # ImageNet has two classes called crane


def records_of(pairs, keys=("image", "label")):
    return [stores.example(image, label, keys) for image, label in pairs]


@pytest.fixture
def directory(tmp_path):
    """Four shards of training, one of validation, and names of the labels."""
    path = tmp_path / "set"
    pattern = "birds-train.array_record-{i:05d}-of-{n:05d}"
    stores.write_shards(path, pattern, records_of(TRAIN), 4)
    pattern = "birds-validation.array_record-{i:05d}-of-{n:05d}"
    stores.write_shards(path, pattern, records_of(VALIDATION), 1)
    (path / "labels.txt").write_text(NAMES)
    return path


def opened(directory, split="train", **options):
    return open_array_record(f"arrayrecord:{directory}", split, SourceOptions(**options))


def refused(directory, split="train"):
    return stores.complaint(open_array_record, f"arrayrecord:{directory}", split, SourceOptions())


@pytest.mark.parametrize(("split", "pairs"), [("train", TRAIN), ("validation", VALIDATION)])
def test_reads_what_was_written(directory, split, pairs):
    records = opened(directory, split)
    assert records.classes == ("tench", "great white shark", "crane", "crane")
    stores.check_source(records, pairs)


def test_the_place_of_a_record(directory):
    records = opened(directory)
    assert f"({directory}, split train, 4 shards)" in records.describe()
    shard = f"{directory}/birds-train.array_record-0000"
    assert records.where(5) == f"{shard}0-of-00004, record 5 (counted from 0)"
    assert records.where(6) == f"{shard}1-of-00004, record 0 (counted from 0)"
    assert records.where(22) == f"{shard}3-of-00004, record 4 (counted from 0)"


@pytest.mark.parametrize(
    ("pattern", "split"),
    [
        ("train-{i:05d}-of-{n:05d}.array_record", "train"),
        ("train-set_val.ArrayRecord-{i:06d}-of-{n:06d}", "validation"),
        ("imagenet_test.{i}.arrayrecord", "validation"),
        ("{i}-train.array_record", "train"),
        ("train-20{i}4.array_record", "train"),
    ],
)
def test_other_file_names(tmp_path, pattern, split):
    stores.write_shards(tmp_path, pattern, records_of(TRAIN), 3)
    stores.check_source(opened(tmp_path, split, classes=4), TRAIN)


def test_inception_keys_and_labels_as_they_are(tmp_path):
    """Labels from 1 are not shifted: without a name for 0, the last class has none."""
    counted = [(image, label + 1) for image, label in TRAIN]
    keys = ("image/encoded", "image/class/label")
    stores.write_shards(
        tmp_path, "train-{i:05d}-of-{n:05d}.array_record", records_of(counted, keys), 2
    )
    stores.check_source(opened(tmp_path, classes=5), counted)
    last = next(i for i, (_, label) in enumerate(counted) if label == 4)
    said = stores.complaint(opened(tmp_path, classes=4).read, np.array([last]))
    assert "has label 4" in said
    (tmp_path / "label.labels.txt").write_text("background\n" + NAMES)
    assert opened(tmp_path).classes[:2] == ("background", "tench")


def test_a_directory_that_tfds_prepared_is_read_as_tfds_does(tmp_path):
    names = ["a", "b", "c", "d"]
    stores.prepare(tmp_path, {"train": TRAIN, "test": VALIDATION}, names)
    records = opened(tmp_path / "pets" / "1.0.0", "validation")
    assert records.classes == tuple(names)
    assert "split test, 3 shards" in records.describe()
    images, labels = records.read(np.arange(5))
    assert sorted(zip(images, labels.tolist(), strict=True)) == sorted(VALIDATION)


def test_files_that_are_not_complete_are_named(directory):
    shard = directory / "birds-train.array_record-00002-of-00004"
    intact = shard.read_bytes()
    # Foreign, empty, a byte short, and without its last block, which the library ignores.
    for content in (b"x" * len(intact), b"", intact[:-1], intact[: len(intact) // 2]):
        shard.write_bytes(content)
        assert refused(directory).startswith(str(shard))


def test_a_shard_may_be_empty_and_a_split_may_not(tmp_path):
    pattern = "{i}-test.array_record"
    first, second = stores.write_shards(tmp_path, pattern, records_of(VALIDATION[:1]), 2)
    second.rename(tmp_path / "a")
    first.rename(second)
    (tmp_path / "a").rename(first)  # now the first one is empty
    records = opened(tmp_path, "validation", classes=4)
    assert records.where(0).startswith(f"{second}, record 0")
    stores.check_source(records, VALIDATION[:1])
    second.unlink()
    assert str(tmp_path) in refused(tmp_path, "validation")


def test_a_corrupt_record_is_named_and_the_others_are_read(directory):
    shard = directory / "birds-train.array_record-00002-of-00004"
    stores.damage(shard, 3)
    records = opened(directory)
    said = stores.complaint(records.read, np.arange(23))
    assert said.startswith(f"{shard}, record 3 ")
    others = np.array([i for i in range(23) if i != 15])
    assert records.read(others)[0] == [TRAIN[i][0] for i in others]


def test_records_of_another_form_are_named(directory):
    records = records_of(TRAIN)
    records[3] = b"\xff" * 100
    records[4] = stores.example(*TRAIN[4], keys=("picture", "label"))
    pattern = "birds-train.array_record-{i:05d}-of-{n:05d}"
    shard = stores.write_shards(directory, pattern, records, 4)[0]
    for row in (3, 4):
        said = stores.complaint(opened(directory).read, np.array([row]))
        assert said.startswith(f"{shard}, record {row} ")


@pytest.mark.parametrize(("hard", "most"), [(64, 16), (300, 60)])
def test_open_files_stay_within_the_limit(tmp_path, monkeypatch, hard, most):
    """Threads read 60 shards in random order where the process may open 64 files."""
    limits = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (64, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda which, pair: limits.append(pair))
    pattern = "train-{i:05d}-of-{n:05d}.array_record"
    stores.write_shards(tmp_path, pattern, records_of(TRAIN * 4), 60)
    records = opened(tmp_path, classes=4)
    parts = np.random.default_rng(0).integers(0, 92, (40, 25))
    with ThreadPoolExecutor(4) as threads:
        for ids, (images, _) in zip(parts, threads.map(records.read, parts), strict=True):
            assert images == [TRAIN[i % 23][0] for i in ids]
    assert stores.open_files(tmp_path) == most
    # The soft limit is raised.
    assert set(limits) == {(hard, hard)}
