import hashlib
import io
import json
import shutil
import tempfile
from collections import namedtuple

import numpy as np
import pytest
from PIL import Image

from largebatch.data import images, open_source
from largebatch.data.prepare import names, stored, tars
from largebatch.data.prepare import run as preparation
from largebatch.data.prepare.plan import Store
from largebatch.data.prepare.run import Options, prepare
from largebatch.data.prepare.verify import verify
from largebatch.data.sources import SourceOptions
from largebatch.errors import ConfigError, DataError
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


def test_no_temporary_folder_is_left(tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    made = go(tmp_path / "out", fakes.write_tars(tmp_path / "tars"))
    assert (made / "dataset_info.json").is_file()
    assert list((tmp_path / "temporary").iterdir()) == []
    assert not list(made.glob("*tfds"))
    assert tempfile.gettempdir() == str(tmp_path / "temporary")


def test_tfds_knows_classes_and_decodes(tmp_path):
    import tensorflow_datasets as tfds

    folder = go(tmp_path / "out", fakes.write_tars(tmp_path / "tars"))
    builder = tfds.builder_from_directory(folder)
    assert builder.info.features["label"].names == list(names.classes())
    assert builder.info.splits["train"].num_examples == len(fakes.train())
    for one in builder.as_data_source(split="validation"):
        expected = images.decode(fakes.validation()[one["file_name"].decode()])
        np.testing.assert_array_equal(one["image"], expected)


def test_folders_give_the_same_files_as_tars(tmp_path):
    made = fakes.contents(go(tmp_path / "a", fakes.write_tars(tmp_path / "tars"), shards=3))
    for flat in (True, False):
        out, folders = tmp_path / f"out{flat}", fakes.write_folders(tmp_path / f"{flat}", flat=flat)
        assert made == fakes.contents(go(out, None, folders=folders, shards=3))


def test_class_folders_may_mix_both_kinds_of_names(tmp_path):
    folders = fakes.write_folders(tmp_path / "folders", flat=False)
    image = next((folders / "val").rglob("*.JPEG"))
    target = folders / "train" / image.parent.name / image.name
    target.parent.mkdir(exist_ok=True)
    image.rename(target)
    go(tmp_path / "out", None, folders=folders)
    found = {name: label for name, label, _ in read(tmp_path / "out", "train")}
    assert names.classes()[found[image.name]] == image.parent.name


@pytest.mark.multiprocess
def test_two_processes_write_the_same_files_as_one(tmp_path):
    source = fakes.write_tars(tmp_path / "tars")
    one, two = (
        fakes.contents(go(tmp_path / f"{count}", source, shards=5, processes=count))
        for count in (1, 2)
    )
    assert one == two


def test_nothing_of_its_own_is_left(tmp_path):
    folder = go(tmp_path / "out", fakes.write_tars(tmp_path / "tars"), shards=2)
    shards = [
        f"imagenet2012-{split}.array_record-{i:05d}-of-00002"
        for split in names.SPLITS
        for i in (0, 1)
    ]
    beside = ["dataset_info.json", "features.json", "label.labels.txt", "manifest.json"]
    assert (
        sorted(fakes.contents(tmp_path / "out" / "imagenet2012" / "5.1.0"))
        == beside[:2] + sorted(shards) + beside[2:]
    )
    again = fakes.contents(folder)
    go(tmp_path / "out", tmp_path / "tars", shards=2)
    assert fakes.contents(folder) == again


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({}, {"store": Store(shorter=24, quality=90)}, "store 'JPEG as is' there, 'JPEG, shorter"),
        (
            {"store": Store(shorter=24, quality=90)},
            {"store": Store(shorter=24, quality=80)},
            "quality 90.* there, .*quality 80.* asked for",
        ),
        ({}, {"shards": 3}, "train shards '1' there, '3' asked for"),
        ({"shards": 2}, {"source": 6}, r"train images '30 .*' there, '6 .*' asked for"),
    ],
)
def test_other_options_are_refused_and_named(tmp_path, first, second, message):
    source = fakes.write_tars(tmp_path / "tars")
    folder = go(tmp_path / "out", source, **first)
    before = {n: d for n, d in fakes.contents(folder).items() if not n.startswith(".prepare")}
    if count := second.pop("source", 0):
        fakes.write_tars(source, dict(list(fakes.train().items())[:count]))
        second = first
    with pytest.raises(DataError, match=message):
        go(tmp_path / "out", source, **second)
    after = {n: d for n, d in fakes.contents(folder).items() if not n.startswith(".prepare")}
    assert after == before


def test_less_than_imagenet_must_be_asked_for(tmp_path):
    source = fakes.write_tars(tmp_path / "tars")
    with pytest.raises(DataError, match=r"holds 30 train images, not 1,281,167.*--allow-partial"):
        go(tmp_path / "out", source, partial=False)
    (source / names.TARS["train"]).unlink()
    with pytest.raises(DataError, match=r"has no ILSVRC2012_img_train.tar; .* --allow-partial"):
        go(tmp_path / "out", source, partial=False)
    go(tmp_path / "out", source)
    assert len(read(tmp_path / "out", "validation")) == 10
    (source / names.TARS["validation"]).unlink()
    with pytest.raises(DataError, match=r"no ILSVRC2012_img_train.tar and no .*_val.tar; put it"):
        go(tmp_path / "out", source)


@pytest.mark.parametrize(
    "store", [Store(), Store("decoded", size=16), Store(shorter=24, quality=90)]
)
def test_corrupt_images_are_all_named_and_the_rest_goes_on_once_they_are_replaced(tmp_path, store):
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
    for path, data in zip(broken, (good[0][:-40], b"no picture", good[2][:30]), strict=True):
        path.write_bytes(data)
    options = {"folders": folders, "store": store, "shards": 4}
    with pytest.raises(DataError, match="3 corrupt images") as caught:
        go(tmp_path / "out", None, **options)
    for path in broken:
        assert str(path) in str(caught.value)
    work = next((tmp_path / "out").rglob(".prepare"))
    assert len((work / "corrupt.txt").read_text().splitlines()) == 3
    with pytest.raises(DataError, match="unfinished"):
        verify(tmp_path / "out", say=quiet)
    for path, data in broken.items():
        path.write_bytes(data)
    lines = []
    prepare(Options(out=tmp_path / "out", partial=True, **options), lines.append)
    assert any("shards are there" in line for line in lines)
    repaired = fakes.contents(tmp_path / "out")
    go(tmp_path / "whole", None, **options)
    assert repaired == fakes.contents(tmp_path / "whole")


def test_an_empty_file_is_named(tmp_path):
    files = {**fakes.train(), "n01440764_12.JPEG": b""}
    with pytest.raises(DataError, match=r"ILSVRC2012_img_train.tar: n01440764_12.JPEG is empty"):
        go(tmp_path / "out", fakes.write_tars(tmp_path / "tars", files))


def test_a_full_decode_finds_what_the_ends_do_not(tmp_path):
    data = bytearray(fakes.photo(7))
    data[data.index(b"\xff\xda") + 5] ^= 64  # the scan is of a component that there is not
    files = {"n01440764_1.JPEG": bytes(data), "n01440764_2.JPEG": fakes.photo(8)}
    source = fakes.write_tars(tmp_path / "tars", files)
    go(tmp_path / "ends", source)
    with pytest.raises(DataError, match=r"1 corrupt images: n01440764_1.JPEG in "):
        go(tmp_path / "full", source, check="full")
    with pytest.raises(DataError, match=r"1 problems: imagenet2012-train.*: n01440764_1.JPEG: "):
        verify(tmp_path / "ends", say=quiet)
    verify(tmp_path / "ends", check="ends", say=quiet)


def test_too_little_space_stops_before_anything_is_written(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(preparation.shutil, "disk_usage", lambda path: usage(0, 0, 100_000))
    source = fakes.write_tars(tmp_path / "tars")
    with pytest.raises(DataError, match=r"0\.00 GiB free, 0\.00 are needed; free some"):
        go(tmp_path / "out", source)
    assert not list((tmp_path / "out").rglob("imagenet2012-*"))
    monkeypatch.undo()
    # Nothing is there, so other options are as good as the first.
    go(tmp_path / "out", source, shards=2)


@pytest.mark.parametrize(
    "store", [Store(), Store(shorter=24, quality=90), Store("decoded", size=64)]
)
def test_the_disk_need_is_what_is_used_or_a_little_more(tmp_path, store):
    lines = []
    source = fakes.write_tars(
        tmp_path / "tars", {f"n01440764_{i}.JPEG": fakes.photo(i, 300, 400) for i in range(40)}
    )
    options = Options(out=tmp_path / "out", tars=source, partial=True, store=store)
    splits = preparation._find(options, preparation.Ledger(tmp_path / "ledger"))
    need = sum(
        preparation.plan.disk_bytes(store, split, ratio=preparation._ratio(split, store))
        for split in splits
    )
    folder = prepare(options, lines.append)
    shards = [path for path in folder.iterdir() if "-of-" in path.name]
    used = sum(path.stat().st_size for path in shards)
    # ArrayRecord fills blocks of 64 KiB; the need allows for two in each shard.
    assert used <= need <= used + (3 << 16) * len(splits)


def test_md5_is_compared_when_asked_for(tmp_path, monkeypatch):
    source = fakes.write_tars(tmp_path / "tars")
    with pytest.raises(DataError, match=f"has MD5 .*, not {names.MD5['train']}; get it again"):
        go(tmp_path / "out", source, md5=True)
    sums = {
        split: hashlib.md5((source / name).read_bytes()).hexdigest()
        for split, name in names.TARS.items()
    }
    assert sums == {split: tars.md5(source / name) for split, name in names.TARS.items()}
    monkeypatch.setattr(names, "MD5", sums)
    folder = go(tmp_path / "out", source, md5=True)
    assert json.loads((folder / "manifest.json").read_text())["md5_of_tars_checked"] is True


def test_one_tar_is_enough_for_md5(tmp_path, monkeypatch):
    source = fakes.write_tars(tmp_path / "tars")
    (source / names.TARS["train"]).unlink()
    with pytest.raises(DataError, match=r"has no ILSVRC2012_img_train.tar; .* --allow-partial"):
        go(tmp_path / "out", source, md5=True, partial=False)
    with pytest.raises(DataError, match=f"_val.tar has MD5 .*, not {names.MD5['validation']}"):
        go(tmp_path / "out", source, md5=True)
    sums = {"validation": tars.md5(source / names.TARS["validation"])}
    monkeypatch.setattr(names, "MD5", sums)
    go(tmp_path / "out", source, md5=True)
    assert len(read(tmp_path / "out", "validation")) == 10


@pytest.mark.parametrize("store", [Store(), Store("decoded", size=16)])
def test_a_full_check_is_made_up_for_where_less_was_checked(tmp_path, monkeypatch, store):
    source = fakes.write_tars(tmp_path / "tars")
    asked = []
    jpeg = stored.jpeg
    monkeypatch.setattr(stored, "jpeg", lambda *args: asked.append(args[-1]) or jpeg(*args))
    # Enough for nothing new: what is written again takes the place of what is there.
    usage = namedtuple("usage", "total used free")

    def again(check):
        asked.clear()
        lines = []
        with monkeypatch.context() as patch:
            patch.setattr(preparation.shutil, "disk_usage", lambda path: usage(0, 0, 1 << 20))
            prepare(
                Options(tmp_path / "out", source, store=store, check=check, partial=True, shards=3),
                lines.append,
            )
        return lines[2:], list(asked)

    folder = go(tmp_path / "out", source, store=store, shards=3)
    complete = [f"{folder} is complete; --verify reads it again"]
    if store.kind == "jpeg":
        lines, how = again("full")
        assert lines[0] == "6 shards were checked less than --check full: written again"
        assert how == ["full"] * 40
        whole = go(tmp_path / "whole", source, store=store, shards=3, check="full")
        assert fakes.contents(folder) == fakes.contents(whole)
    for check in stored.CHECKS:  # pixels are of decoded images, whatever was asked for
        assert again(check) == (complete, [])


def test_a_full_check_names_what_the_ends_did_not_show(tmp_path):
    good = fakes.photo(7)
    data = bytearray(good)
    data[data.index(b"\xff\xda") + 5] ^= 64
    other = {"n01440764_2.JPEG": fakes.photo(8)}
    source = fakes.write_tars(tmp_path / "tars", {"n01440764_1.JPEG": bytes(data)} | other)
    go(tmp_path / "out", source, shards=2)
    for _ in range(2):
        with pytest.raises(DataError, match=r"1 corrupt images: n01440764_1.JPEG in "):
            go(tmp_path / "out", source, shards=2, check="full")
    fakes.write_tars(source, {"n01440764_1.JPEG": good} | other)
    go(tmp_path / "out", source, shards=2, check="full")
    verify(tmp_path / "out", say=quiet)
    assert {name: data for name, _, data in read(tmp_path / "out", "train")} == {
        "n01440764_1.JPEG": good
    } | other


def test_two_at_once_are_refused(tmp_path):
    source = fakes.write_tars(tmp_path / "tars")
    options = Options(out=tmp_path / "out", tars=source, partial=True)

    def interfere(line):
        with pytest.raises(DataError, match="another process is preparing"):
            go(tmp_path / "out", source)

    prepare(options, interfere)


def test_re_encoded_images_are_read_as_any_other(tmp_path):
    store = Store(shorter=24, quality=90)
    folder = go(tmp_path / "out", fakes.write_tars(tmp_path / "tars"), store=store)
    for name, _, data in read(tmp_path / "out", "train"):
        assert data == stored.jpeg(name, fakes.train()[name], store, "full")
        assert min(Image.open(io.BytesIO(data)).size) == 24
    described = json.loads((folder / "dataset_info.json").read_text())["description"]
    assert described.startswith("Re-encoded: JPEG, shorter side at most 24, quality 90 4:2:0")


def test_a_decoded_store_is_read_by_its_source(tmp_path):
    go(
        tmp_path / "out",
        fakes.write_tars(tmp_path / "tars"),
        store=Store("decoded", size=16),
        shards=3,
    )
    go(tmp_path / "jpeg", tmp_path / "tars")
    # Evaluation at the stored size of whole squares is the stored picture itself.
    options = SourceOptions(image_size=16, evaluation_crop=1.0)
    source = open_source(f"decoded:{tmp_path / 'out'}", "validation", options)
    assert source.classes == names.classes()
    _, labels = source.read(np.arange(len(source)))
    order = read(tmp_path / "jpeg", "validation")
    assert labels.tolist() == [label for _, label, _ in order]
    pixels = np.concatenate(
        [np.load(path) for path in sorted((tmp_path / "out").glob("validation-images-*"))]
    )
    sizes = np.concatenate(
        [np.load(path) for path in sorted((tmp_path / "out").glob("validation-sizes-*"))]
    )
    for (name, _, data), small, size in zip(order, pixels, sizes, strict=True):
        np.testing.assert_array_equal(small, stored.decoded(data, 16), err_msg=name)
        assert tuple(size) == images.size_of(data)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "one of --tars and --folders"),
        ({"tars": 1, "folders": 1}, "one of --tars and --folders"),
        ({"folders": 1, "md5": True}, "--md5 is for --tars"),
        ({"tars": 1, "processes": 0}, "--processes is at least 1"),
    ],
)
def test_options_that_make_no_sense_are_refused(tmp_path, options, message):
    with pytest.raises(ConfigError, match=message):
        Options(
            out=tmp_path,
            **{k: tmp_path if v == 1 and k != "md5" else v for k, v in options.items()},
        )


def test_a_folder_with_anything_else_in_it_is_refused(tmp_path):
    for extra, message in (
        ("train/n01440764/notes.txt", "unexpected name 'notes.txt'"),
        ("train/n01440764/n02105855_1.JPEG", "is of class n02105855, not n01440764"),
        ("train/notes/n01440764_1.JPEG", "'notes' is none of the 1,000 classes"),
        ("train/n01440764/n01440764_99.JPEG/x", "is no file"),
        ("val/ILSVRC2012_val_1.JPEG", "unexpected name 'ILSVRC2012_val_1.JPEG'"),
    ):
        folders = fakes.write_folders(tmp_path / "folders")
        (folders / extra).parent.mkdir(parents=True, exist_ok=True)
        (folders / extra).write_bytes(fakes.photo(0))
        with pytest.raises(DataError, match=message):
            go(tmp_path / "out", None, folders=folders)
        shutil.rmtree(folders)
