"""The same photographs are the same examples in every form, and damaged forms are refused."""

import errno
import io
import json
import os
import shutil
import sys
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from largebatch.data import (
    Augment,
    Order,
    Reading,
    SourceOptions,
    content,
    identity,
    open_dataset,
    train_microbatches,
)
from largebatch.data.source import open_source
from tests.data import forms, stores

OPTIONS = SourceOptions(image_size=16)


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """The specification of each form; not to be changed."""
    root = tmp_path_factory.mktemp("forms")
    return {
        name: write(root / name.replace(" ", "_"))
        for name, write in forms.FORMS.items()
        if name in forms.IN_PLACE
    }


@pytest.fixture(scope="module")
def expected(sets):
    """Three microbatches of training, across the end of an epoch, from `folder:`."""
    return batches(sets["folder"])


def batches(spec):
    source = open_dataset(spec, "train", OPTIONS)
    order = Order(seed=3, examples=len(source))
    made = train_microbatches(
        source,
        order,
        Augment(flip=True),
        start=100,
        stop=196,
        microbatch=32,
        rows=(0, 32),
        reading=Reading(threads=2),
    )
    return [(batch.ids, batch.images, batch.labels) for batch in made]


@pytest.mark.parametrize("form", forms.IN_PLACE)
def test_every_form_gives_the_examples_of_the_folder(sets, expected, form):
    for split in forms.SPLITS:
        records = open_source(sets[form], split, OPTIONS)
        stores.check_source(records, [(i, label) for _, i, label in forms.photographs(split)])
        assert records.classes == forms.CLASSES
    for ours, theirs in zip(batches(sets[form]), expected, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(one, other)


def test_parquet_names_the_command_that_converts_it(tmp_path):
    spec = forms.parquet(tmp_path / "set")
    said = stores.complaint(open_source, spec, "train", OPTIONS)
    assert f"prepare_imagenet.py --from '{spec}'" in said


def test_forms_and_splits_have_different_identities(sets):
    found = [
        identity(open_source(spec, split)) for name, spec in sets.items() for split in forms.SPLITS
    ]
    assert len(set(found)) == len(found)


def first(root, pattern):
    return sorted(root.rglob(pattern))[0]


def removed(pattern):
    return lambda root: first(root, pattern).unlink()


def cut(pattern, size=700):
    def damage(root):
        path = first(root, pattern)
        path.write_bytes(path.read_bytes()[:-size])

    return damage


def written(name, text):
    return lambda root: (root / name).write_text(text)


def replaced(pattern, by):
    """One shard takes the place of another."""
    return lambda root: shutil.copy(first(root, by), first(root, pattern))


def flipped(pattern, offset):
    def damage(root):
        path = first(root, pattern)
        data = bytearray(path.read_bytes())
        data[offset] ^= 1
        path.write_bytes(data)

    return damage


def edited(name, change):
    return lambda root: stores.edit(root / name, change)


def tar_of(**members):
    """Members in the place of the first tar; two underscores in a name are a dot."""

    def damage(root):
        with tarfile.open(first(root, "*train-0000.tar"), "w") as tar:
            for name, data in members.items():
                info = tarfile.TarInfo(name.replace("__", "."))
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))

    return damage


def stated(length):
    names = [f"pets-train-{i:04}.tar" for i in range(3)]
    split = {"filenames": names, "shard_lengths": [55, 55, length]}
    return written("_info.json", json.dumps({"splits": {"train": split}}))


def emptied(root):
    """A split whose files have no record."""
    for path in (root / "train").glob("*.arrow"):
        schema = forms._table([]).schema
        with pa.ipc.new_stream(str(path), schema):
            pass


# Form, damage, and words of the message.
DEFECTS = {
    "tfrecord lacks a shard": ("tfrecord", removed("train*"), "train.tfrecord-00000-of-00003"),
    "tfrecord cut off": ("tfrecord", cut("train*"), "train.tfrecord-00000-of-00003"),
    "tfrecord cut off in a header": ("tfrecord", lambda root: first(root, "train*").write_bytes(
        first(root, "train*").read_bytes() + bytes(5)), "train.tfrecord-00000-of-00003"),
    "tfrecord of another length": ("tfrecord", flipped("train*", 1), "at byte 0"),
    "tfrecord of other features": ("tfrecord", lambda root: forms.write_tfrecord(
        first(root, "train*"), [stores.example(b"1", 1, ("photo", "kind"))]), "'image'"),
    "tfrecord of unknown classes": ("tfrecord", removed("labels.txt"), "data.classes"),
    "tfds lacks a shard": ("tfds TFRecord", removed("*train*"), "train.tfrecord-00000-of-00003"),
    "tfds cut off": ("tfds TFRecord", cut("*train*"), "train.tfrecord-00000-of-00003"),
    "tfds of another count": (
        "tfds TFRecord", replaced("*train*", "*validation*"), "dataset_info.json says 55"
    ),
    "tar missing": ("webdataset", removed("*train-0001.tar"), "pets-train-0001.tar"),
    "tar cut off": ("webdataset", cut("*train-0000.tar", 10_500), "pets-train-0000.tar"),
    "tar with a damaged header": ("webdataset", flipped("*train-0001.tar", 3), "at byte 0"),
    "tar of another count": ("webdataset", stated(51), "pets-train-0002.tar", "51"),
    "tars without the last": (
        "webdataset",
        lambda root: (stated(50)(root), removed("*train-0002.tar")(root)),
        "pets-train-0002.tar",
    ),
    "tar with a word for a label": ("webdataset", tar_of(a__jpg=b"1", a__cls=b"tench"), "a.cls"),
    "tar with a label beyond int64": (
        "webdataset", tar_of(a__jpg=b"1", a__cls=b"9" * 20), "a.cls"
    ),
    **{
        f"tar with the label {value}": (
            "webdataset",
            tar_of(a__jpg=b"1", a__json=b'{"label": %s}' % value.encode()),
            "a.json",
        )
        for value in ("Infinity", "NaN", "3.7", "true", "null", "9" * 20)
    },
    "tar with dots in the names of its images": (
        "webdataset", tar_of(IMG__2020__jpg=b"1", IMG__2020__cls=b"1"), "'IMG.2020.jpg'"
    ),
    "tar with a dot in the name of one image": (
        "webdataset",
        tar_of(a__jpg=b"1", a__left__png=b"1", a__cls=b"1", b__c__jpg=b"1", b__c__json=b"{}"),
        "'b.c.jpg'",
    ),
    "tars of classes in Latin-1": (
        "webdataset",
        lambda root: (root / "labels.txt").write_bytes("abeille\nâne\n".encode("latin-1")),
        "labels.txt",
        "UTF-8",
    ),
    "tars of unknown classes": ("webdataset", removed("labels.txt"), "data.classes"),
    "arrow file missing": (
        "huggingface", removed("train/*00001*"), "train lacks data-00001-of-00003.arrow"
    ),
    "arrow file cut off": ("huggingface", cut("train/*.arrow"), "data-00000-of-00003.arrow"),
    "arrow file without its end": (
        "huggingface", cut("train/*.arrow", 8), "data-00000-of-00003.arrow"
    ),
    "huggingface without the split": (
        "huggingface",
        edited("dataset_dict.json", lambda value: value.update(splits=["validation"])),
        "validation",
    ),
    "huggingface of a column that is absent": (
        "huggingface",
        edited("train/dataset_info.json", lambda value: value.update(
            features={"photo": {"_type": "Image"}} | {"label": value["features"]["label"]}
        )),
        "'photo'",
    ),
    "huggingface without records": ("huggingface", emptied, "train", "no image"),
    "huggingface of unknown classes": (
        "huggingface", written("train/dataset_info.json", "{}"), "data.classes"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DEFECTS)
def test_a_damaged_set_is_refused_when_it_is_opened(sets, tmp_path, case):
    form, damage, *words = DEFECTS[case]
    root = tmp_path / "set"
    scheme, _, place = sets[form].partition(":")
    shutil.copytree(place, root)
    damage(root)
    said = stores.complaint(open_source, f"{scheme}:{root}", "train", OPTIONS)
    for word in words:
        assert word in said


@pytest.mark.parametrize("name", ["", "/*.tar", "/pets-train-{0000..0002}.tar"])
def test_a_directory_that_cannot_be_listed_is_named(sets, monkeypatch, name):
    def refuse(path):
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(os, "scandir", refuse)
    monkeypatch.setattr(os, "listdir", refuse)
    said = stores.complaint(open_source, sets["webdataset"] + name, "train", OPTIONS)
    assert said.startswith(sets["webdataset"].partition(":")[2])
    assert "Permission denied" in said


def test_a_missing_pyarrow_is_named(sets, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    said = stores.complaint(open_source, sets["huggingface"], "train", OPTIONS)
    assert ".[huggingface]" in said


@pytest.mark.parametrize(
    ("pattern", "train", "validation"),
    [
        ("*.tar", 3, 2),
        ("pets-{train,validation}-{0000..0002}.tar", 3, 2),  # one split may be shorter
        ("pets-{train-{0000..0002},validation-{0000..0001}}.tar", 3, 2),
        ("pets-{train-{0000..0003},validation-{0000..0001}}.tar", None, 2),
        ("pets-{train,validation}-{0000..0003}.tar", None, None),
        ("pets-[uvw]*.tar", None, 2),
        ("pets-test-*.tar", None, None),
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
            images = [image for _, image, _ in forms.photographs(split)]
            assert records.read(np.arange(len(records)))[0] == images


@pytest.mark.parametrize("form", ["tfrecord", "webdataset", "tfds TFRecord", "arrayrecord"])
def test_the_same_shards_have_the_same_content_in_another_place(form, tmp_path, monkeypatch):
    """Other labels or images of the same size, in either split, are other data."""

    def found(name):
        spec = forms.FORMS[form](tmp_path / name)
        return content(*(open_source(spec, split) for split in forms.SPLITS))

    own, photographs = found("own"), forms.photographs
    assert own
    assert found("copy") == own
    for changed in forms.SPLITS:
        for name in ("image", "label"):

            def other(split, name=name, changed=changed):
                def last(image, label):
                    if split != changed:
                        return image, label
                    if name == "label":
                        return image, (label + 1) % len(forms.CLASSES)
                    return image[:-1] + bytes([image[-1] ^ 1]), label

                return [(key, *last(image, label)) for key, image, label in photographs(split)]

            monkeypatch.setattr(forms, "photographs", other)
            assert found(f"{changed} {name}") not in ("", own)


def tar_with(path, members):
    """A tar of (name, content) or, for a link, (name, "=" + name of its target)."""
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.type, info.linkname = tarfile.LNKTYPE, content[1:]
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))


def tars(root, members):
    root.mkdir()
    for split in forms.SPLITS:
        tar_with(root / f"{split}-0000.tar", members)
    (root / "labels.txt").write_text("a\nb\n")
    return f"webdataset:{root}"


def test_hard_links_in_a_tar_are_read_and_hidden_members_are_left_out(tmp_path):
    images = [stores.image_of(i) for i in range(2)]
    members = [
        ("._0.jpg", b"resource fork"),
        ("0.jpg", images[0]),
        ("0.cls", b"0"),
        ("1.jpg", images[1]),
        ("1.cls", b"1"),
        ("x/2.jpg", "=0.jpg"),
        ("x/2.cls", "=1.cls"),
    ]
    source = open_source(tars(tmp_path / "set", members), "train")
    found, labels = source.read(np.arange(3))
    assert found == [images[0], images[1], images[0]]
    assert labels.tolist() == [0, 1, 1]


def test_members_of_a_sample_that_are_apart_are_named(tmp_path):
    members = [("0.jpg", b"1"), ("1.jpg", b"2"), ("0.cls", b"0"), ("1.cls", b"1")]
    said = stores.complaint(open_source, tars(tmp_path / "set", members), "train")
    assert "--sort=name" in said


@pytest.mark.parametrize("form", ["tfrecord", "webdataset", "huggingface"])
@pytest.mark.parametrize("change", [-1, 1])
def test_labels_of_no_class_are_refused_when_a_dataset_is_opened(
    form, change, tmp_path, monkeypatch
):
    photographs = forms.photographs

    def shifted(split):
        return [(name, image, label + change) for name, image, label in photographs(split)]

    monkeypatch.setattr(forms, "photographs", shifted)
    said = stores.complaint(open_source, forms.FORMS[form](tmp_path / "set"), "train", OPTIONS)
    assert f"label {-1 if change < 0 else len(forms.CLASSES)}" in said
    assert "record" in said


def test_shards_may_lie_in_folders_of_their_splits(sets, tmp_path):
    for form, ending in (("tfrecord", "*.tfrecord*"), ("webdataset", "*.tar")):
        scheme, _, place = sets[form].partition(":")
        root = tmp_path / form
        root.mkdir()
        for split, folder in (("train", "train"), ("validation", "val")):
            (root / folder).mkdir()
            for number, path in enumerate(sorted(Path(place).glob(f"*{split}{ending}"))):
                suffix = "tfrecord" if form == "tfrecord" else "tar"
                shutil.copy(path, root / folder / f"{number:04}.{suffix}")
        shutil.copy(Path(place, "labels.txt"), root)
        for split in forms.SPLITS:
            found = open_source(f"{scheme}:{root}", split, OPTIONS)
            expected = [(image, label) for _, image, label in forms.photographs(split)]
            stores.check_source(found, expected)


@pytest.mark.parametrize("how", ["overwritten", "replaced"])
def test_a_shard_that_changes_after_opening_is_named_and_never_read(sets, tmp_path, how):
    scheme, _, place = sets["webdataset"].partition(":")
    root = tmp_path / "set"
    shutil.copytree(place, root)
    open_source(f"{scheme}:{root}", "train", OPTIONS)  # writes the index
    source = open_source(f"{scheme}:{root}", "train", OPTIONS)
    path = first(root, "*train-0000.tar")
    other = first(root, "*train-0001.tar").read_bytes()
    if how == "replaced":
        (root / "new").write_bytes(other)
        (root / "new").replace(path)
    else:
        source.read(np.arange(3))
        path.write_bytes(other)
    said = stores.complaint(source.read, np.arange(3))
    assert said.startswith(str(path))


def test_joined_tars_are_refused(tmp_path):
    members = [("0.jpg", b"1"), ("0.cls", b"0")]
    spec = tars(tmp_path / "set", members)
    path = tmp_path / "set" / "train-0000.tar"
    path.write_bytes(path.read_bytes() * 2)
    assert "--concatenate" in stores.complaint(open_source, spec, "train")


def test_contiguous_files_of_a_tar_are_files(tmp_path):
    spec = tars(tmp_path / "set", [])
    with tarfile.open(tmp_path / "set" / "train-0000.tar", "w") as tar:
        for name, content in (("0.jpg", b"image"), ("0.cls", b"1")):
            info = tarfile.TarInfo(name)
            info.type, info.size = tarfile.CONTTYPE, len(content)
            tar.addfile(info, io.BytesIO(content))
    assert open_source(spec, "train").read(np.arange(1))[0] == [b"image"]
