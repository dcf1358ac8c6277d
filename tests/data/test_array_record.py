import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from tensorflow_datasets.proto import tf_example_pb2

from largebatch.data.array_record import open_array_record
from largebatch.data.examples import Keys, parse
from largebatch.data.sources import SourceOptions
from tests.data import stores

TRAIN = stores.pictures(23, 4)
VALIDATION = stores.pictures(5, 4, first=100)
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


def refused(directory, split="train", **options):
    return stores.complaint(
        open_array_record, f"arrayrecord:{directory}", split, SourceOptions(**options)
    )


@pytest.mark.parametrize(("split", "pairs"), [("train", TRAIN), ("validation", VALIDATION)])
def test_reads_what_was_written(directory, split, pairs):
    records = opened(directory, split)
    assert records.classes == ("tench", "great white shark", "crane", "crane")
    stores.check_records(records, pairs, split)


def test_says_where(directory):
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
    ],
)
def test_other_file_names(tmp_path, pattern, split):
    stores.write_shards(tmp_path, pattern, records_of(TRAIN), 3)
    stores.check_records(opened(tmp_path, split, classes=4), TRAIN, split)


def test_of_several_validation_splits_the_first_is_taken(directory):
    pattern = "birds-test.array_record-{i:05d}-of-{n:05d}"
    stores.write_shards(directory, pattern, records_of(TRAIN), 2)
    assert "split validation, 1 shards" in opened(directory, "validation").describe()
    (directory / "birds-validation.array_record-00000-of-00001").unlink()
    assert "split test, 2 shards" in opened(directory, "validation").describe()


def test_inception_keys_and_labels_as_they_are(tmp_path):
    """Labels from 1 are not shifted: without a name for 0, the last class has none."""
    counted = [(image, label + 1) for image, label in TRAIN]
    keys = ("image/encoded", "image/class/label")
    stores.write_shards(
        tmp_path, "train-{i:05d}-of-{n:05d}.array_record", records_of(counted, keys), 2
    )
    stores.check_records(opened(tmp_path, classes=5), counted, "train")
    last = next(i for i, (_, label) in enumerate(counted) if label == 4)
    said = stores.complaint(opened(tmp_path, classes=4).read, np.array([last]))
    assert "has label 4, not one of the 4 classes from 0; use a labelled split, or name" in said
    (tmp_path / "label.labels.txt").write_text("background\n" + NAMES)
    assert opened(tmp_path).classes[:2] == ("background", "tench")


def test_classes_are_numbers_where_only_their_count_is_known(directory):
    (directory / "labels.txt").unlink()
    assert opened(directory, classes=4).classes == ("0", "1", "2", "3")
    said = refused(directory)
    assert f"{directory} does not say how many classes there are; write labels.txt" in said
    (directory / "labels.txt").write_text("tench\n\ncrane\ncrane\n")
    assert f"{directory}/labels.txt: line 2 is empty" in refused(directory)


def test_a_directory_that_tfds_prepared_is_read_as_tfds_does(tmp_path):
    names = ["a", "b", "c", "d"]
    stores.prepare(tmp_path, {"train": TRAIN, "test": VALIDATION}, names)
    records = opened(tmp_path / "pets" / "1.0.0", "validation")
    assert records.classes == tuple(names)
    assert "split test, 3 shards" in records.describe()
    images, labels = records.read(np.arange(5))
    assert sorted(zip(images, labels.tolist(), strict=True)) == sorted(VALIDATION)
    said = refused(tmp_path / "pets")
    assert "no ArrayRecord files of train: it holds 1 other entries, such as ['1.0.0']" in said


def test_missing_shards_are_named(directory):
    (directory / "birds-train.array_record-00001-of-00004").unlink()
    said = refused(directory)
    assert f"{directory} lacks birds-train.array_record-00001-of-00004 of 4 shards" in said
    assert len(opened(directory, "validation")) == 5


def test_mixed_series_are_refused(directory):
    other = directory / "birds-train.array_record-00004-of-00005"
    shutil.copy(directory / "birds-train.array_record-00000-of-00004", other)
    said = refused(directory)
    assert "more than one series of train files, e.g. birds-train.array_record-00000-of-" in said
    assert other.name in said
    other.rename(directory / "more-train.array_record")
    assert "more than one series of train files" in refused(directory)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("arrayrecord", "has no directory; write arrayrecord:PATH"),
        ("arrayrecord:", "has no directory; write arrayrecord:PATH"),
        ("arrayrecord:/no/such", "no directory /no/such"),
    ],
)
def test_absent_directories_are_told(spec, said):
    assert said in stores.complaint(open_array_record, spec, "train", SourceOptions())


def test_absent_splits_are_told(directory):
    for shard in directory.glob("*validation*"):
        shard.rename(directory / "birds.array_record")
    said = refused(directory, "validation")
    assert (
        "no ArrayRecord files of validation: it holds 4 of train, 1 of no split; expected" in said
    )
    for shard in directory.glob("*array_record*"):
        shard.unlink()
    assert "it holds 1 other entries, such as ['labels.txt']" in refused(directory)


def test_files_that_are_no_array_records_are_told(directory):
    shard = directory / "birds-train.array_record-00002-of-00004"
    intact = shard.read_bytes()
    # Foreign, empty, a byte short, and without its last block, which the library passes over.
    for content in (b"x" * len(intact), b"", intact[:-1], intact[: len(intact) // 2]):
        shard.write_bytes(content)
        assert f"{shard} is not a complete ArrayRecord file: " in refused(directory)


def test_an_empty_shard_is_no_mistake_but_an_empty_split_is(directory):
    pattern = "birds-test.array_record-{i:05d}-of-{n:05d}"
    stores.write_shards(directory, pattern, [], 2)
    (directory / "birds-validation.array_record-00000-of-00001").unlink()
    assert "the 2 files of test hold no record" in refused(directory, "validation")
    stores.write_shards(directory, pattern, records_of(VALIDATION[:2]), 3)
    for shard in directory.glob("*test*-of-00002"):
        shard.unlink()
    first, second, third = sorted(directory.glob("*test*-of-00003"))
    content = third.read_bytes()  # the one without a record
    third.write_bytes(first.read_bytes())
    first.write_bytes(content)
    records = opened(directory, "validation")
    assert records.where(0) == f"{second}, record 0 (counted from 0)"
    stores.check_records(records, VALIDATION[1::-1], "validation")


def test_a_corrupt_record_is_named_and_the_others_are_read(directory):
    shard = directory / "birds-train.array_record-00002-of-00004"
    stores.damage(shard, 3)
    records = opened(directory)
    said = stores.complaint(records.read, np.arange(23))
    assert said.startswith(f"{shard}, record 3 (counted from 0) cannot be read: ")
    assert "hash mismatch" in said
    others = np.array([i for i in range(23) if i != 15])
    assert records.read(others)[0] == [TRAIN[i][0] for i in others]


def test_records_of_another_form_are_named(directory):
    records = records_of(TRAIN)
    records[3] = b"\xff" * 100
    records[4] = stores.example(*TRAIN[4], keys=("picture", "label"))
    shard = stores.write_shards(
        directory, "birds-train.array_record-{i:05d}-of-{n:05d}", records, 4
    )[0]
    opened_ = opened(directory)
    said = stores.complaint(opened_.read, np.array([3]))
    assert f"{shard}, record 3 (counted from 0) cannot be read: 100 bytes" in said
    said = stores.complaint(opened_.read, np.array([4]))
    assert "record 4 (counted from 0) cannot be read: the example has 0 images as 'image'" in said
    records[0] = records[4]
    stores.write_shards(directory, "birds-train.array_record-{i:05d}-of-{n:05d}", records, 4)
    said = refused(directory)
    assert "0 images as 'image' and 1 integers as 'label'" in said
    assert "0 images as 'image/encoded'" in said


def test_parsing_agrees_with_the_writer_and_refuses_every_truncation():
    """A cut ends inside a field or, once, right after the last but one: never a wrong value."""
    image, label = TRAIN[0]
    record = stores.example(image, label)
    assert parse(record, Keys("image", "label")) == (image, label)
    for length in range(0, len(record), 7):
        with pytest.raises(ValueError, match=r"not a tf\.train\.Example|0 images"):
            parse(record[:length], Keys("image", "label"))
    twice = tf_example_pb2.Example.FromString(record)
    twice.features.feature["label"].int64_list.value.append(1)
    with pytest.raises(ValueError, match="2 integers as 'label'"):
        parse(twice.SerializeToString(), Keys("image", "label"))


def test_open_files_stay_within_the_limit(tmp_path):
    """60 shards read in random order by 4 threads where the process may open 64 files."""
    pattern = "train-{i:05d}-of-{n:05d}.array_record"
    stores.write_shards(tmp_path, pattern, records_of(TRAIN * 4), 60)
    script = f"""
        import os, resource, sys
        import numpy as np
        from concurrent.futures import ThreadPoolExecutor
        from largebatch.data.array_record import open_array_record
        from largebatch.data.sources import SourceOptions
        from tests.data.test_array_record import TRAIN

        resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[2])))
        before = len(os.listdir("/proc/self/fd"))
        records = open_array_record("arrayrecord:{tmp_path}", "train", SourceOptions(classes=4))
        parts = np.random.default_rng(0).integers(0, 92, (40, 25))
        with ThreadPoolExecutor(4) as threads:
            for ids, (images, _) in zip(parts, threads.map(records.read, parts)):
                assert images == [TRAIN[i % 23][0] for i in ids]
        after = len(os.listdir("/proc/self/fd"))
        print(after - before, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        print(records.describe())
    """

    def run(soft, hard):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script), str(soft), str(hard)],
            check=True,
            cwd=Path(__file__).parents[2],
            env={"PYTHONPATH": os.getcwd()},
            capture_output=True,
            text=True,
        )
        numbers, described = done.stdout.strip().split("\n")
        return *map(int, numbers.split()), described

    opened_files, soft, described = run(64, 64)
    assert (opened_files, soft) == (16, 64)
    assert described.endswith("60 shards, 16 open at once: raise `ulimit -n`)")
    opened_files, soft, described = run(64, 300)
    assert (opened_files, soft) == (60, 240)  # the soft limit was raised, as far as was needed
    assert described.endswith("60 shards)")


def test_tensorflow_is_not_imported(directory, tmp_path):
    stores.check_read_without_tensorflow(tmp_path, f"arrayrecord:{directory}")
