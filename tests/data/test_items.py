"""Users' own data: by item, as records or as a source."""

import io
import re
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from PIL import Image

from largebatch.config import load
from largebatch.data.dataset import open_dataset
from largebatch.data.images import resize
from largebatch.data.source import SourceOptions, class_counts, is_photographs, open_source
from largebatch.errors import ConfigError, DataError
from largebatch.tracking import read_rows
from largebatch.training.session import Request, run

HERE = __name__
PAGE = Path(__file__).parents[2] / "docs" / "data.md"
PIXELS = [
    np.random.default_rng(i).integers(0, 256, (40 + i, 50, 3)).astype(np.uint8) for i in range(6)
]


def png(pixels):
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


class Listed:
    classes = ("a", "b")

    def __init__(self, items):
        self.items = items

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


class Floats(Listed):
    def __init__(self, *args):
        levels = PIXELS[0][..., 0].astype(np.float32)
        pages = [levels / 255, levels * 1000]
        super().__init__([(Image.fromarray(page), at) for at, page in enumerate(pages)])


def test_images_of_pillow_are_scaled_or_counted():
    source = open_dataset(f"{HERE}:Floats", "train", SourceOptions(image_size=40))
    images, _, corrupt = source.read_centres(np.arange(2))
    assert images[0].max() > 200
    assert corrupt.tolist() == [1]
    assert "values from" in source.explain(1)[1]


@pytest.mark.parametrize("form", FORMS)
def test_items_are_photographs(form):
    options = SourceOptions(image_size=24)
    ids = np.array([3, 0, 5])
    source = open_dataset(f"{HERE}:items:{form}", "train", options)
    images, labels, _ = source.read_centres(ids, (24, 24))
    assert (images.shape, images.dtype) == ((3, 24, 24, 3), np.uint8)
    np.testing.assert_array_equal(labels, [1, 0, 1])
    side = round(0.875 * 40)
    top, left = (40 - side) // 2, (50 - side) // 2
    expected = resize(PIXELS[0][top : top + side, left : left + side], (24, 24), "linear")
    np.testing.assert_allclose(images[1].astype(int), expected.astype(int), atol=30)
    plain = open_dataset(f"{HERE}:items:array", "train", options)
    for one, other in zip(source.read_centres(ids), plain.read_centres(ids), strict=True):
        np.testing.assert_array_equal(one, other)
    crops = [s.read_crops(ids, seed=1, epochs=np.array([0, 1, 2])) for s in (source, plain)]
    np.testing.assert_array_equal(crops[0][0], crops[1][0])
    assert open_source(f"{HERE}:items:{form}", "train", options).where(2).endswith(", example 2")
    assert is_photographs(f"{HERE}:items")


def grey(argument, split, options):
    listed = Listed([(PIXELS[0][..., 0], 0), (PIXELS[0][..., :1], 1)])
    listed.mean, listed.std = (100.0, 101.0, 102.0), (50.0, 51.0, 52.0)
    return listed


def test_grey_images_and_own_statistics():
    source = open_dataset(f"{HERE}:grey", "validation", SourceOptions(image_size=8))
    images, labels, _ = source.read_centres(np.arange(2))
    np.testing.assert_array_equal(images[0], images[1])
    np.testing.assert_array_equal(images[..., 0], images[..., 2])
    np.testing.assert_array_equal(labels, [0, 1])
    assert (source.mean, source.std) == ((100.0, 101.0, 102.0), (50.0, 51.0, 52.0))


class Plain:
    """A `Source` of single-channel images."""

    classes, image_shape, mean, std = ("a", "b"), (4, 4, 1), (1.0,), (2.0,)

    def __init__(self, name):
        self.name = name

    def __len__(self):
        return 3

    def read(self, ids):
        return np.zeros((len(ids), 4, 4, 1), np.uint8), np.zeros(len(ids), np.int32)

    def describe(self):
        return self.name


def plain(argument, split, options):
    return Plain(argument)


def test_a_source_is_used_as_it_is():
    source = open_dataset(f"{HERE}:plain:a:b/c", "train")
    assert (source.name, source.image_shape) == ("a:b/c", (4, 4, 1))
    assert (source.mean, source.std, source.describe()) == ((1.0,), (2.0,), "a:b/c")
    assert source.read_crops(np.arange(3), seed=0, epochs=np.zeros(3)).images.shape == (3, 4, 4, 1)
    assert source.read_centres(np.arange(2), (6, 8)).images.shape == (2, 6, 8, 1)


BAD = {
    "floats": ((PIXELS[0].astype(float), 0), "float64"),
    "label": ((PIXELS[0], 2), "0 to 1"),
}


def bad(argument, split, options):
    return Listed([BAD[argument][0]])


@pytest.mark.parametrize("name", BAD)
def test_a_bad_item_is_named(name):
    source = open_dataset(f"{HERE}:bad:{name}", "train", SourceOptions(image_size=8))
    with pytest.raises(DataError, match=rf"{name}, example 0.*{BAD[name][1]}"):
        source.read_centres(np.array([0]))


def failing(argument, split, options):
    raise KeyError("no\nsuch")


def nothing(argument, split, options):
    return None


def unfinished(argument, split, options):
    source = Plain("x")
    return type("Unfinished", (), {k: getattr(source, k) for k in ("image_shape", "read")})()


@pytest.mark.parametrize(
    ("spec", "error", "words"),
    [
        (f"{HERE}:failing", DataError, ["KeyError"]),
        (f"{HERE}:nothing", DataError, ["NoneType", "classes"]),
        (f"{HERE}:unfinished", DataError, ["classes", "__len__"]),
        (f"{HERE}:item", ConfigError, ["data.source", "'items'"]),
        ("nowhere.at_all:x", ConfigError, ["nowhere"]),
        ("folder:/nowhere:with:colon", DataError, ["/nowhere:with:colon"]),
    ],
)
def test_a_wrong_factory_is_named(spec, error, words):
    with pytest.raises(error) as caught:
        open_dataset(spec, "train")
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.slow
def test_the_example_of_the_page_trains_alike_on_any_devices(tmp_path, monkeypatch):
    (code,) = re.findall(r"```python\n# my_data\.py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "my_data.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (spec,) = re.findall(r"--config\.data\.source=(my_data:\S+)", PAGE.read_text())
    options = {
        "data.source": spec,
        "data.image_size": "16",
        "data.shift": "0",
        "model.name": "resnet10",
        "model.width": "4",
        "batch.images_per_worker": "4",
        "schedule.length": "3 steps",
        "schedule.warmup": "1 steps",
        "run.log_every": "1 steps",
    }
    rows = []
    for devices in (1, 2):
        request = Request(Path("digits"), tmp_path / str(devices))
        run(load("digits", [*options.items()]), request, devices=jax.devices()[:devices])
        rows.append(read_rows(tmp_path / str(devices) / "metrics.jsonl"))
    assert len(rows[0]) == 3
    for one, other in zip(*rows, strict=True):
        assert one["fingerprint"] == other["fingerprint"]
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)


READS = {
    "small": ([PIXELS[0].astype(np.float32)], [0]),
    "one for many": ([PIXELS[0]] * 2, [0, 1]),
    "high label": ([PIXELS[0]], [2]),
    "float label": ([PIXELS[0]], [0.5]),
}


def reading(argument, split, options):
    made = Listed([None] * 9)
    made.read = lambda ids: READS[argument]
    return made


@pytest.mark.parametrize("name", READS)
def test_a_bad_read_is_refused(name):
    source = open_source(f"{HERE}:reading:{name}", "train")
    with pytest.raises(DataError, match=r"expected"):
        source.read(np.array([3]))


def labelled(argument, split, options):
    made = items("array", split, options)
    made.labels = {"known": [0, 1] * 3, "names": ["x"] * 6, "short": [0]}[argument]
    return made


@pytest.mark.parametrize("name", ["known", "names", "short"])
def test_labels_are_used_if_they_are_those_of_all_examples(name):
    source = open_source(f"{HERE}:labelled:{name}", "train")
    assert class_counts(source) == ((3, 3) if name == "known" else None)
