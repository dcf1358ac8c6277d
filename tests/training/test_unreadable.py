"""Images that cannot be decoded: counted, listed, and an error beyond the limit."""

import jax
import numpy as np
import pytest
from PIL import Image

from largebatch.tracking import Console, read_rows
from tests.training import worlds

SPOILT = {"train": ("b/3.jpg",), "val": ("a/0.jpg", "b/1.jpg")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("pictures")
    for split, count in (("train", 20), ("val", 6)):
        for index in range(count):
            path = place / split / "ab"[index % 2] / f"{index}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (20, 16), (9 * index, 20, 90)).save(path)
        for name in SPOILT[split]:
            (place / split / name).write_text("no picture")
    return place


def config(folder, share):
    return worlds.digits(
        4,
        4,
        model=worlds.SMALL | {"name": "tests.training.own_models:small_colour"},
        batch={"workers": 2, "stages": ("2 steps: data.image_size=12",)},
        data={"source": f"folder:{folder}", "image_size": 8, "max_unreadable": share},
    )


def test_a_run_counts_and_lists_them(folder, tmp_path):
    found = worlds.train(config(folder, 0.4), tmp_path / "run", devices=1)
    assert (found.status, found.unreadable) == ("complete", 3)
    assert worlds.summary(tmp_path / "run")["unreadable"] == 3
    listed = read_rows(tmp_path / "run" / "unreadable_0.jsonl")
    assert f"{folder}/train/b/3.jpg" in {row["name"] for row in listed}


def test_all_stages_keep_one_account_of_each_split(folder):
    run = worlds.build(config(folder, 0.4), Console(quiet=True), jax.devices()[:1])
    later = run.stages[1]
    reported = {"train": [], "validation": []}
    for split, unreadable in run.unreadable.items():
        assert later.unreadable[split] is unreadable
        unreadable.connect(lambda name, reason, split=split: reported[split].append(name))
    assert [run.unreadable[split].limit for split in reported] == [8, 2]
    first = list(run.first_stage.train_microbatches(0, 40))
    second = list(later.train_microbatches(40, 80))
    assert [batch.images.shape[1] for batch in (*first, *second)] == [8] * 4 + [12] * 4
    for stage in run.stages:
        for _ in range(2):
            batches = list(stage.validation_batches())
            counted = sum(int(np.sum(batch.mask)) for batch in batches)
            labels = np.concatenate([np.asarray(b.labels)[np.asarray(b.mask) > 0] for b in batches])
            assert (counted, labels.sum()) == (6, 3)
    assert reported["train"] == [f"{folder}/train/{name}" for name in SPOILT["train"]]
    assert reported["validation"] == [f"{folder}/val/{name}" for name in SPOILT["val"]]
