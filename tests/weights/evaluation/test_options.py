"""Options come from the flags, then from the run, then from the weights."""

import dataclasses

import pytest

from largebatch.config import freeze
from largebatch.errors import ConfigError, DataError
from largebatch.weights.evaluation.options import (
    label_smoothing,
    open_images,
    with_flags,
)
from tests.weights.evaluation import cases

RUN = freeze(
    {
        "model": {"dtype": "bfloat16"},
        "data": {
            "source": "folder:own",
            "image_size": 20,
            "evaluation_size": 24,
            "evaluation_flip": True,
            "rectangular": True,
            "data_dir": "sets",
            "max_unreadable": 0.2,
            "examples": 7,
        },
        "loss": {"label_smoothing": 0.3},
    }
)
OF = dataclasses.replace(cases.weights(data="folder:own", evaluation_crop=0.9), options=RUN)


def test_a_run_is_evaluated_as_in_training():
    weights, found = with_flags(OF, {"crop": None})
    assert found == dataclasses.replace(
        RUN, data=dataclasses.replace(RUN.data, evaluation_crop=0.9)
    )
    assert label_smoothing(found) == 0.3
    assert (weights.mean, weights.std) == (OF.mean, OF.std)


def test_other_data_are_opened_at_the_size_of_evaluation():
    _, found = with_flags(OF, {"source": "folder:other"})
    data = found.data
    assert (data.source, data.evaluation_size, data.image_size) == ("folder:other", 24, 24)
    assert data.examples == 0
    assert data.evaluation_flip


def test_class_folders_without_splits_are_evaluated(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.png").write_bytes(b"x")
    found = with_flags(OF, {"source": f"folder:{tmp_path}"})
    assert open_images(*found, "validation", ()).classes == ("a", "b")


def test_flags_come_first():
    flags = {"image_size": 64, "crop": 1.0, "resampling": "antialias", "flip": False}
    flags |= {"mean": (1.0, 2.0, 3.0), "std": (4.0, 5.0, 6.0), "dtype": "float32"}
    flags |= {"data_dir": "elsewhere", "max_unreadable": 0.0}
    weights, found = with_flags(OF, flags)
    data = found.data
    assert (data.evaluation_size, data.image_size) == (64, 64)
    assert (data.evaluation_crop, data.resampling) == (1.0, "antialias")
    assert (weights.mean, weights.std) == ((1.0, 2.0, 3.0), (4.0, 5.0, 6.0))
    assert (data.evaluation_flip, found.model.dtype, data.max_unreadable) == (False, "float32", 0.0)
    assert data.data_dir == "elsewhere"


@pytest.mark.parametrize(
    ("flags", "flag"),
    [({"mean": (1.0,)}, "--mean"), ({"mean": (0.485, 0.456, 0.406)}, r"--mean=123\.675,116\.28,")],
)
def test_mistakes(flags, flag):
    with pytest.raises(ConfigError, match=flag):
        with_flags(OF, flags)


def test_weights_without_a_run():
    grey = cases.weights(image_shape=(8, 8, 1), mean=(70.0,), std=(90.0,))
    _, found = with_flags(grey, {"source": "folder:x"})  # one channel sees the complete image
    assert (found.data.evaluation_crop, found.data.resampling) == (1.0, "antialias")
    assert label_smoothing(found) == 0.0
    with pytest.raises(DataError, match="--source"):
        open_images(*with_flags(cases.weights(), {}), "validation", ())
    with pytest.raises(ConfigError, match="--image_size"):
        with_flags(cases.weights(image_shape=(24, 32, 3)), {})
