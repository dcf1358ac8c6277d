import io
import re

import numpy as np
import pytest
from PIL import Image

from largebatch.data import (
    Reading,
    Source,
    SourceOptions,
    evaluation_batches,
)
from largebatch.data.augment import centre_boxes, random_boxes
from largebatch.data.dataset import Dataset
from largebatch.data.feed import nearest_shapes, rectangular_views
from largebatch.data.images import Picture, resize
from largebatch.errors import ConfigError

EXAMPLES = 13
READING = Reading(threads=2, piece_bytes=24 * 24 * 3 * 3)


class Pictures(Source):
    """Records of small images of many shapes and kinds."""

    name = "images"
    classes = ("a", "b", "c")

    def __init__(self, examples=EXAMPLES, broken=None):
        draw = np.random.default_rng(5)
        self.contents = []
        for index in range(examples):
            height, width = draw.integers(30, 90, 2)
            image = Image.fromarray(draw.integers(0, 256, (height, width, 3), np.uint8))
            kind = ("RGB", "L", "CMYK", "RGB")[index % 4]
            stream = io.BytesIO()
            image.convert(kind).save(stream, "PNG" if index % 4 == 3 else "JPEG")
            self.contents.append(stream.getvalue())
        if broken is not None:
            self.contents[broken] = self.contents[broken][:-200]

    def __len__(self):
        return len(self.contents)

    def read(self, ids):
        return [self.contents[i] for i in ids], (ids % 3).astype(np.int32)

    def where(self, example):
        return f"image {example}"

    def describe(self):
        return f"images: {len(self)} train images"


def test_training_sees_random_boxes_and_evaluation_the_centre():
    chosen = {"area": (0.3, 0.5), "ratio": (0.5, 0.6)}
    source = Dataset(
        Pictures(),
        SourceOptions(
            image_size=24,
            crop_area=chosen["area"],
            crop_ratio=chosen["ratio"],
            evaluation_crop=0.8,
            resampling="antialias",
        ),
    )
    ids = np.arange(EXAMPLES)
    contents = Pictures().contents
    sizes = source.sizes(ids)
    assert sizes.tolist() == [list(Picture(c).pixels().shape[:2]) for c in contents]
    drawn = {"seed": 9, "epochs": np.full(EXAMPLES, 2)}
    for found, boxes in (
        (source.read_crops(ids, **drawn), random_boxes(sizes, **drawn, ids=ids, **chosen)),
        (source.read_centres(ids), centre_boxes(sizes, (24, 24), 0.8)),
    ):
        np.testing.assert_array_equal(found[1], ids % 3)
        for image, content, box in zip(found[0], contents, boxes, strict=True):
            top, left, height, width = box
            cut = Picture(content).pixels()[top : top + height, left : left + width]
            np.testing.assert_array_equal(image, resize(cut, (24, 24), "antialias"))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("crop_area", (0.0, 1.0)),
        ("crop_area", (0.5, 0.1)),
        ("crop_ratio", (2.0, 1.0)),
        ("evaluation_crop", 0.0),
        ("evaluation_crop", 1.1),
        ("resampling", "cubic"),
    ],
)
def test_an_impossible_option_is_named(option, value):
    with pytest.raises(ConfigError, match=rf"data\.{option}: .*{re.escape(str(value))}"):
        Dataset(Pictures(), SourceOptions(**{option: value}))


def test_shapes_follow_the_aspect():
    sizes = np.array([[375, 500], [500, 375], [300, 310], [100, 900], [900, 100], [333, 500]])
    assert nearest_shapes(sizes, 224).tolist() == [
        [224, 288],
        [288, 224],
        [224, 224],
        [224, 416],
        [416, 224],
        [224, 352],
    ]
    assert nearest_shapes(sizes, 64).tolist()[:2] == [[64, 96], [96, 64]]


@pytest.mark.parametrize("hosts", [1, 2])
def test_rectangular_evaluation_sees_every_image_once_at_its_aspect(hosts):
    source = Dataset(Pictures(), SourceOptions(image_size=64))
    views = rectangular_views(source, READING)
    assert sorted(np.concatenate([v.ids for v in views]).tolist()) == list(range(EXAMPLES))
    aspects = [v.shape[1] / v.shape[0] for v in views]
    assert aspects == sorted(aspects)
    assert len(set(aspects)) == len(aspects) > 2
    share = 8 // hosts
    seen = [
        list(evaluation_batches(source, batch=8, rows=(r, r + share), reading=READING, views=views))
        for r in range(0, 8, share)
    ]
    shapes = [[batch.images.shape[1:3] for batch in batches] for batches in seen]
    assert shapes == [shapes[0]] * hosts  # every host runs the same programs in the same order
    assert len(set(shapes[0])) == len(views)  # one program for each
    count = 0
    for parts, shape in zip(zip(*seen, strict=True), shapes[0], strict=True):
        images = np.concatenate([b.images[b.mask > 0] for b in parts])
        view = next(v for v in views if v.shape == shape)
        assert images.shape[1:3] == shape
        np.testing.assert_array_equal(
            images, source.read_centres(view.ids, shape)[0][: len(images)]
        )
        count += len(images)
    assert count == EXAMPLES
