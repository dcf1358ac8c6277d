import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from largebatch.data import class_counts, open_source
from largebatch.data.folder import open_folder
from largebatch.data.source import SourceOptions, identity
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
    stores.check_source(records, contents)


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
    assert "data.validation_split=0.1" in refused(tree, "validation")


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


NUMBERS = [str(number) for number in range(12)]


@pytest.mark.parametrize(
    ("names", "ordered"),
    [
        (NUMBERS, NUMBERS),
        (["00", "1", "02", "10"], ["00", "1", "02", "10"]),
        (["0", "3", "7", "12"], ["0", "3", "7", "12"]),
        (["1", "01", "10"], ["01", "1", "10"]),  # twice the same number: by text
        (["9", "10", "b"], ["10", "9", "b"]),
        (["9", "10", "²"], ["10", "9", "²"]),
    ],
    ids=str,
)
def test_classes_named_by_numbers_are_in_the_order_of_the_numbers(names, ordered, tmp_path):
    fill(tmp_path, [f"{split}/{name}/1.png" for split in ("train", "val") for name in names])
    records = opened(tmp_path)
    assert records.classes == tuple(ordered)
    labels = records.read(np.arange(len(names)))[1]
    assert [Path(records.where(i)).parent.name for i in range(len(names))] == ordered
    assert labels.tolist() == list(range(len(names)))


@pytest.mark.parametrize("name", ["valid", "Val", "VALIDATION", "Test"])
@pytest.mark.parametrize("train", ["train", "Train"])
def test_other_names_of_the_splits(train, name, tmp_path):
    fill(tmp_path, [f"{each}/{c}/1.png" for each in (train, name) for c in "ab"])
    assert opened(tmp_path).where(0) == f"{tmp_path}/{train}/a/1.png"
    assert opened(tmp_path, "validation").where(0) == f"{tmp_path}/{name}/a/1.png"


@pytest.mark.parametrize("second", ["valid", "Val", "validation"])
def test_several_validation_folders_are_refused(tree, second):
    shutil.copytree(tree / "val", tree / second)
    assert f"{second}" in refused(tree, "validation")


def test_unlabelled_test_images_are_no_validation_split(tmp_path):
    fill(tmp_path, [*(f"train/{c}/{i}.png" for c in "ab" for i in range(4)), "test/1.png"])
    assert "data.validation_split" in refused(tmp_path, "validation")
    options = SourceOptions(validation_split=0.25)
    assert len(open_folder(f"folder:{tmp_path}", "validation", options)) == 2


def test_a_class_may_have_the_name_of_a_split(tmp_path):
    fill(tmp_path, [f"{name}/{i}.png" for name in ("valid", "void") for i in range(4)])
    records = open_folder(f"folder:{tmp_path}", "train", SourceOptions(validation_split=0.25))
    assert records.classes == ("valid", "void")
    whole = open_folder(f"folder:{tmp_path}", "validation", SourceOptions(whole=True))
    assert len(whole) == 8


BOTH = ("train/{}/1.png", "train/{}/2.png", "val/{}/1.png")
NESTED = {  # the files, the path below the root, the share, and words of the message
    "classes in a folder": (
        [f.format(f"images/{c}") for f in BOTH for c in "ab"], "", 0, "train/images", "a, b"
    ),
    "parent of classes": ([f"sub/{c}/{i}.png" for c in "ab" for i in "12"], "", 0.5, "sub", "a, b"),
    "parent of a dataset": (
        [f"sub/{f.format(c)}" for f in BOTH for c in "ab"], "", 0.5, "folder:{root}/sub", "train"
    ),
    "two datasets": (
        [f"{s}/{f.format(c)}" for f in BOTH for c in "ab" for s in ("x", "y")],
        "", 0.5, "folder:{root}/x", "train",
    ),
    "two datasets in splits": (
        [f.format(f"{s}/train/a") for f in BOTH for s in ("x", "y")], "", 0, "train/x", "train"
    ),
    "the parent without a share": (
        [f"sub/deep/{f.format(c)}" for f in BOTH for c in "ab"], "", 0, "no folder train in {root}"
    ),
    "no folder train beside others": (
        [f"{c}/{i}.png" for c in "ab" for i in "12"] + [f"../near/{f.format('a')}" for f in BOTH],
        "", 0, "data.validation_split",
    ),
    "an archive": (["set.tar.gz"], "set.tar.gz", 0, "a file", "--images"),
    "Kaggle": (
        ["Data/CLS-LOC/train/n01440764/n01440764_1.JPEG", "Data/CLS-LOC/train/n01443537/a.JPEG",
         "Data/CLS-LOC/val/ILSVRC2012_val_00000001.JPEG", "Data/CLS-LOC/test/x.JPEG"],
        "", 0, "no folder train in {root}",
    ),
    "Kaggle's images": (
        ["train/n01440764/n01440764_1.JPEG", "val/ILSVRC2012_val_00000001.JPEG", "test/x.JPEG"],
        "", 0, "prepare_imagenet.py --images {root} ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", NESTED)
def test_folders_on_another_level_are_named(case, tmp_path):
    files, below, share, *words = NESTED[case]
    root = tmp_path / "root"
    fill(root, files)
    options = SourceOptions(validation_split=share)
    said = stores.complaint(open_folder, f"folder:{root}/{below}", "train", options)
    for word in words:
        assert word.format(root=root) in said
    assert "near" not in said.replace(str(tmp_path), "")


def test_folders_within_classes_are_noticed(tree):
    assert "close" not in opened(tree).describe()
    fill(tree, ["train/b/close/1.png"])
    assert "b/close" in opened(tree).describe()


NAMES = [b"caf\xe9", b"a\nb", b" a", b"a ", b"a\r", b" ", b"\x1b", b"a\xc2\x85"]
NAMES += ["a\u2028b".encode()]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_class_names_that_a_line_cannot_hold_are_refused(name, tree):
    for split in ("train", "val"):
        os.rename(tree / split / "b", os.fsencode(tree / split) + b"/" + name)
    said = stores.complaint(open_source, f"folder:{tree}", "train")
    assert ascii(os.fsdecode(name)) in said


@pytest.mark.parametrize("name", ["a b", "中文", "👩\u200d🚀", "no\u00a0break"])
def test_other_class_names_are_accepted(name, tree):
    for split in ("train", "val"):
        (tree / split / "b").rename(tree / split / name)
    assert name in open_source(f"folder:{tree}", "train").classes


def test_paths_are_shown_as_text(tree):
    os.rename(tree / "train" / "B" / "x.png", os.fsencode(tree / "train/B") + b"/\xe9\n.png")
    records = opened(tree)
    assert records.where(0) == f"{tree}/train/B/\\xe9\\n.png"
    records.read(np.arange(1))
