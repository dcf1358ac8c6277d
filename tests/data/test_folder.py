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
    """Writes an image to each path; returns the images by path."""
    written = {}
    for index, path in enumerate(files):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        form = "PNG" if path.lower().endswith("png") else "JPEG"
        written[path] = stores.picture(index, form)
        (root / path).write_bytes(written[path])
    return written


TRAIN = ["train/b/2.JPEG", "train/b/10.jpg", "train/B/x.png", "train/a 1/é.jpeg", "train/a 1/Z.PNG"]
VAL = ["val/a 1/v.JPEG", "val/b/v.JPEG", "val/B/v.JPEG", "val/B/w.JPEG"]
CLASSES = ("B", "a 1", "b")


@pytest.fixture
def tree(tmp_path):
    fill(tmp_path, [*TRAIN, *VAL])
    return tmp_path


def opened(root, split="train"):
    return open_folder(f"folder:{root}", split, SourceOptions())


def refused(root, split="train"):
    return stores.complaint(open_folder, f"folder:{root}", split, SourceOptions())


def as_torchvision_reads(directory):
    """The rule of torchvision.datasets.folder.make_dataset, for names that it and we take."""
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
    stores.check_records(records, contents, split)


def test_says_what_was_found(tree):
    assert opened(tree).describe() == (f"folder:{tree}: 5 train images, 3 classes (train/)")
    (tree / "train" / "b" / "Thumbs.db").write_bytes(b"")
    fill(tree, ["train/b/._2.JPEG", "train/b/.trash/2.JPEG", "train/.cache/2.JPEG"])
    (tree / "train" / "b" / "loop").symlink_to(tree / "train", target_is_directory=True)
    records = opened(tree)
    assert len(records) == 5
    # The hidden file, the hidden folder, the link and Thumbs.db; .cache is no class at all.
    assert records.describe().endswith("(train/, 4 other files left out)")


def test_the_validation_folder(tree):
    shutil.copytree(tree / "val", tree / "test")
    assert opened(tree, "validation").where(0) == f"{tree}/val/B/v.JPEG"
    (tree / "val").rename(tree / "validation")
    assert opened(tree, "validation").where(0) == f"{tree}/validation/B/v.JPEG"
    shutil.rmtree(tree / "validation")
    assert opened(tree, "validation").where(0) == f"{tree}/test/B/v.JPEG"
    shutil.rmtree(tree / "test")
    assert len(opened(tree)) == 5
    said = refused(tree, "validation")
    assert f"no folder val or validation or test in {tree}, which holds 1 entries: train;" in said
    assert f"prepare_imagenet.py --images {tree} --validation 0.1" in said


def test_the_same_classes_are_needed_in_both(tree):
    fill(tree, ["val/c/1.JPEG", "val/d/1.JPEG"])
    for split in ("train", "validation"):
        assert "2 are in val alone, e.g. c; both need the same class folders" in refused(
            tree, split
        )
    shutil.rmtree(tree / "val" / "c")
    shutil.rmtree(tree / "val" / "d")
    shutil.rmtree(tree / "val" / "b")
    for split in ("train", "validation"):
        assert "1 is in train alone, e.g. b" in refused(tree, split)


def test_empty_classes_are_told(tree):
    for name in ("b", "B"):
        for file in (tree / "train" / name).iterdir():
            file.rename(file.with_suffix(".txt"))
    said = refused(tree)
    assert f"{tree}/train: 2 of 3 class folders have no image, e.g. B; fill or remove" in said


def test_a_split_without_class_folders_is_told(tree):
    """As the validation archive of ImageNet unpacks."""
    shutil.rmtree(tree / "val")
    fill(tree, [f"val/ILSVRC2012_val_0000000{i}.JPEG" for i in range(1, 6)])
    said = refused(tree, "validation")
    assert f"{tree}/val has no class folders: it holds 5 entries: ILSVRC2012_val_00000001.J" in said
    assert "move each image into the folder of its class" in said


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("folder", "has no directory; write folder:PATH"),
        ("folder:", "has no directory; write folder:PATH"),
        ("folder:/no/such", "no folder train in /no/such, which does not exist; expected train/C"),
    ],
)
def test_absent_directories_are_told(spec, said):
    assert said in stores.complaint(open_folder, spec, "train", SourceOptions())


def test_class_folders_without_a_split_are_told(tree):
    said = refused(tree / "train")
    assert f"no folder train in {tree}/train, which holds 3 entries: B, a 1, b; expected" in said


def test_files_that_cannot_be_read_are_named(tree):
    records = opened(tree)
    (tree / "train" / "a 1" / "Z.PNG").unlink()
    said = stores.complaint(records.read, np.array([0, 1]))
    assert said.startswith(f"{tree}/train/a 1/Z.PNG cannot be read: No such file or directory; ")
    assert records.read(np.array([0, 2]))[1].tolist() == [0, 1]
    (tree / "train" / "a 1" / "Z.PNG").mkdir()
    said = stores.complaint(records.read, np.array([1]))
    assert said.startswith(f"{tree}/train/a 1/Z.PNG cannot be read: Is a directory; ")


def test_a_relative_path_and_home_stay_what_they_were(tree, monkeypatch):
    monkeypatch.chdir(tree.parent)
    monkeypatch.setenv("HOME", str(tree.parent))
    for path in (tree.name, f"~/{tree.name}"):
        records = opened(path)
        assert records.name == f"folder:{path}"
        assert records.where(0) == f"{tree}/train/B/x.png"


def test_names_that_are_no_text(tree):
    odd = os.fsencode(tree / "train" / "b") + b"/\xff\xfe.jpg"
    with open(odd, "wb") as file:
        file.write(b"odd")
    records = opened(tree)
    assert b"odd" in records.read(np.arange(6))[0]
    pickle.loads(pickle.dumps(records)).read(np.arange(6))


def test_tensorflow_is_not_imported(tree, tmp_path):
    stores.check_read_without_tensorflow(tmp_path / "process", f"folder:{tree}")
