"""ImageNet's tars, class folders and tars of them: order, labels, checks, and hostile members."""

import hashlib
import io
import os
import shutil
import tarfile

import numpy as np
import pytest

from largebatch.data import SourceOptions, imagenet
from largebatch.data.prepare.image_files import find_images, find_tars
from largebatch.data.prepare.inputs import shard_ranges
from largebatch.data.source import open_source
from largebatch.errors import ConfigError, DataError
from tests.data import forms
from tests.data.prepare import fakes

GOOD = "ILSVRC2012_val_00000001.JPEG"
OTHER = "ILSVRC2012_val_00000002.JPEG"
INNER = "n01440764_1.JPEG"
PHOTO = fakes.photo(1)
END = bytes(20 * tarfile.BLOCKSIZE)
SPLITS = ("train", "validation")


def rows(found):
    """All examples of each split: key, image, label."""
    return {split.name: [e[:3] for part in split.parts for e in part] for split in found.splits}


def test_labels_are_those_of_tfds_in_its_order():
    import tensorflow_datasets as tfds

    labels = tfds.core.tfds_path("datasets/imagenet2012/labels.txt")
    assert imagenet.classes() == tuple(tfds.features.ClassLabel(names_file=labels).names)
    # As image-net.org's ground truth begins: a sea snake, an alp, a Shetland sheepdog.
    found = [imagenet.image_label(f"ILSVRC2012_val_{i:08d}.JPEG", "here") for i in (1, 2, 3)]
    assert [imagenet.classes()[label] for label in found] == ["n01751748", "n09193705", "n02105855"]


def test_imagenet_has_the_number_of_shards_that_tfds_publishes():
    for images, mean, shards in ((1_281_167, 107_000, 1024), (50_000, 126_000, 64)):
        assert len(shard_ranges("train", images, images * mean, 0, INNER)) == shards


def test_imagenet_is_in_the_order_of_tfds_from_tars_and_from_folders(tmp_path):
    found = rows(find_tars(fakes.write_tars(tmp_path / "tars"), partial=True, shards=3))
    for split, files in (("train", fakes.train()), ("validation", fakes.validation())):
        keys = [key for key, _, _ in found[split]]
        digests = [hashlib.md5((split + key).encode()).digest() for key in keys]
        assert digests == sorted(digests)
        assert {key: image for key, image, _ in found[split]} == files
    assert all(label == fakes.label(key) for key, _, label in found["train"])
    for flat in (True, False):
        folder = fakes.write_folders(tmp_path / f"{flat}", flat=flat)
        (folder / "train" / "n01440764" / "._n01440764_9.JPEG").write_bytes(b"of macOS")
        assert rows(find_images(folder, partial=True, shards=3)) == found


def test_less_than_imagenet_needs_allow_partial(tmp_path):
    tars = fakes.write_tars(tmp_path / "tars")
    folder = fakes.write_folders(tmp_path / "folder")
    for find, source in ((find_tars, tars), (find_images, folder)):
        with pytest.raises(DataError, match="--allow_partial"):
            find(source)
    (tars / imagenet.TARS["train"]).unlink()
    assert [split.name for split in find_tars(tars, partial=True).splits] == ["validation"]
    os.mkfifo(tars / imagenet.TARS["train"])  # would never end
    with pytest.raises(DataError, match="--allow_partial"):
        find_tars(tars)
    uneven = [i % 1000 for i in range(50_000)]
    imagenet.check_counts("here", "validation", uneven)
    uneven[0] = 1
    with pytest.raises(DataError, match=r"n01440764.*49"):
        imagenet.check_counts("here", "validation", uneven)


def member(name, data=b"", *, kind=tarfile.REGTYPE, size=None, link="", pax=None):
    """The bytes of a tar member; `size` is what its header states, None the true size."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.pax_headers = kind, link, pax or {}
    info.size = len(data) if size is None else size
    return info.tobuf(tarfile.PAX_FORMAT) + data + b"\0" * (-len(data) % tarfile.BLOCKSIZE)


def raw(name, kind, size):
    """A header with any size: base 256, in which numbers may be negative."""
    block = bytearray(tarfile.TarInfo(name).tobuf(tarfile.GNU_FORMAT))
    block[124:136] = (b"\xff" if size < 0 else b"\x80") + (size % 256**11).to_bytes(11, "big")
    block[156:157] = kind
    block[148:156] = b" " * 8
    block[148:155] = b"%06o\0" % sum(block)
    return bytes(block)


# Members that stop the preparation beside a good one.
MEMBERS = {
    "another name": member("README", b"x"),
    "traversal": member("../../escaped.JPEG", PHOTO),
    "not UTF-8": member("\udcff.JPEG", PHOTO),
    "twice": member(GOOD, PHOTO),
    "empty": member(OTHER),
    "sparse": member(OTHER, b"x", pax={"GNU.sparse.map": "0,1", "GNU.sparse.size": "1"}),
    "size beyond the end": member(OTHER, PHOTO, size=1 << 33),
    "negative size": raw(OTHER, tarfile.REGTYPE, -512),
    "header of a hundred gigabytes": raw("x", tarfile.XHDTYPE, 10**11) + member(OTHER, PHOTO),
    "link to nothing": member(OTHER, kind=tarfile.LNKTYPE, link="nothing"),
}
CLASS_TARS = {
    "size beyond its own tar": {
        "n01440764.tar": member(INNER, PHOTO, size=9000) + END[:1024],
        "n01443537.tar": END,
    },
    "of another class": {"n01440764.tar": fakes.tar({"n01443537_1.JPEG": PHOTO})},
    "tar twice": [("n01440764.tar", fakes.tar({INNER: PHOTO}))] * 2,
    "unknown class": {"n00000001.tar": fakes.tar({INNER: PHOTO})},
}
HOSTILE = [
    *(("validation", bad + member(GOOD, PHOTO) + END) for bad in MEMBERS.values()),
    *(("validation", member(GOOD, PHOTO) + bad + END) for bad in MEMBERS.values()),
    *(("train", fakes.tar(tars)) for tars in CLASS_TARS.values()),
]


@pytest.mark.parametrize(("split", "content"), HOSTILE, ids=[*MEMBERS, *MEMBERS, *CLASS_TARS])
def test_hostile_tars_are_refused(tmp_path, split, content):
    path = tmp_path / imagenet.TARS[split]
    path.write_bytes(content)
    with pytest.raises(DataError, match=path.name) as caught:
        find_tars(tmp_path, partial=True)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 600
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("split", SPLITS)
def test_tars_that_end_early_or_have_a_damaged_header_are_refused(tmp_path, split):
    path = fakes.write_tars(tmp_path) / imagenet.TARS[split]
    whole = path.read_bytes()
    end = len(whole.rstrip(b"\0"))  # the last zeros are not necessary
    damaged = [whole[:length] for length in (0, 700, end // 3 // 512 * 512, end // 2, end - 1)]
    header = bytearray(whole)
    header[whole.rindex(b"././@PaxHeader") + 3] ^= 1
    for content in (*damaged, bytes(header)):
        path.write_bytes(content)
        with pytest.raises(DataError, match=path.name):
            find_tars(tmp_path, partial=True)


def test_files_that_shrink_are_noticed_when_they_are_read(tmp_path):
    tars = fakes.write_tars(tmp_path)
    found = find_tars(tars, partial=True)
    path = tars / imagenet.TARS["validation"]
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(DataError, match=path.name):
        rows(found)


# ---- class folders


def packed(path, folder, mode):
    """A tar of a folder, below `pets/`."""
    with tarfile.open(path, mode) as tar:
        for each in sorted(folder.rglob("*")):
            tar.add(each, f"pets/{each.relative_to(folder)}", recursive=False)
    return path


@pytest.fixture
def pets(tmp_path):
    """Class folders with an inner folder, numbers in the names, and files that are left out."""
    forms.folder(tmp_path / "pets")
    for name in ("a-b/1.jpg", "a/1.jpg", "10.JPG"):
        for split in SPLITS:
            path = tmp_path / "pets" / split / "cat" / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(fakes.photo(len(name)))
    for name in ("._0.jpg", "notes.txt", ".hidden.jpg"):
        (tmp_path / "pets" / "train" / "cat" / name).write_bytes(b"x")
    (tmp_path / "pets" / "train" / "loose.jpg").write_bytes(b"x")
    (tmp_path / "pets" / ".cache" / "train" / "cat").mkdir(parents=True)
    (tmp_path / "pets" / ".cache" / "train" / "cat" / "1.jpg").write_bytes(b"x")
    (tmp_path / "pets" / "train" / "cat" / "gone.txt").symlink_to("nowhere")
    (tmp_path / "pets" / "train" / "cat" / "loop").symlink_to("..")
    return tmp_path / "pets"


def as_folder(path, split, share=0.0):
    """Images and labels of `folder:`, in its order."""
    records = open_source(f"folder:{path}", split, SourceOptions(validation_split=share))
    images, labels = records.read(np.arange(len(records)))
    return list(zip(images, labels.tolist(), strict=True)), records.classes


@pytest.mark.parametrize("form", ["folder", "w"])
def test_class_folders_are_those_of_the_source_folder(tmp_path, pets, form):
    source = pets if form == "folder" else packed(tmp_path / "pets.tar", pets, form)
    found = find_images(source, shards=2)
    for split in SPLITS:
        expected, classes = as_folder(pets, split)
        images = [(image, label) for _, image, label in rows(found)[split]]
        order = list if form == "folder" else sorted
        assert (order(images), found.classes) == (order(expected), classes)


@pytest.mark.parametrize("form", ["folder", "w"])
def test_a_share_of_each_class_is_held_out_as_in_training(tmp_path, pets, form):
    shutil.rmtree(pets / "validation")
    whole, inner = pets, pets / "train"
    (inner / "loose.jpg").unlink()
    for folder in (whole, inner):  # with and without a folder of the split
        source = folder if form == "folder" else packed(tmp_path / "pets.tar", folder, form)
        found = rows(find_images(source, validation=0.25))
        for split in SPLITS:
            expected, _ = as_folder(folder, split, 0.25)
            assert sorted((image, label) for _, image, label in found[split]) == sorted(expected)


def fill(root, files):
    for name in files:
        path = os.path.join(os.fsencode(root), os.fsencode(name))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as stream:
            stream.write(PHOTO)


@pytest.mark.parametrize(
    ("files", "share", "error", "word"),
    [
        (["train/a/1.jpg", "train/b/1.jpg"], 0.0, DataError, "--validation"),
        (["train/a/1.jpg", "train/b/1.jpg", "val/a/1.jpg", "val/b/1.jpg"], 0.1, ConfigError, "--v"),
        (["train/a/1.jpg", "train/b/1.jpg"], 1.0, ConfigError, "--validation"),
        (["train/a/1.jpg", "train/b/1.jpg", "train/b/2.jpg"], 0.1, DataError, "class a"),
        (["val/a/1.jpg", "val/b/1.jpg"], 0.0, DataError, "train"),
        (["train/a/1.jpg", "train/b/1.jpg", "val/a/1.jpg"], 0.0, DataError, "b"),
        (["train/all/a/1.jpg", "train/all/b/1.jpg"], 0.5, DataError, "all"),
        (["readme.txt"], 0.0, DataError, "pets"),
        ([b"train/\xe9t\xe9/%d.jpg" % i for i in (1, 2)], 0.1, DataError, "udce9"),
    ],
)
def test_other_folders_are_refused(tmp_path, files, share, error, word):
    fill(tmp_path / "pets", files)
    with pytest.raises(error, match=word) as caught:
        find_images(tmp_path / "pets", validation=share)
    assert str(caught.value).isprintable()


def test_damaged_sources_are_refused(tmp_path, pets):
    whole = packed(tmp_path / "pets.tgz", pets, "w:gz").read_bytes()
    (tmp_path / "cut.tar").write_bytes(whole[:20_000])
    (tmp_path / "text.tar").write_text("404 not found")
    packed(tmp_path / "twice.tar", pets, "w")
    with tarfile.open(tmp_path / "twice.tar", "a") as tar:
        info = tarfile.TarInfo("pets/train/cat/10.JPG")
        info.size = 1
        tar.addfile(info, io.BytesIO(b"x"))
    for name in ("pets.tgz", "cut.tar", "text.tar", "none.tar", "twice.tar"):
        with pytest.raises(DataError, match=name):
            find_images(tmp_path / name)
