import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from largebatch.data.folder import open_folder
from largebatch.data.sources import SourceOptions
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
