import os
import shutil

import numpy as np
import pytest
import tensorflow_datasets as tfds

from largebatch.data.sources import SourceOptions
from largebatch.data.tfds import open_tfds
from tests.data import stores

CLASSES = ["cat", "dog", "eel"]


@pytest.fixture(scope="module")
def splits():
    return {"train": stores.pictures(20, 3), "validation": stores.pictures(7, 3, first=100)}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory, splits):
    """A data_dir in which TFDS prepared `pets`; not to be changed."""
    data_dir = tmp_path_factory.mktemp("tfds")
    stores.prepare(data_dir, splits, CLASSES)
    return data_dir


@pytest.fixture
def own(prepared, tmp_path):
    """A copy of it that a test may change, and the directory of the set."""
    shutil.copytree(prepared, tmp_path / "data")
    return tmp_path / "data", tmp_path / "data" / "pets" / "1.0.0"


def as_tfds_reads(builder, split, image="image", label="label"):
    source = builder.as_data_source(split, decoders={image: tfds.decode.SkipDecoding()})
    return [(source[i][image], source[i][label]) for i in range(len(source))]


@pytest.mark.parametrize("split", ["train", "validation"])
def test_reads_what_tfds_reads(prepared, splits, split):
    expected = as_tfds_reads(tfds.builder_from_directory(prepared / "pets" / "1.0.0"), split)
    assert sorted(expected) == sorted(splits[split])  # TFDS shuffled, and changed nothing
    records = open_tfds("tfds:pets", split, SourceOptions(data_dir=str(prepared)))
    assert records.classes == tuple(CLASSES)
    stores.check_records(records, expected, split)
    place = f"{prepared}/pets/1.0.0/pets-{split}.array_record-0000"
    assert records.where(0) == place + "0-of-00003, record 0 (counted from 0)"
    last = len(records) - 1
    assert records.where(last).startswith(place + "2-of-00003, record ")
    assert f"{prepared}/pets/1.0.0, split {split}, 3 shards" in records.describe()


def test_other_names_of_the_features_and_test_for_validation(tmp_path, splits):
    renamed = {"train": splits["train"], "test": splits["validation"]}
    builder = stores.prepare(tmp_path, renamed, CLASSES, features=("photo", "kind"), shards=1)
    records = open_tfds("tfds:pets", "validation", SourceOptions(data_dir=str(tmp_path)))
    expected = as_tfds_reads(builder, "test", "photo", "kind")
    stores.check_records(records, expected, "validation")
    assert "split test, 1 shards" in records.describe()


def test_of_several_features_the_one_named_so_is_read(own, splits):
    data_dir, directory = own

    def add(features):
        named = features["featuresDict"]["features"]
        named["thumbnail"] = named["image"]

    stores.edit(directory / "features.json", add)
    records = open_tfds("tfds:pets", "train", SourceOptions(data_dir=str(data_dir)))
    assert sorted(records.read(np.arange(20))[0]) == sorted(image for image, _ in splits["train"])


def test_forms_of_the_name(tmp_path, monkeypatch, splits):
    """Each version has another number of examples, by which it is known."""
    lengths = {"1.0.0": 4, "2.0.0": 5, "2.1.0": 6, "10.0.0": 7}
    for version, length in lengths.items():
        part = {"train": splits["train"][:length]}
        stores.prepare(tmp_path, part, CLASSES, version=version, config="small", shards=1)
    shutil.copytree(tmp_path / "pets" / "small", tmp_path / "toys")

    def length(spec):
        return len(open_tfds(spec, "train", SourceOptions(data_dir=str(tmp_path))))

    for spec in ("tfds:pets", "tfds:pets:small", "tfds:pets/small", "tfds:toys"):
        assert length(spec) == 7  # the newest, as numbers go
    for separator in ":/":
        assert length(f"tfds:pets/small{separator}2.0.0") == 5
        assert length(f"tfds:pets{separator}2.*.*") == 6
        assert length(f"tfds:toys{separator}1.0.0") == 4
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    assert len(open_tfds("tfds:toys", "train", SourceOptions())) == 7
    monkeypatch.delenv("TFDS_DATA_DIR")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "tensorflow_datasets").symlink_to(tmp_path)
    assert len(open_tfds("tfds:toys", "train", SourceOptions())) == 7

    shutil.copytree(tmp_path / "pets" / "small", tmp_path / "pets" / "large")
    said = stores.complaint(length, "tfds:pets")
    assert "has no version but large, small; choose a configuration: tfds:pets:large" in said
    assert "has 1.0.0, 2.0.0, 2.1.0, 10.0.0 but not 3.*.*" in stores.complaint(
        length, "tfds:toys:3.*.*"
    )
    assert "has nothing but not a version" in stores.complaint(length, "tfds:pets:medium")


@pytest.mark.parametrize("spec", ["tfds", "tfds:", "tfds:pets/a/b", "tfds:pets::1.0.0"])
def test_other_forms_are_refused(prepared, spec):
    said = stores.complaint(open_tfds, spec, "train", SourceOptions(data_dir=str(prepared)))
    assert f"tfds:NAME[:CONFIG][:VERSION], got {spec!r}" in said


def test_an_absent_set_is_told_with_its_remedy(prepared, tmp_path):
    said = stores.complaint(open_tfds, "tfds:pet", "train", SourceOptions(data_dir=str(prepared)))
    assert f"no 'pet' in {prepared}; did you mean 'pets'?" in said
    assert "data.source=folder:PATH" in said
    nowhere = str(tmp_path / "nowhere")
    said = stores.complaint(open_tfds, "tfds:pets", "train", SourceOptions(data_dir=nowhere))
    assert f"no 'pets' in {nowhere}; does not exist; set data.data_dir to the folder" in said
    assert not os.path.exists(nowhere)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("imagenette", "folder:imagenette2-320"), ("imagenet2012", "prepare_imagenet.py --tars")],
)
def test_known_sets_are_prepared_without_tensorflow(prepared, name, remedy):
    options = SourceOptions(data_dir=str(prepared))
    said = stores.complaint(open_tfds, f"tfds:{name}", "train", options)
    assert remedy in said
    assert "tfds build" not in said


def test_an_unfinished_preparation_is_told(own):
    data_dir, directory = own
    (directory / "dataset_info.json").unlink()
    options = SourceOptions(data_dir=str(data_dir))
    said = stores.complaint(open_tfds, "tfds:pets", "train", options)
    assert f"{directory} has no dataset_info.json" in said
    directory.rename(directory.with_name("incomplete.XYZ_1.0.0"))
    said = stores.complaint(open_tfds, "tfds:pets", "train", options)
    assert "has no version but incomplete.XYZ_1.0.0; prepare it where TensorFlow is" in said


def test_another_format_is_told_and_an_alternative_one_is_read(own):
    data_dir, directory = own
    options = SourceOptions(data_dir=str(data_dir))
    before = open_tfds("tfds:pets", "train", options).read(np.arange(20))
    info = directory / "dataset_info.json"
    stores.edit(info, lambda value: value.update(fileFormat="tfrecord"))
    said = stores.complaint(open_tfds, "tfds:pets", "train", options)
    assert f"{directory} is in tfrecord format" in said
    assert "where TensorFlow is installed" in said
    assert "data.source=folder:PATH" in said
    # This is how `tfds convert_format` leaves a set that it converted where it was.
    stores.edit(info, lambda value: value.update(alternativeFileFormats=["array_record"]))
    after = open_tfds("tfds:pets", "train", options).read(np.arange(20))
    assert before[0] == after[0]
    np.testing.assert_array_equal(before[1], after[1])


@pytest.mark.parametrize("file", ["dataset_info.json", "features.json"])
def test_spoilt_metadata_are_told(own, file):
    data_dir, directory = own
    (directory / file).write_text("{")
    said = stores.complaint(open_tfds, "tfds:pets", "train", SourceOptions(data_dir=str(data_dir)))
    assert f"{directory}: TFDS cannot read its own metadata (" in said


def test_missing_and_exchanged_shards_are_told(own):
    data_dir, directory = own
    options = SourceOptions(data_dir=str(data_dir))
    records = open_tfds("tfds:pets", "train", options)
    second = directory / "pets-train.array_record-00001-of-00003"
    shutil.copy(directory / "pets-validation.array_record-00001-of-00003", second)
    said = stores.complaint(records.read, np.arange(20))
    assert said.startswith(f"{second} holds 3 records, not 6;")
    second.unlink()
    said = stores.complaint(open_tfds, "tfds:pets", "train", options)
    assert f"{directory} lacks {second.name} of 3 shards" in said
    (directory / "pets-train.array_record-00002-of-00003").unlink()
    said = stores.complaint(open_tfds, "tfds:pets", "train", options)
    assert f"{directory} lacks {second.name} and 1 more of 3 shards" in said
    said = stores.complaint(records.read, np.arange(20))
    assert f"{second} is not a complete ArrayRecord file: open() failed: No such file" in said


def test_a_corrupt_record_is_named_and_the_others_are_read(own):
    data_dir, directory = own
    options = SourceOptions(data_dir=str(data_dir))
    records = open_tfds("tfds:pets", "train", options)
    images = records.read(np.arange(20))[0]
    shard = directory / "pets-train.array_record-00001-of-00003"
    stores.damage(shard, 2)
    records = open_tfds("tfds:pets", "train", options)
    said = stores.complaint(records.read, np.array([3, 9, 4]))
    assert said.startswith(f"{records.where(9)} cannot be read: ")
    assert records.where(9) == f"{shard}, record 2 (counted from 0)"
    assert "hash mismatch" in said
    others = np.array([i for i in range(20) if i != 9])
    assert records.read(others)[0] == [images[i] for i in others]


def test_splits_without_examples_or_labels_are_told(tmp_path, splits):
    stores.prepare(tmp_path, {"train": splits["train"]}, CLASSES)
    stores.edit(
        tmp_path / "pets" / "1.0.0" / "dataset_info.json",
        lambda info: info["splits"].append(
            {**info["splits"][0], "name": "test", "shardLengths": []}
        ),
    )
    options = SourceOptions(data_dir=str(tmp_path))
    said = stores.complaint(open_tfds, "tfds:pets", "validation", options)
    assert "no examples to use for validation: it has train (20), test (0), and validation" in said
    unlabelled = {"test": [(image, -1) for image, _ in splits["train"]]}
    stores.prepare(tmp_path, unlabelled, CLASSES, version="2.0.0")
    records = open_tfds("tfds:pets", "validation", options)
    said = stores.complaint(records.read, np.arange(3))
    assert said.startswith(f"{records.where(0)} has label -1, not one of the 3 classes from 0;")


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        ("image", "photo", "has 2 Image features (photo, thumbnail); one is needed, or one named"),
        ("label", None, "has 0 ClassLabel features (file_name, image)"),
    ],
)
def test_sets_of_another_kind_are_refused(own, kind, name, said):
    data_dir, directory = own

    def change(features):
        named = features["featuresDict"]["features"]
        feature = named.pop(kind)
        if name:
            named[name] = named["thumbnail"] = feature

    stores.edit(directory / "features.json", change)
    options = SourceOptions(data_dir=str(data_dir))
    assert said in stores.complaint(open_tfds, "tfds:pets", "train", options)


def test_pictures_of_floats_are_refused(own):
    data_dir, directory = own

    def change(features):
        image = features["featuresDict"]["features"]["image"]["image"]
        image.update(dtype="float32", shape={"dimensions": ["-1", "-1", "1"]})

    stores.edit(directory / "features.json", change)
    options = SourceOptions(data_dir=str(data_dir))
    assert "'image' holds floats" in stores.complaint(open_tfds, "tfds:pets", "train", options)


def test_tensorflow_is_not_imported(prepared, tmp_path):
    stores.check_read_without_tensorflow(tmp_path, "tfds:pets", prepared)
