import pytest

from largebatch.data.prepare import names
from largebatch.errors import DataError


def test_classes_are_those_of_tfds_in_its_order():
    import tensorflow_datasets as tfds

    labels = tfds.core.tfds_path("datasets/imagenet2012/labels.txt")
    assert names.classes() == tuple(tfds.features.ClassLabel(names_file=labels).names)
    assert len(set(names.classes())) == 1000


def test_validation_labels_are_numbered_by_the_image():
    # As image-net.org's ground truth begins: a sea snake, an alp, a Shetland sheepdog.
    found = [names.image_label(f"ILSVRC2012_val_{i:08d}.JPEG", "here") for i in (1, 2, 3)]
    assert [names.classes()[label] for label in found] == ["n01751748", "n09193705", "n02105855"]
    assert names.image_label("ILSVRC2012_val_00050000.JPEG", "here") in range(1000)


@pytest.mark.parametrize(
    "name",
    [
        "n01440764_10026.jpeg",
        "n01440764_10026.JPEG\n",
        "n01440764_１.JPEG",
        "../n01440764_10026.JPEG",
        "n01440765_10026.JPEG",  # no such class
        "ILSVRC2012_val_00000000.JPEG",
        "ILSVRC2012_val_00050001.JPEG",
        "",
    ],
)
def test_other_names_are_refused(name):
    with pytest.raises(DataError, match="somewhere: "):
        names.image_label(name, "somewhere")


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("ILSVRC2012_val_00000001.JPEG", (("train",),)),
        ("n01440764_1.JPEG", (("validation",),)),
        ("n01440764_1.JPEG", (names.SPLITS, 1)),
    ],
)
def test_images_of_another_split_or_class_are_refused(name, arguments):
    with pytest.raises(DataError, match=name):
        names.image_label(name, "a tar", *arguments)
