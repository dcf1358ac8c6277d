"""Conversion between forms: images unchanged, resumed after a kill, refused where it would mix."""

import json

import numpy as np
import pytest

from largebatch.data import SourceOptions, huggingface
from largebatch.data.openers import open_records
from largebatch.data.prepare import convert as module
from largebatch.data.prepare import forms as written
from largebatch.data.prepare.convert import Conversion, convert
from largebatch.data.prepare.verify import verify
from largebatch.errors import ConfigError, DataError
from scripts import prepare_imagenet
from tests.data import forms

QUIET = {"report": lambda line: None}
PAIRS = {
    split: [(image, label) for _, image, label in forms.photographs(split)]
    for split in forms.SPLITS
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    root = tmp_path_factory.mktemp("sources")
    return {name: forms.FORMS[name](root / name) for name in ("folder", "webdataset", "parquet")}


def stored(spec, split):
    records = open_records(spec, split, SourceOptions())
    images, labels = records.read(np.arange(len(records)))
    return list(zip(images, labels.tolist(), strict=True)), records.classes


@pytest.mark.parametrize("form", written.FORMS)
def test_every_form_holds_the_examples_in_their_order(sources, tmp_path, form):
    out = convert(Conversion(sources["parquet"], form, tmp_path / "out", shards=3), **QUIET)
    for split, pairs in PAIRS.items():
        assert stored(f"{form}:{out}", split) == (pairs, forms.CLASSES)
    verify(out, **QUIET)  # the checksums
    assert not (out / ".prepare").exists()


def test_converted_row_groups_are_small_enough_for_training(tmp_path, monkeypatch):
    image = forms.photographs("train")[0][1]
    monkeypatch.setattr(huggingface, "LARGEST_GROUP", 4 * (len(image) + 30_000))
    for split in forms.SPLITS:
        for number, name in enumerate(("bee", "cat") * 8):
            path = tmp_path / "from" / split / name / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(image + bytes([number]) * 30_000)  # of one length, none twice
    source = f"folder:{tmp_path / 'from'}"
    out = convert(Conversion(source, "parquet", tmp_path / "out", shards=1), **QUIET)
    assert len(open_records(f"parquet:{out}", "train", SourceOptions())) == 16


def test_the_script_converts_with_processes(sources, tmp_path, capsys):
    out = tmp_path / "out"
    flags = ["--from", sources["webdataset"], "--to", "tfrecord", "--out", str(out)]
    assert prepare_imagenet.main([*flags, "--processes=2", "--shards=4"]) == 0
    assert f"tfrecord:{out}" in capsys.readouterr().out
    assert stored(f"tfrecord:{out}", "train")[0] == PAIRS["train"]
    assert prepare_imagenet.main([*flags[:2], "--out", str(out)]) == 2  # without --to
    assert prepare_imagenet.main([*flags, "--shorter=8"]) == 2
    assert prepare_imagenet.main(["--verify", "--to=folder", f"--out={out}"]) == 2


@pytest.mark.parametrize("form", ["folder", "webdataset", "huggingface"])
def test_an_interrupted_conversion_continues(sources, tmp_path, monkeypatch, form):
    conversion = Conversion(sources["folder"], form, tmp_path / "out", shards=4)
    write, calls = module._write, []

    def interrupted(task):
        if len(calls) == 5:
            raise KeyboardInterrupt
        calls.append((task.split, task.shard))
        return write(task)

    monkeypatch.setattr(module, "_write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        convert(conversion, **QUIET)
    monkeypatch.setattr(
        module, "_write", lambda task: calls.append((task.split, task.shard)) or write(task)
    )
    out = convert(conversion, **QUIET)
    assert sorted(calls) == [(split, i) for split in ("train", "validation") for i in range(4)]
    for split, pairs in PAIRS.items():
        assert stored(f"{form}:{out}", split)[0] == pairs
    convert(conversion, **QUIET)  # complete: nothing is written
    assert len(calls) == 8
    whole = convert(Conversion(sources["folder"], form, tmp_path / "whole", shards=4), **QUIET)
    names = {path.relative_to(out) for path in out.rglob("*") if path.suffix != ".npz"}
    assert names == {path.relative_to(whole) for path in whole.rglob("*") if path.suffix != ".npz"}
    assert all(
        (out / n).read_bytes() == (whole / n).read_bytes() for n in names if (out / n).is_file()
    )


def test_what_would_mix_or_be_lost_is_refused(sources, tmp_path):
    out = tmp_path / "out"
    convert(Conversion(sources["folder"], "webdataset", out, shards=2), **QUIET)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("x")
    cases = {
        "source": (DataError, Conversion(sources["parquet"], "webdataset", out, shards=2)),
        "shards": (DataError, Conversion(sources["folder"], "webdataset", out, shards=3)),
        "form": (DataError, Conversion(sources["folder"], "tfrecord", out, shards=2)),
        "--out": (DataError, Conversion(sources["folder"], "tfrecord", tmp_path / "full")),
        "--from": (DataError, Conversion("digits", "tfrecord", tmp_path / "new")),
        "--shards": (
            ConfigError,
            Conversion(sources["folder"], "tfrecord", tmp_path / "new", shards=99),
        ),
    }
    for word, (error, conversion) in cases.items():
        with pytest.raises(error, match=word):
            convert(conversion, **QUIET)
    with pytest.raises(ConfigError, match="--to"):
        Conversion(sources["folder"], "zip", out)
    (out / "labels.txt").write_text("bee\n")
    with pytest.raises(DataError, match="classes"):
        convert(Conversion(sources["folder"], "webdataset", out, shards=2), **QUIET)
    with pytest.raises(DataError, match=r"labels\.txt"):
        verify(out, **QUIET)


def test_classes_that_the_new_form_or_the_source_lacks_are_named(tmp_path):
    source = forms.FORMS["tfrecord"](tmp_path / "from")
    unused = Conversion(source, "folder", tmp_path / "out", shards=2)
    (tmp_path / "from" / "labels.txt").write_text("\n".join((*forms.CLASSES, "fox")) + "\n")
    for _ in range(2):  # also where every image has been written
        with pytest.raises(DataError, match=r"class 4 \(fox\).*--to arrayrecord"):
            convert(unused, **QUIET)
    convert(Conversion(source, "arrayrecord", tmp_path / "other", shards=2), **QUIET)
    with pytest.raises(DataError, match=r"classes: expected 0 or 5"):
        convert(Conversion(source, "tfrecord", tmp_path / "third", classes=6), **QUIET)


@pytest.mark.parametrize(
    ("classes", "folders"),
    [
        (("bee", "cat"), ("bee", "cat")),
        (("cat", "bee"), ("0_cat", "1_bee")),  # the order of the labels is kept
        (("crane", "crane"), ("0_crane", "1_crane")),
        (("a/b", "tench, Tinca tinca"), ("0_a_b", "1_tench_Tinca_tinca")),
        ((".a", "b"), ("0__a", "1_b")),
        (("9", "10"), ("9", "10")),  # class folders named by numbers are read in their order
        (("10", "9"), ("0_10", "1_9")),
    ],
)
def test_folders_of_classes_keep_the_labels(classes, folders):
    assert written.folder_names(classes) == folders
    many = tuple("kind" for _ in range(1001))
    assert list(written.folder_names(many)) == sorted(written.folder_names(many))


def test_the_files_beside_the_shards_are_those_that_others_read(sources, tmp_path):
    out = convert(Conversion(sources["folder"], "huggingface", tmp_path / "h", shards=2), **QUIET)
    state = json.loads((out / "train" / "state.json").read_text())
    assert [file["filename"] for file in state["_data_files"]] == [
        "data-00000-of-00002.arrow",
        "data-00001-of-00002.arrow",
    ]
    out = convert(Conversion(sources["folder"], "webdataset", tmp_path / "w", shards=2), **QUIET)
    info = json.loads((out / "_info.json").read_text())["splits"]["validation"]
    assert info["filenames"] == [f"validation-0000{i}-of-00002.tar" for i in range(2)]
    assert (info["shard_lengths"], info["num_samples"]) == ([20, 20], 40)
