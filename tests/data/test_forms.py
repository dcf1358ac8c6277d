"""The same photographs are the same examples in every form, wherever their files lie."""

import errno
import io
import os
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest

from largebatch.data import SourceOptions, content, identity, open_dataset
from largebatch.data.source import open_source
from tests.data import feeds, forms, stores

OPTIONS = SourceOptions(image_size=16)
PAIRS = {s: [(image, label) for _, image, label in forms.photographs(s)] for s in forms.SPLITS}


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """The specification of each form; not to be changed."""
    root = tmp_path_factory.mktemp("forms")
    return {name: forms.FORMS[name](root / name.replace(" ", "_")) for name in forms.IN_PLACE}


@pytest.mark.parametrize("form", forms.IN_PLACE)
def test_every_form_gives_the_examples_of_the_folder(sets, form):
    for split in forms.SPLITS:
        records = open_source(sets[form], split, OPTIONS)
        stores.check_source(records, PAIRS[split])
        assert records.classes == forms.CLASSES
    ours, theirs = (
        feeds.microbatches(open_dataset(sets[name], "train", OPTIONS)) for name in (form, "folder")
    )
    feeds.assert_same(ours, theirs)


@pytest.mark.parametrize(
    ("pattern", "train", "validation"),
    [
        ("*.tar", 3, 2),
        ("pets-{train,validation}-{0000..0002}.tar", 3, None),
        ("pets-{train-{0000..0003},validation-{0000..0001}}.tar", None, 2),
        ("pets-[uvw]*.tar", None, 2),
    ],
)
def test_patterns_of_tars(sets, pattern, train, validation):
    directory = sets["webdataset"].partition(":")[2]
    for split, shards in (("train", train), ("validation", validation)):
        spec = f"webdataset:{directory}/{pattern}"
        if shards is None:
            assert directory in stores.complaint(open_source, spec, split, OPTIONS)
        else:
            records = open_source(spec, split, OPTIONS)
            assert f"{shards} tars" in records.describe()
            assert records.read(np.arange(len(records)))[0] == [image for image, _ in PAIRS[split]]


def test_shards_may_lie_in_folders_of_their_splits(sets, tmp_path):
    place = Path(sets["webdataset"].partition(":")[2])
    for split, folder in (("train", "train"), ("validation", "val")):
        (tmp_path / folder).mkdir()
        for number, path in enumerate(sorted(place.glob(f"*{split}*.tar"))):
            shutil.copy(path, tmp_path / folder / f"{number:04}.tar")
    shutil.copy(place / "labels.txt", tmp_path)
    for split in forms.SPLITS:
        found = open_source(f"webdataset:{tmp_path}", split, OPTIONS)
        stores.check_source(found, PAIRS[split])


@pytest.mark.parametrize("form", ["tfrecord", "arrayrecord", "folder"])
def test_the_same_images_have_the_same_content_in_another_place(form, tmp_path, monkeypatch):
    """Other labels or images of the same size, in either split, are other data."""
    photographs = forms.photographs

    def found(name, change=None, changed=None):
        def written(split):
            if split != changed:
                return photographs(split)
            return [(key, *change(image, label)) for key, image, label in photographs(split)]

        monkeypatch.setattr(forms, "photographs", written)
        spec = forms.FORMS[form](tmp_path / name)
        splits = [open_source(spec, split) for split in forms.SPLITS]
        assert identity(splits[0]) != identity(splits[1])
        return content(*splits)

    def other_image(image, label):
        return image[:-1] + bytes([image[-1] ^ 1]), label

    def other_label(image, label):
        return image, (label + 1) % len(forms.CLASSES)

    own = found("own")
    assert found("copy") == own
    for split in forms.SPLITS:
        assert found(f"{split} images", other_image, split) != own
        assert found(f"{split} labels", other_label, split) != own


@pytest.mark.parametrize("how", ["overwritten", "replaced"])
def test_a_shard_that_changes_after_opening_is_named_and_never_read(sets, tmp_path, how):
    root = tmp_path / "set"
    shutil.copytree(sets["webdataset"].partition(":")[2], root)
    open_source(f"webdataset:{root}", "train", OPTIONS)  # writes the index
    source = open_source(f"webdataset:{root}", "train", OPTIONS)
    path, other = root / "pets-train-0000.tar", root / "pets-train-0001.tar"
    if how == "replaced":
        shutil.copy(other, root / "new")
        (root / "new").replace(path)
    else:
        source.read(np.arange(3))
        path.write_bytes(other.read_bytes())
    assert stores.complaint(source.read, np.arange(3)).startswith(str(path))


def test_links_and_contiguous_files_of_a_tar_are_read_and_hidden_members_are_left_out(tmp_path):
    images = [stores.image_of(i) for i in range(2)]
    members = [
        ("._0.jpg", tarfile.REGTYPE, b"resource fork"),
        ("0.jpg", tarfile.REGTYPE, images[0]),
        ("0.cls", tarfile.REGTYPE, b"0"),
        ("1.jpg", tarfile.CONTTYPE, images[1]),
        ("1.cls", tarfile.CONTTYPE, b"1"),
        ("x/2.jpg", tarfile.LNKTYPE, "0.jpg"),
        ("x/2.cls", tarfile.LNKTYPE, "1.cls"),
    ]
    with tarfile.open(tmp_path / "train-0000.tar", "w") as tar:
        for name, kind, data in members:
            info = tarfile.TarInfo(name)
            info.type = kind
            if kind == tarfile.LNKTYPE:
                info.linkname = data
                tar.addfile(info)
            else:
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    (tmp_path / "labels.txt").write_text("a\nb\n")
    expected = [(images[0], 0), (images[1], 1), (images[0], 1)]
    stores.check_source(open_source(f"webdataset:{tmp_path}", "train"), expected)


def test_a_directory_that_cannot_be_listed_is_named(sets, monkeypatch):
    def refuse(path):
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(os, "scandir", refuse)
    said = stores.complaint(open_source, sets["webdataset"], "train", OPTIONS)
    assert sets["webdataset"].partition(":")[2] in said
