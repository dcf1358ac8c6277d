import hashlib
import json
import tempfile
from collections import namedtuple

import pytest

from largebatch.data.prepare import names
from largebatch.data.prepare import run as preparation
from largebatch.data.prepare.plan import Store
from largebatch.data.prepare.run import Options, prepare
from largebatch.data.prepare.verify import verify
from largebatch.errors import DataError
from tests.data.prepare import fakes

REPAIRED = (fakes.PNG, fakes.CMYK)


def quiet(line):
    pass


def go(out, source, **options):
    options = {"partial": True, "tars": source} | options
    return prepare(Options(out=out, **options), quiet)


def read(out, split):
    """What TFDS reads: (file name, label, bytes), in its order."""
    import tensorflow_datasets as tfds

    decoders = {"image": tfds.decode.SkipDecoding()}
    found = tfds.data_source("imagenet2012", data_dir=out, split=split, decoders=decoders)
    return [(one["file_name"].decode(), one["label"], one["image"]) for one in found]


@pytest.mark.parametrize("shards", [0, 7])
def test_tfds_reads_the_images_byte_for_byte(tmp_path, shards):
    go(tmp_path / "out", fakes.write_tars(tmp_path / "tars"), shards=shards)
    trained = read(tmp_path / "out", "train")
    assert {name: data for name, _, data in trained if name not in REPAIRED} == {
        name: data for name, data in fakes.train().items() if name not in REPAIRED
    }
    assert [label for _, label, _ in trained] == [fakes.label(name) for name, _, _ in trained]
    assert len(trained) == len(fakes.train())
    evaluated = read(tmp_path / "out", "validation")
    assert {name: data for name, _, data in evaluated} == fakes.validation()
    own = [names.image_label(name, "") for name, _, _ in evaluated]
    assert [label for _, label, _ in evaluated] == own
    for split, found in (("train", trained), ("validation", evaluated)):
        keys = [hashlib.md5((split + name).encode()).digest() for name, _, _ in found]
        assert keys == sorted(keys)


def test_only_the_dataset_is_left_and_the_same_command_changes_nothing(tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    folder = go(tmp_path / "out", fakes.write_tars(tmp_path / "tars"), shards=2)
    assert list((tmp_path / "temporary").iterdir()) == []
    made = fakes.contents(folder)
    shards = [f"{split}.array_record-0000{i}-of-00002" for split in names.SPLITS for i in (0, 1)]
    beside = ["dataset_info.json", "features.json", "label.labels.txt", "manifest.json"]
    assert sorted(made) == sorted([*beside, *(f"imagenet2012-{name}" for name in shards)])
    go(tmp_path / "out", tmp_path / "tars", shards=2)
    assert fakes.contents(folder) == made


@pytest.mark.multiprocess
def test_tars_and_folders_and_any_number_of_processes_give_the_same_files(tmp_path):
    made = fakes.contents(go(tmp_path / "a", fakes.write_tars(tmp_path / "tars"), shards=3))
    assert made == fakes.contents(go(tmp_path / "b", tmp_path / "tars", shards=3, processes=2))
    for flat in (True, False):
        out, folders = tmp_path / f"out{flat}", fakes.write_folders(tmp_path / f"{flat}", flat=flat)
        assert made == fakes.contents(go(out, None, folders=folders, shards=3))


def test_another_preparation_in_the_directory_is_refused(tmp_path):
    source = fakes.write_tars(tmp_path / "tars")
    shrunk = Store(shorter=24, quality=90)
    folder = go(tmp_path / "out", source, store=shrunk, shards=2)
    before = fakes.contents(folder)
    for options, word in (
        ({"shards": 2}, "store"),
        ({"store": Store(shorter=24, quality=80), "shards": 2}, "store"),
        ({"store": shrunk, "shards": 3}, "train shards"),
    ):
        with pytest.raises(DataError, match=word):
            go(tmp_path / "out", source, **options)
    fakes.write_tars(source, dict(list(fakes.train().items())[:6]))
    with pytest.raises(DataError, match="train images"):
        go(tmp_path / "out", source, store=shrunk, shards=2)
    after = fakes.contents(folder)
    assert {name: after[name] for name in before} == before


def test_less_than_imagenet_needs_allow_partial(tmp_path):
    source = fakes.write_tars(tmp_path / "tars")
    with pytest.raises(DataError, match="--allow-partial"):
        go(tmp_path / "out", source, partial=False)
    (source / names.TARS["train"]).unlink()
    with pytest.raises(DataError, match=r"_img_train\.tar; .*--allow-partial"):
        go(tmp_path / "out", source, partial=False)
    go(tmp_path / "out", source)
    assert len(read(tmp_path / "out", "validation")) == 10
    (source / names.TARS["validation"]).unlink()
    with pytest.raises(DataError, match=r"_img_train\.tar and .*_val\.tar"):
        go(tmp_path / "out", source)


@pytest.mark.parametrize("store", [Store(), Store(shorter=24, quality=90)])
def test_corrupt_images_are_all_named_and_written_after_they_are_replaced(tmp_path, store):
    folders = fakes.write_folders(tmp_path / "folders")
    broken = {
        path: path.read_bytes()
        for path in [
            folders / "train" / "n01440764" / "n01440764_12.JPEG",
            folders / "train" / "n02105855" / "n02105855_13.JPEG",
            folders / "val" / "ILSVRC2012_val_00000004.JPEG",
        ]
    }
    good = list(broken.values())
    for path, data in zip(broken, (good[0][:-40], b"not an image", good[2][:30]), strict=True):
        path.write_bytes(data)
    options = {"folders": folders, "store": store, "shards": 4}
    with pytest.raises(DataError, match="3 corrupt images") as caught:
        go(tmp_path / "out", None, **options)
    for path in broken:
        assert str(path) in str(caught.value)
    work = next((tmp_path / "out").rglob(".prepare"))
    assert len((work / "corrupt.txt").read_text().splitlines()) == 3
    with pytest.raises(DataError, match=r"manifest\.json"):
        verify(tmp_path / "out", report=quiet)
    for path, data in broken.items():
        path.write_bytes(data)
    go(tmp_path / "out", None, **options)
    repaired = fakes.contents(tmp_path / "out")
    go(tmp_path / "whole", None, **options)
    assert repaired == fakes.contents(tmp_path / "whole")


def test_too_little_space_stops_before_anything_is_written(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(preparation.shutil, "disk_usage", lambda path: usage(0, 0, 100_000))
    source = fakes.write_tars(tmp_path / "tars")
    with pytest.raises(DataError, match=str(tmp_path / "out")):
        go(tmp_path / "out", source)
    assert not list((tmp_path / "out").rglob("imagenet2012-*"))
    monkeypatch.undo()
    # No shard exists, so other options are possible.
    go(tmp_path / "out", source, shards=2)


def test_md5_is_compared_when_asked_for(tmp_path, monkeypatch):
    source = fakes.write_tars(tmp_path / "tars")
    with pytest.raises(DataError, match=names.MD5["train"]):
        go(tmp_path / "out", source, md5=True)
    sums = {
        split: hashlib.md5((source / name).read_bytes()).hexdigest()
        for split, name in names.TARS.items()
    }
    monkeypatch.setattr(names, "MD5", sums)
    folder = go(tmp_path / "out", source, md5=True)
    assert json.loads((folder / "manifest.json").read_text())["md5_of_tars_checked"] is True


def test_a_full_check_names_damage_within_an_image(tmp_path):
    good = fakes.photo(7)
    data = bytearray(good)
    data[data.index(b"\xff\xda") + 5] ^= 64  # names a component that does not exist
    other = {"n01440764_2.JPEG": fakes.photo(8)}
    source = fakes.write_tars(tmp_path / "tars", {"n01440764_1.JPEG": bytes(data)} | other)
    go(tmp_path / "out", source, shards=2)
    verify(tmp_path / "out", check="ends", report=quiet)
    with pytest.raises(DataError, match=r"n01440764_1\.JPEG"):
        verify(tmp_path / "out", report=quiet)
    for _ in range(2):
        with pytest.raises(DataError, match=r"1 corrupt images: n01440764_1\.JPEG"):
            go(tmp_path / "out", source, shards=2, check="full")
    fakes.write_tars(source, {"n01440764_1.JPEG": good} | other)
    go(tmp_path / "out", source, shards=2, check="full")
    verify(tmp_path / "out", report=quiet)
    assert {name: data for name, _, data in read(tmp_path / "out", "train")} == {
        "n01440764_1.JPEG": good
    } | other


def test_two_at_once_are_refused(tmp_path):
    source = fakes.write_tars(tmp_path / "tars")
    options = Options(out=tmp_path / "out", tars=source, partial=True)

    def interfere(line):
        with pytest.raises(DataError, match=str(tmp_path / "out")):
            go(tmp_path / "out", source)

    prepare(options, interfere)
