import shutil

import numpy as np
import pytest
import tensorflow_datasets as tfds

from largebatch.data.source import SourceOptions
from largebatch.data.tfds import open_tfds
from tests.data import stores

CLASSES = ["cat", "dog", "eel"]


@pytest.fixture(scope="module")
def splits():
    return {
        "train": stores.labelled_images(20, 3),
        "validation": stores.labelled_images(7, 3, first=100),
    }


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
    stores.check_source(records, expected)
    place = f"{prepared}/pets/1.0.0/pets-{split}.array_record-0000"
    assert records.where(0) == place + "0-of-00003, record 0 (counted from 0)"
    last = len(records) - 1
    assert records.where(last).startswith(place + "2-of-00003, record ")


def test_other_names_of_the_features_and_test_for_validation(tmp_path, splits):
    renamed = {"train": splits["train"], "test": splits["validation"]}
    builder = stores.prepare(tmp_path, renamed, CLASSES, features=("photo", "kind"), shards=1)
    records = open_tfds("tfds:pets", "validation", SourceOptions(data_dir=str(tmp_path)))
    expected = as_tfds_reads(builder, "test", "photo", "kind")
    stores.check_source(records, expected)
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
    for spec, word in {
        "tfds:pets": "tfds:pets:large",
        "tfds:toys:3.*.*": "3.*.*",
        "tfds:pets:medium": "medium",
    }.items():
        assert word in stores.complaint(length, spec)


def test_a_format_that_tfds_converted_in_place_is_read(own):
    data_dir, directory = own
    options = SourceOptions(data_dir=str(data_dir))
    before = open_tfds("tfds:pets", "train", options).read(np.arange(20))
    # `tfds convert_format` leaves these metadata.
    formats = {"fileFormat": "tfrecord", "alternativeFileFormats": ["array_record"]}
    stores.edit(directory / "dataset_info.json", lambda value: value.update(formats))
    after = open_tfds("tfds:pets", "train", options).read(np.arange(20))
    assert before[0] == after[0]
    np.testing.assert_array_equal(before[1], after[1])


def test_an_unlabelled_split_is_refused(tmp_path, splits):
    unlabelled = {"test": [(image, -1) for image, _ in splits["train"]]}
    stores.prepare(tmp_path, unlabelled, CLASSES)
    records = open_tfds("tfds:pets", "validation", SourceOptions(data_dir=str(tmp_path)))
    said = stores.complaint(records.read, np.arange(3))
    assert said.startswith(f"{records.where(0)} has label -1")
