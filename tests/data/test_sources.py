"""The built-in sources, users' own data, and what is common to all sources."""

import io
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from largebatch.data.dataset import Dataset, open_dataset
from largebatch.data.images import resize
from largebatch.data.open import grouped_by_class
from largebatch.data.order import fingerprint
from largebatch.data.source import (
    Source,
    SourceOptions,
    check_class_names,
    class_counts,
    is_photographs,
    open_source,
)
from largebatch.errors import ConfigError, DataError, UserError

HERE = __name__


def everything(dataset):
    return dataset.source.read(np.arange(len(dataset)))


def test_what_is_read_is_a_function_of_the_id_and_belongs_to_the_reader():
    for spec, split, options, length in (
        ("digits", "train", {}, 1437),
        ("digits", "validation", {}, 360),
        ("synthetic", "train", {}, 50_000),
        ("synthetic", "validation", {}, 10_000),
        ("synthetic", "validation", {"examples": 103, "image_size": 1}, 20),
        ("synthetic", "validation", {"examples": 3}, 1),
    ):
        source = open_dataset(spec, split, SourceOptions(**options))
        assert len(source) == length
        ids = np.array([length - 1, 0, 0])
        images, labels, _ = source.read_centres(ids)
        assert images.shape == (3, *source.image_shape)
        assert (images.dtype, labels.dtype, labels.shape) == (np.uint8, np.int32, (3,))
        first = images[0].copy()
        images[:] = 0
        np.testing.assert_array_equal(source.read_centres(ids[:1]).images[0], first)
        assert first.any()


@pytest.mark.parametrize("spec", ["digits", "synthetic"])
def test_mean_and_std_normalise_the_training_split(spec):
    source = open_dataset(spec, "train", SourceOptions(examples=0 if spec == "digits" else 4000))
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
    for split, indices in (
        ("train", [i for i in range(1797) if i % 5]),
        ("validation", list(range(0, 1797, 5))),
    ):
        images, labels = everything(open_dataset("digits", split))
        np.testing.assert_array_equal(images[..., 0], found.images[indices] * 15)
        np.testing.assert_array_equal(labels, found.target[indices])


@pytest.mark.parametrize(
    ("spec", "split", "sizes", "word"),
    [
        ("digit", "train", {}, "'digits'"),
        ("digits", "test", {}, "train, validation"),
        ("digits", "train", {"classes": 5}, r"data\.classes: .*got 5"),
        ("digits", "train", {"validation_split": 0.5}, r"data\.validation_split"),
        ("synthetic", "train", {"classes": -1}, r"data\.classes: .*got -1"),
        ("synthetic:x", "train", {}, "'synthetic'"),
    ],
)
def test_mistakes_are_named(spec, split, sizes, word):
    with pytest.raises(UserError, match=word):
        open_dataset(spec, split, SourceOptions(**sizes))


def test_synthetic_examples_differ_and_labels_are_even_and_pinned():
    images, labels = everything(open_dataset("synthetic", "train", SourceOptions(image_size=8)))
    counts = np.bincount(labels, minlength=10)
    # Chi-square of 9 degrees of freedom: mean 9, standard deviation 4.2.
    assert ((counts - 5000) ** 2 / 5000).sum() < 9 + 5 * 4.2
    assert fingerprint(labels) == "1f3c7203819b2348"
    # 5,000 examples a class over 2**21 windows of noise: about 6 pairs a class alike by chance.
    assert len(set(map(bytes, images))) > 49_800


def test_synthetic_can_be_learnt_and_only_with_its_labels():
    train, validation = (
        open_dataset("synthetic", s, SourceOptions(image_size=16, examples=2500))
        for s in ("train", "validation")
    )

    def features(images):
        centred = (images - np.array(train.mean)) / np.array(train.std)
        return centred.reshape(len(images), -1)

    def accuracy(labels):
        """Accuracy of ridge regression to the labels."""
        x = features(images)
        weights = np.linalg.solve(x.T @ x + 100 * np.eye(x.shape[1]), x.T @ np.eye(10)[labels])
        return ((features(held_out) @ weights).argmax(1) == held_out_labels).mean()

    images, labels = everything(train)
    held_out, held_out_labels = everything(validation)
    assert accuracy(labels) > 0.95
    assert accuracy(np.random.default_rng(0).permutation(labels)) < 0.25


# ---- class names and the order of classes


class Labels(Source):
    name, classes, image_shape = "labels", ("a", "b", "c"), (2, 2, 1)

    def __init__(self, labels, known=False):
        self._labels = np.asarray(labels, np.int32)
        self.labels = self._labels if known else None

    def __len__(self):
        return len(self._labels)

    def read(self, ids):
        return np.zeros((len(ids), 2, 2, 1), np.uint8), self._labels[ids]


@pytest.mark.parametrize(
    ("labels", "grouped"),
    [
        (np.repeat([2, 0, 1], 200), True),
        (np.repeat(np.arange(3), 7), True),
        (np.random.default_rng(0).integers(0, 2, 900), False),
        (np.random.default_rng(0).random(900) < 0.02, False),
        (np.zeros(900), False),
        (np.arange(900) % 3, False),
        ([0], False),
    ],
)
def test_the_order_of_classes_is_noticed(labels, grouped):
    for known in (False, True):
        assert grouped_by_class(Dataset(Labels(labels, known), SourceOptions())) is grouped


@pytest.mark.parametrize("name", ["a\nb", "a\u2028b", "", " ", "a ", " a", "\udce9", "a\x00", 3])
def test_class_names_that_are_no_line_of_text_are_refused(name):
    check_class_names("place", ("a b", "中文", "👩\u200d🚀", "no\u00a0break"))
    with pytest.raises(DataError, match=r"^place: .* label 1"):
        check_class_names("place", ("a", name))


# ---- users' own data: by item, or as a source

PIXELS = [
    np.random.default_rng(i).integers(0, 256, (40 + i, 50, 3)).astype(np.uint8) for i in range(6)
]


def png(pixels):
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


class Listed:
    def __init__(self, items, classes=("a", "b")):
        self.items, self.classes = items, classes

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


FORMS = {
    "array": lambda i: (PIXELS[i], i % 2),
    "png": lambda i: (png(PIXELS[i]), i % 2),
    "mapping": lambda i: {"image": PIXELS[i], "label": np.int64(i % 2), "other": None},
    "pillow": lambda i: [Image.fromarray(PIXELS[i]), i % 2],
}


def items(argument, split, options):
    assert split in ("train", "validation")
    assert isinstance(options, SourceOptions)
    return Listed([FORMS[argument](i) for i in range(len(PIXELS))])


@pytest.mark.parametrize("form", FORMS)
def test_items_are_photographs(form):
    ids = np.array([3, 0, 5])
    source = open_dataset(f"{HERE}:items:{form}", "train", SourceOptions(image_size=24))
    images, labels, _ = source.read_centres(ids)
    np.testing.assert_array_equal(labels, [1, 0, 1])
    side = round(0.875 * 40)
    top, left = (40 - side) // 2, (50 - side) // 2
    expected = resize(PIXELS[0][top : top + side, left : left + side], (24, 24), "linear")
    np.testing.assert_array_equal(images[1], expected)
    assert source.source.where(2).endswith(", example 2")
    assert is_photographs(f"{HERE}:items")
    assert class_counts(source.source) is None


def grey(argument, split, options):
    listed = Listed([(PIXELS[0][..., 0], 0), (PIXELS[0][..., :1], 1)])
    listed.mean, listed.std = (100.0, 101.0, 102.0), (50.0, 51.0, 52.0)
    listed.labels = [0, 1]
    return listed


def test_grey_images_and_own_statistics():
    source = open_dataset(f"{HERE}:grey", "validation", SourceOptions(image_size=8))
    images, labels, _ = source.read_centres(np.arange(2))
    np.testing.assert_array_equal(images[0], images[1])
    np.testing.assert_array_equal(images[..., 0], images[..., 2])
    np.testing.assert_array_equal(labels, [0, 1])
    assert (source.mean, source.std) == ((100.0, 101.0, 102.0), (50.0, 51.0, 52.0))
    assert class_counts(source.source) == (1, 1)


def plain(argument, split, options):
    source = Labels([0, 0, 0])
    source.name = argument
    source.describe = lambda: "mine"
    return source


def test_a_source_is_used_as_it_is():
    source = open_dataset(f"{HERE}:plain:a:b/c", "train")
    assert (source.name, source.image_shape, source.describe()) == ("a:b/c", (2, 2, 1), "mine")
    assert source.read_crops(np.arange(3), seed=0, epochs=np.zeros(3)).images.shape == (3, 2, 2, 1)
    assert source.read_centres(np.arange(2), (6, 8)).images.shape == (2, 6, 8, 1)


BAD_ITEMS = {
    "floats": (PIXELS[0].astype(float), 0),
    "label": (PIXELS[0], 2),
    "negative": (PIXELS[0], -1),
    "fraction": (PIXELS[0], 0.5),
    "channels": (np.zeros((4, 4, 2), np.uint8), 0),
    "empty": (PIXELS[0][:0], 0),
    "alone": (PIXELS[0],),
}
BAD_READS = {
    "one for many": ([PIXELS[0]] * 2, [0, 1]),
    "two labels": ([PIXELS[0]], [0, 1]),
}


def bad(argument, split, options):
    made = Listed([BAD_ITEMS.get(argument)])
    if argument in BAD_READS:
        made.read = lambda ids: BAD_READS[argument]
    return made


@pytest.mark.parametrize("name", [*BAD_ITEMS, *BAD_READS])
def test_a_bad_item_is_named(name):
    source = open_source(f"{HERE}:bad:{name}", "train")
    with pytest.raises(DataError, match=rf"{name}.*;"):
        source.read(np.array([0]))


def test_the_example_of_the_page_is_read(tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    (code,) = re.findall(r"```python\n# my_data\.py\n(.*?)```", page, re.DOTALL)
    (tmp_path / "my_data.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (spec,) = re.findall(r"--config\.data\.source=(my_data:\S+)", page)
    source = open_dataset(spec, "train", SourceOptions(image_size=16))
    assert source.read_centres(np.arange(3)).images.shape == (3, 16, 16, 3)


def failing(argument, split, options):
    raise KeyError("no\nsuch")


def nothing(argument, split, options):
    return None


@pytest.mark.parametrize(
    ("spec", "error", "word"),
    [
        (f"{HERE}:failing", DataError, "KeyError"),
        (f"{HERE}:nothing", DataError, "classes, __len__"),
        (f"{HERE}:item", ConfigError, "'items'"),
        ("folder:/nowhere:with:colon", DataError, "/nowhere:with:colon"),
    ],
)
def test_a_wrong_factory_is_named(spec, error, word):
    with pytest.raises(error, match=word) as caught:
        open_dataset(spec, "train")
    assert "\n" not in str(caught.value)
