import io
import re

import numpy as np
import pytest
from PIL import Image

from largebatch.data import Source, SourceOptions
from largebatch.data.augment import centre_boxes, random_boxes
from largebatch.data.dataset import Dataset
from largebatch.data.feed import nearest_shapes
from largebatch.data.images import Picture, resize
from largebatch.errors import ConfigError

EXAMPLES = 13


class Pictures(Source):
    """Small image files of many shapes and kinds."""

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


def test_training_sees_random_boxes_and_evaluation_the_centre():
    chosen = {"area": (0.3, 0.5), "ratio": (0.5, 0.6)}
    options = SourceOptions(
        image_size=24,
        crop_area=chosen["area"],
        crop_ratio=chosen["ratio"],
        evaluation_crop=0.8,
        resampling="antialias",
    )
    source = Dataset(Pictures(), options)
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
        ("crop_ratio", (2.0, 1.0)),
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
