import numpy as np
import pytest

from largebatch.data.dataset import Dataset, open_dataset
from largebatch.data.open import facts_of, grouped_by_class
from largebatch.data.order import fingerprint
from largebatch.data.source import Source, SourceOptions, check_class_names, own_name
from largebatch.errors import DataError


def everything(dataset):
    return dataset.source.read(np.arange(len(dataset)))


@pytest.mark.parametrize("spec", ["digits", "synthetic"])
@pytest.mark.parametrize("split", ["train", "validation"])
def test_every_source_keeps_the_protocol(spec, split):
    source = open_dataset(spec, split)
    ids = np.array([len(source) - 1, 0, 0])
    images, labels, _ = source.read_centres(ids)
    assert source.name == spec
    assert images.shape == (3, *source.image_shape)
    assert (images.dtype, labels.dtype, labels.shape) == (np.uint8, np.int32, (3,))
    assert len(source.mean) == len(source.std) == source.image_shape[2]
    alone = source.read_centres(ids[:1])
    np.testing.assert_array_equal(alone[0], images[:1])
    np.testing.assert_array_equal(alone[1], labels[:1])
    np.testing.assert_array_equal(images[1], images[2])
    images[:] = 0  # what is read belongs to the reader
    np.testing.assert_array_equal(source.read_centres(ids[:1])[0], alone[0])
    assert alone[0].any()


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
    train, validation = open_dataset("digits", "train"), open_dataset("digits", "validation")
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


@pytest.mark.parametrize(
    ("spec", "split", "sizes", "word"),
    [
        ("digit", "train", {}, "'digits'"),
        ("zzz:imagenet", "train", {}, "arrayrecord, digits"),
        ("digits", "test", {}, "train, validation"),
        ("digits", "train", {"classes": 5}, r"data\.classes: .*got 5"),
        ("synthetic", "train", {"classes": -1}, r"data\.classes: .*got -1"),
        ("synthetic:x", "train", {}, "'synthetic'"),
    ],
)
def test_mistakes_are_named(spec, split, sizes, word):
    with pytest.raises(DataError, match=word):
        open_dataset(spec, split, SourceOptions(**sizes))


def test_digits_at_another_size():
    usual = open_dataset("digits", "validation")
    larger = open_dataset("digits", "validation", SourceOptions(image_size=12))
    ids = np.arange(5)
    images, labels, _ = larger.read_centres(ids)
    assert images.shape == (5, *larger.image_shape) == (5, 12, 12, 1)
    np.testing.assert_array_equal(labels, usual.read_centres(ids)[1])
    # Interpolation keeps the mean grey of an image up to its rim; eight levels of 240.
    assert abs(images.mean((1, 2)) - usual.read_centres(ids)[0].mean((1, 2))).max() < 8
    np.testing.assert_array_equal(usual.read_centres(ids, (12, 12))[0], images)


def test_synthetic_sizes():
    assert len(open_dataset("synthetic", "train")) == 50_000
    assert len(open_dataset("synthetic", "validation")) == 10_000
    assert open_dataset("synthetic", "train").image_shape == (32, 32, 3)
    assert len(open_dataset("synthetic", "train", SourceOptions(examples=3))) == 3
    assert len(open_dataset("synthetic", "validation", SourceOptions(examples=103))) == 20
    assert len(open_dataset("synthetic", "validation", SourceOptions(examples=3))) == 1
    source = open_dataset("synthetic", "train", SourceOptions(image_size=1, classes=2))
    assert source.read_centres(np.arange(4))[0].shape == (4, 1, 1, 3)


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


class Labels(Source):
    name, classes, image_shape = "labels", ("a", "b", "c"), (2, 2, 1)

    def __init__(self, labels, known):
        self._labels = np.asarray(labels, np.int32)
        self.labels = self._labels if known else None

    def __len__(self):
        return len(self._labels)

    def read(self, ids):
        return np.zeros((len(ids), 2, 2, 1), np.uint8), self._labels[ids]


def labelled(labels, known=False):
    return Dataset(Labels(labels, known), SourceOptions())


@pytest.mark.parametrize(
    ("labels", "grouped"),
    [
        (np.repeat([2, 0, 1], 200), True),
        (np.repeat(np.arange(3), 7), True),
        (np.random.default_rng(0).integers(0, 3, 900), False),
        (np.random.default_rng(0).integers(0, 2, 900), False),
        (np.random.default_rng(0).random(900) < 0.02, False),
        (np.zeros(900), False),
        (np.arange(900) % 3, False),
        ([0], False),
        ([0, 1], False),
    ],
)
def test_the_order_of_classes_is_noticed(labels, grouped):
    for known in (False, True):
        assert grouped_by_class(labelled(labels, known)) is grouped


@pytest.mark.parametrize("classes", [(), ("images",)])
def test_a_single_class_cannot_be_learned(classes):
    source = labelled(np.zeros(9))
    source.classes = classes
    with pytest.raises(DataError, match=r"data\.source=labels: expected at least 2 classes"):
        facts_of(source, source, 1, 1)


@pytest.mark.parametrize("name", ["a\nb", "", " ", "a ", "\udce9", "a\x00", 3])
def test_class_names_that_are_no_line_of_text_are_refused(name):
    with pytest.raises(DataError, match=r"^place: .* label 1"):
        check_class_names("place", ("a", name))


def test_the_class_names_of_an_own_source_are_checked(monkeypatch):
    monkeypatch.setattr(Labels, "classes", ("a", "b\n"))
    with pytest.raises(DataError, match=r"b\\n"):
        open_dataset(f"{__name__}:factory", "train")


def factory(argument, split, options):
    return Labels([0, 1], known=False)


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["train", "valid"], "valid"),
        (["VAL", "test"], "VAL"),
        (["test"], "test"),
        (["dev"], None),
    ],
)
def test_what_a_dataset_calls_its_validation_split(names, found):
    assert own_name(names, "validation", "place") == found


def test_two_validation_splits_are_refused():
    with pytest.raises(DataError, match=r"place: .*val, valid"):
        own_name(["valid", "val"], "validation", "place")
