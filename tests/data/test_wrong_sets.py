"""Wrong, incomplete and damaged datasets are refused when they are opened."""

import io
import shutil
import tarfile
from pathlib import Path

import pyarrow as pa
import pytest

from largebatch.config.facts import KNOWN_SETS, KnownSet
from largebatch.data import SourceOptions, open_dataset, open_source
from largebatch.data.open import facts_of
from tests.data import forms, stores

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """A directory for each form; not to be changed."""
    root = tmp_path_factory.mktemp("sets")
    for name in forms.IN_PLACE:
        forms.FORMS[name](root / name)
    return root


def first(root, pattern):
    return sorted(root.rglob(pattern))[0]


def removed(pattern):
    def damage(root):
        for path in sorted(root.glob(pattern)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return damage


def changed(pattern, change):
    """Other bytes in the first of the files."""

    def damage(root):
        path = first(root, pattern)
        path.write_bytes(change(path.read_bytes()))

    return damage


def flipped(offset):
    return lambda data: data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :]


def copied(pattern, to):
    """One file takes the place of another, or a new one."""
    return lambda root: shutil.copy(first(root, pattern), next(root.rglob(to), root / to))


def written(name, text):
    return lambda root: (root / name).write_bytes(text)


def edited(name, change):
    return lambda root: stores.edit(root / name, change)


def features(change):
    """Edit the features in TFDS's metadata."""
    return edited(f"{PETS}/features.json", lambda x: change(x["featuresDict"]["features"]))


def tar_of(**members):
    """Members in the place of the first tar; two underscores in a name are a dot."""

    def damage(root):
        with tarfile.open(first(root, "*train-0000.tar"), "w") as tar:
            for name, data in members.items():
                info = tarfile.TarInfo(name.replace("__", "."))
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))

    return damage


def emptied(root):
    """A split whose files have no record."""
    for path in (root / "train").glob("*.arrow"):
        with pa.ipc.new_stream(str(path), forms._table([]).schema):
            pass


def nested(root):
    """The class folders of each split lie in one further folder."""
    for split in ("train", "validation"):
        (root / split).rename(root / "inner")
        (root / split).mkdir()
        (root / "inner").rename(root / split / "images")


def as_kaggle(root):
    """Validation images without class folders."""
    shutil.rmtree(root / "validation")
    (root / "val").mkdir()
    (root / "val" / "ILSVRC2012_val_00000001.JPEG").write_bytes(b"1")


def floats(named):
    named["image"]["image"].update(dtype="float32", shape={"dimensions": ["-1", "-1", "1"]})


def two_images(named):
    named["photo"] = named["thumbnail"] = named.pop("image")


PETS = "pets/1.0.0"
INFO = f"{PETS}/dataset_info.json"
TFDS = ("tfds ArrayRecord", "tfds:pets")
TFRECORD = ("tfrecord", "tfrecord:{root}")
RECORDS = ("arrayrecord", "arrayrecord:{root}")
FOLDER = ("folder", "folder:{root}")
TARS = ("webdataset", "webdataset:{root}")
ARROW = ("huggingface", "huggingface:{root}")
ABSENT = {"photo": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": ["a"]}}

# Form and specification, the damage, the options, and names and values in the message.
TABLE = {
    "folder without a path": (("folder", "folder"), None, {}, "folder:PATH"),
    "folder absent": (("folder", "folder:{root}/gone"), None, {}, "{root}/gone"),
    "folder that is a file": (
        ("folder", "folder:{root}/set.tgz"), written("set.tgz", b""), {}, "a file"
    ),
    "folder one level too low": (
        ("folder", "folder:{root}/train"), None, {}, "train/CLASS"
    ),
    "folder without images": (FOLDER, removed("train/bee/*"), {}, "1 of 4", "bee"),
    "folder of other classes": (FOLDER, removed("validation/bee"), {}, "train", " bee;"),
    "folder of classes in a folder": (FOLDER, nested, {}, "folder:{root}/train/images", "bee, cat"),
    "folder as Kaggle has it": (FOLDER, as_kaggle, {}, "prepare_imagenet.py --images {root} "),
    "folder with two validation splits": (
        FOLDER, lambda root: shutil.copytree(root / "validation", root / "Val"), {},
        "Val, validation",
    ),
    "folder to split with a validation split": (
        FOLDER, None, {"validation_split": 0.5}, "{root}/validation"
    ),
    "other number of examples": (FOLDER, None, {"examples": 3}, "data.examples", "got 3"),
    "other number of classes": (TFDS, None, {"classes": 5}, "data.classes", "got 5"),
    "tfds of another form": (("tfds ArrayRecord", "tfds:pets/a/b"), None, {}, "tfds:NAME"),
    "tfds misspelt": (("tfds ArrayRecord", "tfds:pet"), None, {}, "'pets'", "data.data_dir"),
    "tfds of another version": (("tfds ArrayRecord", "tfds:pets:2.0.0"), None, {}, "1.0.0"),
    "tfds unfinished": (TFDS, removed(INFO), {}, "{root}/" + PETS, "dataset_info.json"),
    "tfds in another format": (
        TFDS, edited(INFO, lambda info: info.update(fileFormat="riegeli")), {}, "riegeli"
    ),
    "tfds without the split": (
        TFDS, edited(INFO, lambda info: info["splits"].pop(0)), {}, "train", "validation (40)"
    ),
    "tfds lacks a shard": (
        TFDS, removed(f"{PETS}/*train*-00001-*"), {}, "pets-train.array_record-00001-of-00003"
    ),
    "tfds lacks records": (
        TFDS, copied("*validation*-00000-*", "*train*-00001-*"), {},
        "pets-train.array_record-00001-of-00003", "55",
    ),
    "tfds without labels": (TFDS, features(lambda x: x.pop("label")), {}, "ClassLabel"),
    "tfds with two images": (TFDS, features(two_images), {}, "photo, thumbnail"),
    "tfds with floats": (TFDS, features(floats), {}, "'image'"),
    "records without the split": (RECORDS, removed("train*"), {}, "train", "2 of validation"),
    "records of two series": (
        RECORDS, copied("train*-00000-*", "x-train.array_record"), {}, "x-train.array_record"
    ),
    "records of unknown classes": (RECORDS, removed("labels.txt"), {}, "data.classes"),
    "records with an empty name": (
        RECORDS, written("labels.txt", b"cat\n\ndog\n"), {}, "labels.txt: line 2"
    ),
    "names in Latin-1": (
        RECORDS, written("labels.txt", "âne\n".encode("latin-1")), {}, "labels.txt", "UTF-8"
    ),
    "tfrecord lacks a shard": (TFRECORD, removed("train*-00000-*"), {}, "-00000-of-00003"),
    "tfrecord cut off in a header": (
        TFRECORD, changed("train*", lambda data: data + bytes(5)), {},
        "train.tfrecord-00000-of-00003",
    ),
    "tfrecord of another length": (TFRECORD, changed("train*", flipped(1)), {}, "at byte 0"),
    "tfrecord of other features": (
        TFRECORD,
        lambda root: forms.write_tfrecord(
            first(root, "train*"), [stores.example(b"1", 1, ("photo", "kind"))]
        ),
        {}, "'image'",
    ),
    "tar cut off": (
        TARS, changed("*train-0000.tar", lambda data: data[:-10_500]), {}, "pets-train-0000.tar"
    ),
    "tar with a damaged header": (TARS, changed("*train-0001.tar", flipped(3)), {}, "at byte 0"),
    "tar with a word for a label": (TARS, tar_of(a__jpg=b"1", a__cls=b"tench"), {}, "a.cls"),
    "tar with a label beyond int64": (TARS, tar_of(a__jpg=b"1", a__cls=b"9" * 20), {}, "a.cls"),
    "tar with a fraction for a label": (
        TARS, tar_of(a__jpg=b"1", a__json=b'{"label": 3.7}'), {}, "a.json"
    ),
    "tar with a negative label": (TARS, tar_of(a__jpg=b"1", a__cls=b"-1"), {}, "label -1"),
    "tar with a label of no class": (TARS, tar_of(a__jpg=b"1", a__cls=b"4"), {}, "label 4"),
    "tar with samples that are apart": (
        TARS, tar_of(a__jpg=b"1", b__jpg=b"2", a__cls=b"0"), {}, "--sort=name"
    ),
    "tar with dots in the names of its images": (
        TARS, tar_of(IMG__2020__jpg=b"1", IMG__2020__cls=b"1"), {}, "'IMG.2020.jpg'"
    ),
    "joined tars": (
        TARS, changed("*train-0000.tar", lambda data: data + tarfile.TarInfo("x").tobuf()), {},
        "--concatenate",
    ),
    "arrow file missing": (
        ARROW, removed("train/*00001*"), {}, "train lacks data-00001-of-00003.arrow"
    ),
    "arrow without the split": (
        ARROW,
        edited("dataset_dict.json", lambda value: value.update(splits=["validation"])),
        {}, "validation",
    ),
    "arrow of a column that is absent": (
        ARROW,
        edited("train/dataset_info.json", lambda value: value.update(features=ABSENT)),
        {}, "'photo'",
    ),
    "arrow without records": (ARROW, emptied, {}, "train", "no image"),
    "parquet": (("folder", "parquet:{root}"), None, {}, "prepare_imagenet.py --from 'parquet:"),
}  # fmt: skip


@pytest.mark.parametrize("case", TABLE)
def test_a_wrong_dataset_is_refused_when_it_is_opened(sets, tmp_path, case):
    (form, spec), damage, options, *words = TABLE[case]
    root = tmp_path / "set"
    shutil.copytree(sets / form, root)
    if damage:
        damage(root)
    options = SourceOptions(data_dir=str(root), **options)
    said = stores.complaint(open_source, spec.format(root=root), "train", options)
    for word in words:
        assert word.replace("{root}", str(root)) in said


def test_a_part_of_a_public_set_is_refused_unless_its_examples_are_named(sets, monkeypatch):
    monkeypatch.setitem(KNOWN_SETS, "tfds:pets", KnownSet(200, 50, 4, 224))
    place = {"data_dir": str(sets / "tfds ArrayRecord")}
    for split in forms.SPLITS:
        said = stores.complaint(open_source, "tfds:pets", split, SourceOptions(**place))
        assert "data.examples=160" in said
    assert len(open_source("tfds:pets", "train", SourceOptions(**place, examples=160))) == 160
    monkeypatch.setitem(KNOWN_SETS, "tfds:pets", KnownSet(160, 40, 4, 224))
    assert len(open_source("tfds:pets", "train", SourceOptions(**place))) == 160


def test_splits_of_other_classes_are_refused(sets):
    train = open_dataset(f"folder:{sets}/folder", "train")
    assert "'bee'" in stores.complaint(facts_of, train, open_dataset("digits", "train"), 1, 1)
