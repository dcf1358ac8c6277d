"""The same photographs are the same examples in every form, and damaged forms are refused."""

import hashlib
import multiprocessing
import shutil

import numpy as np
import pytest

from largebatch.data import (
    Augment,
    Order,
    Reading,
    SourceOptions,
    identity,
    open_source,
    train_microbatches,
)
from largebatch.data.openers import open_records
from tests.data import forms, stores

OPTIONS = SourceOptions(image_size=16)


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """The specification of each form; not to be changed."""
    root = tmp_path_factory.mktemp("forms")
    return {name: write(root / name.replace(" ", "_")) for name, write in forms.FORMS.items()}


@pytest.fixture(scope="module")
def expected(sets):
    """Three microbatches of training, across the end of an epoch, from `folder:`."""
    return batches(sets["folder"])


def batches(spec):
    source = open_source(spec, "train", OPTIONS)
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


@pytest.mark.parametrize("form", forms.FORMS)
def test_every_form_gives_the_examples_of_the_folder(sets, expected, form):
    for split in forms.SPLITS:
        records = open_records(sets[form], split, OPTIONS)
        stores.check_records(records, [(i, label) for _, i, label in forms.photographs(split)])
        assert records.classes == forms.CLASSES
    for ours, theirs in zip(batches(sets[form]), expected, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(one, other)


def digest(records):
    images, labels = records.read(np.arange(len(records)))
    return hashlib.sha256(b"".join(images) + labels.tobytes()).hexdigest()


def test_every_form_is_read_in_another_process(sets):
    every = [open_records(spec, "train", OPTIONS) for spec in sets.values()]
    for records in every:
        records.read(np.arange(3))  # with files that are open
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.map(digest, every)
    assert set(found) == {digest(every[0])}


def test_forms_and_splits_have_different_identities(sets):
    found = [
        identity(open_source(spec, split, OPTIONS))
        for name, spec in sets.items()
        for split in forms.SPLITS
    ]
    assert len(set(found)) == len(found)


def test_checksums_of_tfrecords_are_checked_where_data_are_copied(sets, tmp_path):
    place = tmp_path / "set"
    shutil.copytree(sets["tfrecord"].partition(":")[2], place)
    path = place / forms.series("train", ".tfrecord")[1]
    data = bytearray(path.read_bytes())
    data[3000] ^= 1  # within an image
    path.write_bytes(data)
    every = np.arange(forms.SPLITS["train"])
    assert len(open_records(f"tfrecord:{place}", "train", OPTIONS).read(every)[0]) == len(every)
    checked = open_records(f"tfrecord:{place}", "train", SourceOptions(sequential=True))
    assert stores.complaint(checked.read, every).startswith(f"{path}, record ")
