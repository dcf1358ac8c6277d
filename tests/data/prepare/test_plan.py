import hashlib
import itertools
from pathlib import Path

import numpy as np
import pytest

from largebatch.data.prepare import members, plan, records
from largebatch.data.prepare.plan import Store
from largebatch.errors import ConfigError, DataError


def some(count, size=110_000, labels=1000):
    return members.from_rows(
        [(f"n{i % labels:08d}_{i}.JPEG", i % labels, 7 * i, size) for i in range(count)]
    )


def test_order_is_that_of_salted_md5():
    found = some(500)
    order = plan.order(found.names, "train")
    digests = [hashlib.md5(b"train" + name).digest() for name in found.names[order].tolist()]
    assert digests == sorted(digests)
    assert sorted(order) == list(range(500))
    assert list(order) != list(plan.order(found.names, "validation"))


def test_order_does_not_depend_on_where_images_lie():
    found = some(300)
    shuffled = found.take(np.random.default_rng(0).permutation(300))
    first, second = (plan.split("train", None, part, shards=7) for part in (found, shuffled))
    assert first.members.rows() == second.members.rows()
    assert first.identity() == second.identity()


def test_shards_hold_each_image_once():
    split = plan.split("train", None, some(100), shards=7)
    parts = [split.shard(i).rows() for i in range(7)]
    assert list(itertools.chain(*parts)) == split.members.rows()
    assert {len(part) for part in parts} == {14, 15}


def test_shards_share_the_memory_of_the_split():
    # A copy of all columns for each of 1,024 shards is 70 GB for ImageNet.
    split = plan.split("train", None, some(100), shards=7)
    for column, whole in zip(split.shard(3).columns(), split.members.columns(), strict=True):
        assert np.shares_memory(column, whole)
        assert column.base.nbytes == whole.nbytes


@pytest.mark.parametrize(
    ("count", "size", "shards"), [(1_281_167, 107_000, 1024), (50_000, 126_000, 64)]
)
def test_imagenet_has_as_many_shards_as_tfds_publishes(count, size, shards, monkeypatch):
    # Sizes are ImageNet's means; sorting a million hashes would take the test's time.
    monkeypatch.setattr(plan, "order", lambda names, split: np.arange(len(names)))
    found = members.Members(
        np.full(count, b"n01440764_10026.JPEG", "S32"),
        np.zeros(count, np.int32),
        np.zeros(count, np.int64),
        np.full(count, size, np.int64),
    )
    assert len(plan.split("train", None, found).ends) == shards


def test_lengths_are_those_of_the_records():
    sizes = [1, 90, *range(100, 130), 16_000, *range(16_340, 16_390), 100_000, 2_097_152, 2_100_000]
    rows = [("n01440764_1.JPEG", label, 0, size) for label in (0, 127, 128, 999) for size in sizes]
    expected = [len(records.serialise(name, label, bytes(size))) for name, label, _, size in rows]
    assert records.lengths(members.from_rows(rows)).tolist() == expected


def test_records_come_back():
    record = records.serialise("n01440764_1.JPEG", 999, b"\xff\xd8 data")
    assert records.parse(record) == ("n01440764_1.JPEG", 999, b"\xff\xd8 data")
    with pytest.raises(ValueError, match=r"no tf.train.Example"):
        records.parse(b"\xff\xd8 data")
    with pytest.raises(ValueError, match="not enough values"):
        records.parse(b"")


def test_a_full_disk_is_told(tmp_path):
    with pytest.raises(OSError, match="No space left on device"):
        records.write(Path("/dev/full"), iter([bytes(100_000)] * 100))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "decoded"}, "needs --size"),
        ({"kind": "decoded", "size": 4}, "from 8 to 4096, not 4"),
        ({"kind": "decoded", "size": 64, "quality": 90}, "belong to --store jpeg"),
        ({"size": 64}, "belongs to --store decoded"),
        ({"shorter": 256}, "go together"),
        ({"quality": 90}, "go together"),
        ({"shorter": 256, "quality": 101}, "--quality 101"),
        ({"shorter": -1, "quality": 90}, "--shorter is -1"),
    ],
)
def test_stores_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        Store(**options)


def test_more_shards_than_images_are_refused():
    with pytest.raises(ConfigError, match="--shards is 6 for 5 train images"):
        plan.split("train", None, some(5), shards=6)


def test_missing_images_are_counted(tmp_path):
    with pytest.raises(DataError, match=r"holds 100 train images, not 1,281,167.*--allow-partial"):
        members.check(some(100), "train", tmp_path, partial=False)
    members.check(some(100), "train", tmp_path, partial=True)


def test_missing_images_are_counted_per_class(tmp_path):
    even = some(50_000)
    members.check(even, "validation", tmp_path, partial=False)
    even.labels[0] = 1
    with pytest.raises(DataError, match="holds 49 images of class n01440764, not 50;"):
        members.check(even, "validation", tmp_path, partial=False)


def test_an_empty_or_repeated_image_is_named(tmp_path):
    rows = some(4).rows()
    with pytest.raises(DataError, match=r"n00000002_2.JPEG is empty"):
        members.check(
            members.from_rows([*rows[:2], (*rows[2][:3], 0)]), "train", tmp_path, partial=True
        )
    with pytest.raises(DataError, match=r"n00000001_1.JPEG occurs 2 times"):
        members.check(members.from_rows([*rows, rows[1]]), "train", tmp_path, partial=True)
    with pytest.raises(DataError, match="holds no images"):
        members.check(members.from_rows([]), "train", tmp_path, partial=True)
