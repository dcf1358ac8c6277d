import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from largebatch.data import class_counts, open_source
from largebatch.data.folder import open_folder
from largebatch.data.sources import SourceOptions, identity
from largebatch.errors import ConfigError
from tests.data import stores


def fill(root, files):
    """Write an image to each path."""
    for index, path in enumerate(files):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        form = "PNG" if path.lower().endswith("png") else "JPEG"
        (root / path).write_bytes(stores.image_of(index, form))


TRAIN = ["train/b/2.JPEG", "train/b/10.jpg", "train/B/x.png", "train/a 1/é.jpeg", "train/a 1/Z.PNG"]
VAL = ["val/a 1/v.JPEG", "val/b/v.JPEG", "val/B/v.JPEG", "val/B/w.JPEG"]
CLASSES = ("B", "a 1", "b")


@pytest.fixture
def tree(tmp_path):
    fill(tmp_path, [*TRAIN, *VAL])
    return tmp_path


def opened(root, split="train"):
    return open_folder(f"folder:{root}", split, SourceOptions())


def refused(root, split):
    return stores.complaint(open_folder, f"folder:{root}", split, SourceOptions())


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
    directory = tree / ("train" if split == "train" else "val")
    classes, expected = as_torchvision_reads(directory)
    assert records.classes == tuple(classes) == CLASSES
    assert [
        (records.where(i), int(records.read([i])[1][0])) for i in range(len(records))
    ] == expected
    contents = [(Path(path).read_bytes(), label) for path, label in expected]
    stores.check_records(records, contents)


@pytest.mark.parametrize("split", ["train", "validation"])
def test_the_examples_of_each_class_are_counted(tree, split):
    opened = open_source(f"folder:{tree}", split, SourceOptions(image_size=8))
    _, labels = opened.read(np.arange(len(opened)))
    assert class_counts(opened) == tuple(np.bincount(labels, minlength=3).tolist())


def test_hidden_files_links_and_other_files_are_counted_and_left_out(tree):
    (tree / "train" / "b" / "Thumbs.db").write_bytes(b"")
    fill(tree, ["train/b/._2.JPEG", "train/b/.trash/2.JPEG", "train/.cache/2.JPEG"])
    (tree / "train" / "b" / "loop").symlink_to(tree / "train", target_is_directory=True)
    records = opened(tree)
    assert len(records) == 5
    # The hidden file, the hidden folder, the link and Thumbs.db; .cache is not a class.
    assert " 4 other files " in records.describe()


def test_names_of_the_validation_folder(tree):
    shutil.copytree(tree / "val", tree / "test")
    for name in ("val", "validation", "test"):
        assert opened(tree, "validation").where(0) == f"{tree}/{name}/B/v.JPEG"
        if name == "val":
            (tree / "val").rename(tree / "validation")
        else:
            shutil.rmtree(tree / name)
    assert len(opened(tree)) == 5
    assert f"--images {tree} --validation 0.1" in refused(tree, "validation")


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


def test_file_names_that_are_not_utf8(tree):
    odd = os.fsencode(tree / "train" / "b") + b"/\xff\xfe.jpg"
    with open(odd, "wb") as file:
        file.write(b"odd")
    records = opened(tree)
    assert b"odd" in records.read(np.arange(6))[0]
    pickle.loads(pickle.dumps(records)).read(np.arange(6))


MANY = [f"{name}/{i}.JPEG" for name, count in (("b", 20), ("a", 7), ("c", 2)) for i in range(count)]


def divided(root, share=0.25):
    """The files of both splits, by the path below the folder of their class."""
    options = SourceOptions(validation_split=share)
    records = [open_folder(f"folder:{root}", each, options) for each in ("train", "validation")]
    assert records[0].classes == records[1].classes == ("a", "b", "c")
    found = []
    for each in records:
        places = [each.where(i) for i in range(len(each))]
        labels = [int(label) for label in each.read(np.arange(len(each)))[1]]
        assert [each.classes[label] for label in labels] == [Path(p).parent.name for p in places]
        found.append([f"{Path(p).parent.name}/{Path(p).name}" for p in places])
    return found


def test_a_share_of_each_class_is_held_out(tmp_path):
    fill(tmp_path / "one", [f"train/{name}" for name in MANY])
    train, validation = divided(tmp_path / "one")
    assert not set(train) & set(validation)
    assert set(train) | set(validation) == set(MANY)
    assert train == [path for path in sorted(MANY) if path in train]  # the order of the folder
    counts = [sum(path.startswith(name) for path in validation) for name in "abc"]
    assert counts == [2, 5, 1]  # a quarter, at least 1
    for name in reversed(MANY):  # other contents, written in another order
        fill(tmp_path / "two", [f"train/{name}"])
    assert divided(tmp_path / "two") == [train, validation]
    (tmp_path / "two" / "train" / "b" / "0.JPEG").rename(tmp_path / "two" / "train/b/new.JPEG")
    moved = set(divided(tmp_path / "two")[1]) ^ set(validation)
    assert len(moved - {"b/0.JPEG", "b/new.JPEG"}) <= 2  # others stay where they were
    marks = [
        identity(open_folder(f"folder:{tmp_path}/one", "train", SourceOptions(validation_split=x)))
        for x in (0.25, 0.5)
    ]
    assert marks[0] != marks[1]


def test_class_folders_alone_can_be_split(tmp_path):
    fill(tmp_path, MANY)
    train, validation = divided(tmp_path)
    assert (len(train), len(validation)) == (21, 8)


def test_class_folders_alone_can_be_a_validation_split(tmp_path):
    fill(tmp_path, MANY)
    whole = open_folder(f"folder:{tmp_path}", "validation", SourceOptions(whole=True))
    assert len(whole) == 29
    (tmp_path / "train").mkdir()
    complaint = stores.complaint(
        open_folder, f"folder:{tmp_path}", "validation", SourceOptions(whole=True)
    )
    assert "validation_split" not in complaint


@pytest.mark.parametrize(
    ("files", "spec", "word"),
    [
        ([*TRAIN, *VAL], "folder:{}", "/val"),
        (["train/a/1.png", "train/a/2.png", "train/b/1.png"], "folder:{}", "train/b"),
        ([], "folder:{}", "no folder"),
    ],
)
def test_folders_that_cannot_be_split(files, spec, word, tmp_path):
    fill(tmp_path, files)
    options = SourceOptions(validation_split=0.5)
    assert word in stores.complaint(open_folder, spec.format(tmp_path), "train", options)


def test_only_a_folder_is_split():
    with pytest.raises(ConfigError, match=r"data\.validation_split"):
        open_source("digits", "train", SourceOptions(validation_split=0.5))
