"""Class folders: the order of torchvision, what is left out, and splits that are a share."""

import os
from pathlib import Path

import numpy as np
import pytest

from largebatch.data import class_counts, open_source
from largebatch.data.source import SourceOptions, identity
from tests.data import stores


def fill(root, files):
    """Write an image to each path."""
    for index, path in enumerate(files):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        form = "PNG" if path.lower().endswith("png") else "JPEG"
        (root / path).write_bytes(stores.image_of(index, form))


TRAIN = ["train/b/2.JPEG", "train/b/10.jpg", "train/B/x.png", "train/a 1/é.jpeg", "train/a 1/Z.PNG"]
VAL = ["val/a 1/v.JPEG", "val/b/v.JPEG", "val/B/v.JPEG", "val/B/w.JPEG"]


@pytest.fixture
def tree(tmp_path):
    fill(tmp_path, [*TRAIN, *VAL])
    return tmp_path


def opened(root, split="train", **options):
    return open_source(f"folder:{root}", split, SourceOptions(**options))


def refused(root, split="train", **options):
    return stores.complaint(open_source, f"folder:{root}", split, SourceOptions(**options))


def places(records, root):
    return [os.path.relpath(records.where(i), root) for i in range(len(records))]


def as_torchvision_reads(directory):
    """The rule of torchvision.datasets.folder.make_dataset."""
    classes = sorted(entry.name for entry in os.scandir(directory) if entry.is_dir())
    pairs = []
    for label, name in enumerate(classes):
        for root, _, files in sorted(os.walk(os.path.join(directory, name))):
            pairs += [(os.path.join(root, file), label) for file in sorted(files)]
    return classes, pairs


@pytest.mark.parametrize("split", ["train", "validation"])
def test_reads_what_torchvision_reads(tree, split):
    fill(tree, ["train/b/n/1.JPEG", "train/b/n-1/1.JPEG", "train/b/n/n/1.JPEG", "train/b/z.JPEG"])
    records = opened(tree, split)
    classes, expected = as_torchvision_reads(tree / ("train" if split == "train" else "val"))
    assert records.classes == tuple(classes)
    assert [records.where(i) for i in range(len(records))] == [path for path, _ in expected]
    stores.check_source(records, [(Path(path).read_bytes(), label) for path, label in expected])
    counts = np.bincount([label for _, label in expected], minlength=3)
    assert class_counts(records) == tuple(counts.tolist())
    assert ("b/n" in records.describe()) == (split == "train")  # folders within a class


def test_hidden_files_links_and_other_files_are_counted_and_left_out(tree):
    (tree / "train" / "b" / "Thumbs.db").write_bytes(b"")
    fill(tree, ["train/b/._2.JPEG", "train/b/.trash/2.JPEG", "train/.cache/2.JPEG"])
    (tree / "train" / "b" / "loop").symlink_to(tree / "train", target_is_directory=True)
    records = opened(tree)
    assert len(records) == 5
    # The hidden file, the hidden folder, the link and Thumbs.db; .cache is not a class.
    assert " 4 other files " in records.describe()


def test_files_that_cannot_be_read_are_named(tree):
    records = opened(tree)
    missing = tree / "train" / "a 1" / "Z.PNG"
    missing.unlink()
    assert stores.complaint(records.read, np.array([0, 1])).startswith(str(missing))
    assert records.read(np.array([0, 2]))[1].tolist() == [0, 1]


def test_relative_paths_and_home_are_expanded(tree, monkeypatch):
    monkeypatch.chdir(tree.parent)
    monkeypatch.setenv("HOME", str(tree.parent))
    for path in (tree.name, f"~/{tree.name}"):
        records = opened(path)
        assert records.name == f"folder:{path}"
        assert records.where(0) == f"{tree}/train/B/x.png"


def test_paths_that_are_not_utf8_are_read_and_shown_as_text(tree):
    os.rename(tree / "train" / "B" / "x.png", os.fsencode(tree / "train/B") + b"/\xe9\n.png")
    records = opened(tree)
    assert records.where(0) == f"{tree}/train/B/\\xe9\\n.png"
    records.read(np.arange(1))


@pytest.mark.parametrize(
    ("names", "ordered"),
    [
        ([str(number) for number in range(12)], [str(number) for number in range(12)]),
        (["00", "1", "02", "10"], ["00", "1", "02", "10"]),
        (["1", "01", "10"], ["01", "1", "10"]),  # twice the same number: by text
        (["9", "10", "²"], ["10", "9", "²"]),
    ],
    ids=str,
)
def test_classes_named_by_numbers_are_in_the_order_of_the_numbers(names, ordered, tmp_path):
    fill(tmp_path, [f"{split}/{name}/1.png" for split in ("train", "val") for name in names])
    records = opened(tmp_path)
    assert records.classes == tuple(ordered)
    assert places(records, tmp_path) == [f"train/{name}/1.png" for name in ordered]
    assert records.read(np.arange(len(names)))[1].tolist() == list(range(len(names)))


@pytest.mark.parametrize(("train", "name"), [("train", "valid"), ("Train", "VALIDATION")])
def test_other_names_of_the_splits(train, name, tmp_path):
    fill(tmp_path, [f"{each}/{c}/1.png" for each in (train, name, "test") for c in "ab"])
    assert places(opened(tmp_path), tmp_path)[0] == f"{train}/a/1.png"
    assert places(opened(tmp_path, "validation"), tmp_path)[0] == f"{name}/a/1.png"
    os.rename(tmp_path / name, tmp_path / ".hidden")
    assert places(opened(tmp_path, "validation"), tmp_path)[0] == "test/a/1.png"


def test_class_names_that_a_line_cannot_hold_are_refused(tree):
    for split in ("train", "val"):
        os.rename(tree / split / "b", os.fsencode(tree / split) + b"/caf\xe9")
    assert "'caf\\udce9'" in refused(tree)


# ---- a share is the validation split

MANY = [f"{name}/{i}.JPEG" for name, count in (("b", 20), ("a", 7), ("c", 2)) for i in range(count)]


def divided(root, share=0.25):
    """The files of both splits."""
    records = [opened(root, each, validation_split=share) for each in ("train", "validation")]
    for each in records:
        assert each.classes == ("a", "b", "c")
        labels = each.read(np.arange(len(each)))[1]
        assert ["abc"[i] for i in labels] == [Path(p).parent.name for p in places(each, root)]
    return [places(each, root) for each in records]


def test_a_share_of_each_class_is_held_out(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    files = [f"train/{name}" for name in MANY]
    fill(one, files)
    train, validation = divided(one)
    assert sorted([*train, *validation]) == sorted(files)
    assert train == [path for path in sorted(files) if path in train]  # the order of the folder
    counts = [sum(path.startswith(f"train/{name}") for path in validation) for name in "abc"]
    assert counts == [2, 5, 1]  # a quarter, at least 1
    for name in reversed(files):  # other contents, written in another order
        fill(two, [name])
    assert divided(two) == [train, validation]
    (two / "train" / "b" / "0.JPEG").rename(two / "train" / "b" / "new.JPEG")
    changed = set(divided(two)[1]) ^ set(validation)
    assert len(changed - {"train/b/0.JPEG", "train/b/new.JPEG"}) <= 2  # others stay
    marks = [identity(opened(one, validation_split=share)) for share in (0.25, 0.5)]
    assert marks[0] != marks[1]


def test_what_can_be_split(tmp_path):
    alone, one, unlabelled = (tmp_path / name for name in ("alone", "one", "unlabelled"))
    fill(alone, [*MANY, *(f"valid/{i}.png" for i in range(4))])  # a class, not a split
    assert len(opened(alone, "validation", validation_split=0.25)) == 9
    assert len(opened(alone, "validation", whole=True)) == 33
    assert "data.validation_split" in refused(alone, "validation")
    fill(one, ["train/a/1.png", "train/a/2.png", "train/b/1.png"])
    assert "train/b" in refused(one, validation_split=0.5)
    fill(unlabelled, [*(f"train/{c}/{i}.png" for c in "ab" for i in range(4)), "test/1.png"])
    assert "data.validation_split" in refused(unlabelled, "validation")
    assert len(opened(unlabelled, "validation", validation_split=0.25)) == 2
