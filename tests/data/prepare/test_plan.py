import hashlib
import random

import pytest

from largebatch.data.prepare import plan
from largebatch.data.prepare.archives import Row
from largebatch.data.prepare.plan import Store
from largebatch.errors import ConfigError


def rows(count, size=110_000, labels=1000):
    return [Row(f"n{i % labels:08d}_{i}.JPEG", i % labels, 7 * i, size) for i in range(count)]


def test_the_order_is_that_of_salted_md5():
    for name in ("train", "validation"):
        first = plan.split(name, None, rows(500), shards=7)
        second = plan.split(name, None, random.Random(0).sample(rows(500), 500), shards=7)
        digests = [hashlib.md5(f"{name}{row.name}".encode()).digest() for row in first.rows]
        assert digests == sorted(digests)
        assert sorted(first.rows) == sorted(rows(500))
        assert first == second
        assert plan.identity(Store(), [first]) == plan.identity(Store(), [second])


def test_the_identity_of_existing_datasets_does_not_change():
    # Otherwise a dataset that an earlier version wrote could not be repaired.
    found = plan.identity(Store(), [plan.split("train", None, rows(5), shards=2)])
    assert found == {
        "store": "JPEG as is",
        "train images": "5 (names 8c52d0a39ebe2581)",
        "train shards": "2",
    }


@pytest.mark.parametrize(
    ("count", "size", "shards"), [(1_281_167, 107_000, 1024), (50_000, 126_000, 64)]
)
def test_imagenet_has_the_number_of_shards_that_tfds_publishes(count, size, shards, monkeypatch):
    # Sizes are ImageNet's means; sorting a million hashes would take too long.
    monkeypatch.setattr(plan, "sorted", lambda rows, key: rows, raising=False)
    assert len(plan.split("train", None, [rows(1, size)[0]] * count).ends) == shards


@pytest.mark.parametrize(
    "options",
    [
        {"shorter": 256},
        {"shorter": 256, "quality": 101},
    ],
)
def test_invalid_stores_are_refused(options):
    with pytest.raises(ConfigError) as caught:
        Store(**options)
    assert all(f"--{name}" in str(caught.value) for name in options)


def test_more_shards_than_images_are_refused():
    with pytest.raises(ConfigError, match=r"--shards.*got 6"):
        plan.split("train", None, rows(5), shards=6)
