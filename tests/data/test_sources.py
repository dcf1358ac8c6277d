import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

from largebatch.data.openers import SOURCES, Opener, open_source
from largebatch.data.order import fingerprint
from largebatch.data.sources import SourceOptions
from largebatch.errors import DataError


def everything(source):
    return source.read(np.arange(len(source)))


@pytest.mark.parametrize("spec", ["digits", "synthetic"])
@pytest.mark.parametrize("split", ["train", "validation"])
def test_every_source_keeps_the_protocol(spec, split):
    source = open_source(spec, split)
    ids = np.array([len(source) - 1, 0, 0])
    images, labels = source.read(ids)
    assert source.name == spec
    assert images.shape == (3, *source.image_shape)
    assert (images.dtype, labels.dtype, labels.shape) == (np.uint8, np.int32, (3,))
    assert len(source.mean) == len(source.std) == source.image_shape[2]
    assert "\n" not in source.describe()
    assert f"{len(source):,} {split}" in source.describe()
    alone = source.read(ids[:1])
    np.testing.assert_array_equal(alone[0], images[:1])
    np.testing.assert_array_equal(alone[1], labels[:1])
    np.testing.assert_array_equal(images[1], images[2])
    images[:] = 0  # what is read belongs to the reader
    np.testing.assert_array_equal(source.read(ids[:1])[0], alone[0])
    assert alone[0].any()


@pytest.mark.parametrize("spec", ["digits", "synthetic"])
def test_mean_and_std_normalise_the_training_split(spec):
    source = open_source(spec, "train", SourceOptions(examples=0 if spec == "digits" else 4000))
    images, labels = everything(source)
    pixels = images.reshape(-1, source.image_shape[2]).astype(np.float64)
    # digits: exact up to the order of summation. synthetic: the moments are the distribution's, and
    # the class shares of 4,000 examples wander by about 1 % of a standard deviation.
    tolerance = 1e-9 if spec == "digits" else 0.5
    np.testing.assert_allclose(pixels.mean(0), source.mean, atol=tolerance)
    np.testing.assert_allclose(pixels.std(0), source.std, atol=tolerance)
    assert sorted(set(labels.tolist())) == list(range(len(source.classes)))


def test_digits_are_those_of_scikit_learn_split_by_index():
    from sklearn.datasets import load_digits

    found = load_digits()
    train, validation = open_source("digits", "train"), open_source("digits", "validation")
    assert (len(train), len(validation)) == (1437, 360)
    for source, indices in (
        (train, [i for i in range(1797) if i % 5]),
        (validation, list(range(0, 1797, 5))),
    ):
        images, labels = everything(source)
        np.testing.assert_array_equal(images[..., 0], found.images[indices] * 15)
        np.testing.assert_array_equal(labels, found.target[indices])
    assert train.mean == validation.mean
    assert everything(train)[0].max() == 240


def test_digits_at_another_size():
    usual = open_source("digits", "validation")
    larger = open_source("digits", "validation", SourceOptions(image_size=12))
    assert larger.image_shape == (12, 12, 1)
    ids = np.arange(5)
    images, labels = larger.read(ids)
    assert images.shape == (5, 12, 12, 1)
    assert images.dtype == np.uint8
    np.testing.assert_array_equal(labels, usual.read(ids)[1])
    # Interpolation keeps the mean grey of an image up to its rim; eight levels of 240.
    assert abs(images.mean((1, 2)) - usual.read(ids)[0].mean((1, 2))).max() < 8
    np.testing.assert_array_equal(usual.read_centres(ids, (12, 12))[0], images)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"examples": 100}, r"data\.examples: expected 0 or 1437 .*got 100"),
        ({"classes": 5}, r"data\.classes: expected 0 or 10 .*got 5"),
    ],
)
def test_digits_has_fixed_sizes(sizes, said):
    with pytest.raises(DataError, match=said):
        open_source("digits", "train", SourceOptions(**sizes))


def test_digits_accepts_its_own_sizes_spelt_out():
    assert (
        len(
            open_source(
                "digits", "validation", SourceOptions(image_size=8, examples=1437, classes=10)
            )
        )
        == 360
    )


@pytest.mark.parametrize(
    ("spec", "split", "sizes", "said"),
    [
        ("digit", "train", {}, "did you mean 'digits'"),
        ("zzz:imagenet", "train", {}, "'zzz' is unknown; known: arrayrecord, decoded, digits"),
        ("digits", "test", {}, "'test' is unknown; known: train, validation"),
        ("synthetic", "train", {"classes": -1}, r"data\.classes: .*got -1"),
        ("synthetic:x", "train", {}, "after the colon; write 'synthetic'"),
        ("digits:x", "train", {}, "after the colon; write 'digits'"),
    ],
)
def test_mistakes_are_named(spec, split, sizes, said):
    with pytest.raises(DataError, match=said) as caught:
        open_source(spec, split, SourceOptions(**sizes))
    assert "\n" not in str(caught.value)


def test_a_source_is_added_by_one_entry(monkeypatch):
    monkeypatch.setattr(SOURCES, "_entries", dict(SOURCES))
    SOURCES.register("other", Opener("largebatch.data.synthetic:open_synthetic"))
    with pytest.raises(DataError, match="write 'synthetic'"):
        open_source("other:x", "train")
    with pytest.raises(DataError, match="did you mean 'other'"):
        open_source("othr", "train")


def test_synthetic_sizes():
    assert len(open_source("synthetic", "train")) == 50_000
    assert len(open_source("synthetic", "validation")) == 10_000
    assert open_source("synthetic", "train").image_shape == (32, 32, 3)
    assert len(open_source("synthetic", "train", SourceOptions(examples=3))) == 3
    assert len(open_source("synthetic", "validation", SourceOptions(examples=103))) == 20
    assert len(open_source("synthetic", "validation", SourceOptions(examples=3))) == 1
    source = open_source("synthetic", "train", SourceOptions(image_size=1, classes=2))
    assert source.read(np.arange(4))[0].shape == (4, 1, 1, 3)


def test_synthetic_labels_are_even_and_pinned():
    labels = everything(open_source("synthetic", "train", SourceOptions(image_size=8)))[1]
    counts = np.bincount(labels, minlength=10)
    # Chi-square of 9 degrees of freedom: mean 9, standard deviation 4.2.
    assert ((counts - 5000) ** 2 / 5000).sum() < 9 + 5 * 4.2
    assert fingerprint(labels) == "1f3c7203819b2348"


def test_synthetic_splits_share_no_noise_and_have_unrelated_labels():
    train, validation = (
        open_source("synthetic", s, SourceOptions(image_size=8, examples=50_000))
        for s in ("train", "validation")
    )
    images, labels = everything(train)
    held_out, held_out_labels = everything(validation)
    seen = set(map(bytes, images))
    assert not seen & set(map(bytes, held_out))
    agreeing = (labels[: len(held_out)] == held_out_labels).mean()
    assert abs(agreeing - 0.1) < 0.015  # 10,000 pairs: five standard errors of 0.003
    # 5,000 examples a class over 2**21 windows: about 6 pairs a class alike by chance.
    assert len(seen) > 49_800


def test_synthetic_neither_wraps_nor_ignores_the_label():
    source = open_source("synthetic", "train", SourceOptions(image_size=16))
    images, labels = source.read(np.arange(3000))
    means = np.stack([images[labels == c].mean(0) for c in range(10)])
    # Noise has mean 63.5, so class means lie in 63.5..189.5; a wrapped sum would fall outside.
    assert means.min() > 50
    assert means.max() < 200
    assert np.abs(means[:, None] - means).mean((2, 3, 4))[~np.eye(10, dtype=bool)].min() > 8


def test_synthetic_can_be_learnt_and_only_with_its_labels():
    train, validation = (
        open_source("synthetic", s, SourceOptions(image_size=16, examples=2500))
        for s in ("train", "validation")
    )

    def features(images):
        centred = (images - np.array(train.mean)) / np.array(train.std)
        return centred.reshape(len(images), -1)

    def accuracy(labels):
        """Of ridge regression to the labels: the smallest network there is."""
        x = features(images)
        weights = np.linalg.solve(x.T @ x + 100 * np.eye(x.shape[1]), x.T @ np.eye(10)[labels])
        return ((features(held_out) @ weights).argmax(1) == held_out_labels).mean()

    images, labels = everything(train)
    held_out, held_out_labels = everything(validation)
    assert accuracy(labels) > 0.95
    assert accuracy(np.random.default_rng(0).permutation(labels)) < 0.25


def test_imagenet_sized_synthetic_stores_nothing_per_example():
    def held(examples):
        tracemalloc.start()
        source = open_source(
            "synthetic", "train", SourceOptions(image_size=224, examples=examples, classes=1000)
        )
        size = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        return source, size

    source, size = held(1_281_167)
    assert size < 16 << 20  # the noise bank, 4.2 MiB, and the profiles, 0.9 MiB
    assert size - held(10)[1] < 64 << 10
    assert source.read(np.array([0, 640_000, 1_281_166]))[0].shape == (3, 224, 224, 3)


def test_scikit_learn_is_imported_only_for_digits():
    code = (
        "import sys, largebatch.data as d; d.open_source('synthetic', 'train');"
        "assert not {'sklearn', 'tensorflow'} & set(sys.modules);"
        "d.open_source('digits', 'train'); assert 'sklearn' in sys.modules;"
        "assert 'tensorflow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
