import hashlib
import tracemalloc

import numpy as np
import pytest

from largebatch.data.decoded_store import ShardFacts, write_index, write_shard
from tests.data.decoded_stores import CLASSES, SHARDS, SIZE, contents, write


def test_a_shard_is_three_numpy_files(tmp_path):
    facts = write(tmp_path, "train")
    images, labels, sizes = contents("train")
    assert facts[1].file == "train-images-00001-of-00003.npy"
    assert [shard.examples for shard in facts] == list(SHARDS["train"])
    for what, dtype, column in (
        ("images", np.uint8, images),
        ("labels", np.int32, labels),
        ("sizes", np.int32, sizes),
    ):
        found = [np.load(tmp_path / f"train-{what}-0000{i}-of-00003.npy") for i in range(3)]
        assert {array.dtype for array in found} == {np.dtype(dtype)}
        np.testing.assert_array_equal(np.concatenate(found), column)
    for shard in facts:
        assert shard.sha256 == hashlib.sha256((tmp_path / shard.file).read_bytes()).hexdigest()
    assert len(list(tmp_path.iterdir())) == 9


def test_a_shard_is_written_in_the_memory_of_a_few_images(tmp_path):
    image = np.zeros((128, 128, 3), np.uint8)
    tracemalloc.start()
    try:
        write_shard(
            tmp_path, "train", 0, 1, (image + 1 for _ in range(64)), [0] * 64, [(1, 1)] * 64
        )
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # One image, the next one being made, and the stream's buffer; 64 would be 3.1 MB.
    assert peak < 6 * image.nbytes


def test_a_shard_that_fails_leaves_what_was_there(tmp_path):
    write(tmp_path, "validation")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}

    def images():
        yield np.zeros((SIZE, SIZE, 3), np.uint8)
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        write_shard(tmp_path, "validation", 0, 1, images(), [0, 1], [(1, 1)] * 2)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


SQUARE = np.zeros((4, 4, 3), np.uint8)


@pytest.mark.parametrize(
    ("images", "labels", "sizes"),
    [
        ([], [], []),
        ([SQUARE], [0], [(1, 1), (1, 1)]),
        ([SQUARE], [0, 1], [(1, 1)] * 2),
        ([SQUARE] * 3, [0, 1], [(1, 1)] * 2),
        ([SQUARE, SQUARE[:3]], [0, 1], [(1, 1)] * 2),
        ([SQUARE.astype(float)], [0], [(1, 1)]),
    ],
)
def test_a_shard_that_does_not_fit_together_is_refused(tmp_path, images, labels, sizes):
    with pytest.raises(ValueError, match=r"image|label"):
        write_shard(tmp_path, "train", 0, 1, images, labels, sizes)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("numbers", [(), (1, 0), (0,)])
def test_an_index_needs_all_shards_in_order(tmp_path, numbers):
    facts = [ShardFacts(f"train-images-0000{i}-of-00002.npy", 1, "") for i in numbers]
    with pytest.raises(ValueError, match="train: the shards are not"):
        write_index(tmp_path, size=4, classes=CLASSES, shards={"train": facts})
    assert not list(tmp_path.iterdir())
