"""Datasets of other forms become the same images, labels and classes in the same order."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from largebatch.data import SourceOptions
from largebatch.data.prepare import datasets
from largebatch.data.prepare.image_files import find_images
from largebatch.data.prepare.manifest import verify
from largebatch.data.prepare.run import prepare
from largebatch.data.source import check_finished, open_source
from largebatch.errors import ConfigError, DataError
from largebatch.object_store import Bucket
from tests.data import forms, stores

PAIRS = {
    split: [(image, label) for _, image, label in forms.photographs(split)]
    for split in forms.SPLITS
}
FORMS = ("folder", "webdataset", "parquet")


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    root = tmp_path_factory.mktemp("sources")
    return {name: forms.FORMS[name](root / name) for name in (*FORMS, "tfds ArrayRecord")}


def check(out):
    """Compare what training reads from a prepared dataset with the photographs."""
    for split, pairs in PAIRS.items():
        records = open_source(f"arrayrecord:{out}", split, SourceOptions())
        images, labels = records.read(np.arange(len(records)))
        assert list(zip(images, labels.tolist(), strict=True)) == pairs
        assert records.classes == forms.CLASSES
    verify(out)


@pytest.mark.multiprocess
@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_examples_in_their_order(sources, tmp_path, form):
    out = tmp_path / "out"
    if form == "parquet":
        prepare(datasets.find(sources[form]), out, processes=2)
    else:
        prepare(datasets.find(sources[form], shards=3), out)
    check(out)
    if form == "folder":
        found = find_images(Path(sources[form].partition(":")[2]), shards=3)
        prepare(found, tmp_path / "images")
        check(tmp_path / "images")


@pytest.mark.parametrize("form", ["parquet", "tfds ArrayRecord"])
def test_files_in_a_bucket_are_downloaded_one_at_a_time(
    served, sources, tmp_path, monkeypatch, form
):
    scheme, _, local = sources[form].partition(":")
    bucket = Bucket(f"{served[1]}/set")
    for path in Path(local).iterdir():
        bucket.write(path.name, path)
    held, download = [], Bucket.download

    def counting(self, name, path):
        download(self, name, path)
        held.append(len(list(tmp_path.rglob("largebatch-*/*-of-*"))))

    monkeypatch.setattr(Bucket, "download", counting)
    check(prepare(datasets.find(f"{scheme}:{bucket.url}"), tmp_path / "out"))
    assert max(held) == 1
    assert not list(tmp_path.rglob("largebatch-*"))


class Own:
    """A user's own dataset, of image files or of arrays."""

    classes = forms.CLASSES

    def __init__(self, argument, split, options):
        array = np.zeros((4, 4, 3), np.uint8)
        self.pairs = [(array if argument else image, label) for image, label in PAIRS[split]]

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, index):
        return self.pairs[index]


def test_an_own_source(tmp_path):
    check(prepare(datasets.find(f"{__name__}:Own", shards=2), tmp_path / "out"))
    for spec in (f"{__name__}:Own:arrays", "digits"):
        with pytest.raises(DataError, match="--from"):
            datasets.find(spec)


def test_classes_come_from_labels_or_from_the_option(sources, tmp_path):
    out = tmp_path / "own"
    shutil.copytree(sources["parquet"].partition(":")[2], out)
    for path in out.iterdir():
        pq.write_table(pq.read_table(path).replace_schema_metadata({}), path)
    spec = f"parquet:{out}"
    with pytest.raises(DataError, match=str(out)):
        datasets.find(spec)
    assert datasets.find(spec, classes=4).classes == tuple("0123")
    (out / "labels.txt").write_text("\n".join(forms.CLASSES))
    assert datasets.find(spec).classes == forms.CLASSES
    with pytest.raises(ConfigError, match="--classes"):
        datasets.find(spec, classes=5)
    # A label that no class has is named by its place, before the dataset can be opened.
    (out / "labels.txt").write_text("bee\ncat\ndog\n")
    with pytest.raises(DataError, match=r"train-00002-of-00003\.parquet.*from 0 to 2, got 3"):
        prepare(datasets.find(spec), tmp_path / "out")
    with pytest.raises(DataError, match="unfinished"):
        open_source(f"arrayrecord:{tmp_path / 'out'}", "train", SourceOptions())
    check_finished(str(tmp_path / "out" / ".." / "beside"))


def test_other_datasets_are_refused(sources, tmp_path):
    with pytest.raises(ConfigError, match="--shards"):
        datasets.find(sources["parquet"], shards=2)
    with pytest.raises(ConfigError, match="--shards"):
        datasets.find(sources["folder"], shards=99)
    place = Path(forms.tfrecord(tmp_path / "cut").partition(":")[2])
    part = next(place.glob("train*"))
    part.write_bytes(part.read_bytes()[:-5])
    assert part.name in stores.complaint(datasets.find, f"tfrecord:{place}")
    (tmp_path / "cut.parquet" / "x").mkdir(parents=True)
    for split in forms.SPLITS:
        (tmp_path / "cut.parquet" / f"{split}.parquet").write_bytes(b"PAR1")
    assert "train.parquet" in stores.complaint(datasets.find, f"parquet:{tmp_path}/cut.parquet")
