"""Settings come from the flags, then from the run, then from the weights."""

import pytest

from largebatch.config import freeze
from largebatch.errors import ConfigError, DataError
from largebatch.weights.evaluation import inference
from largebatch.weights.evaluation.settings import check_source, settings_of
from tests.weights.evaluation import cases

OF = cases.weights(data="folder:own", evaluation_crop=0.9)
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
        },
        "loss": {"label_smoothing": 0.3},
    }
)


def test_a_run_is_evaluated_as_in_training():
    found = settings_of(OF, RUN, {"crop": None})
    assert (found.source, found.side, found.options.image_size) == ("folder:own", 24, 20)
    assert (found.dtype, found.flip, found.rectangular) == ("bfloat16", True, True)
    assert (found.label_smoothing, found.max_unreadable) == (0.3, 0.2)
    assert (found.options.evaluation_crop, found.options.data_dir) == (0.9, "sets")
    assert (found.mean, found.std) == (OF.mean, OF.std)


def test_other_data_are_opened_at_the_size_of_evaluation():
    found = settings_of(OF, RUN, {"source": "folder:other"})
    assert (found.source, found.side, found.options.image_size) == ("folder:other", 24, 24)
    assert found.flip


def test_class_folders_without_splits_are_evaluated(tmp_path):
    for name in ("0", "1", "10", "2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.png").write_bytes(b"x")
    found = settings_of(OF, RUN, {"source": f"folder:{tmp_path}"})
    dataset = inference.open_split(found, "validation", channels=3)
    assert dataset.classes == ("0", "1", "2", "10")
    assert dataset.source.where(3) == f"{tmp_path}/10/1.png"


def test_flags_come_first():
    flags = {
        "image_size": 64,
        "crop": 1.0,
        "resampling": "antialias",
        "mean": (1.0, 2.0, 3.0),
        "std": (4.0, 5.0, 6.0),
        "flip": False,
        "dtype": "float32",
        "data_dir": "elsewhere",
        "max_unreadable": 0.0,
    }
    found = settings_of(OF, RUN, flags)
    assert (found.side, found.options.image_size) == (64, 64)
    assert (found.options.evaluation_crop, found.options.resampling) == (1.0, "antialias")
    assert (found.mean, found.std) == ((1.0, 2.0, 3.0), (4.0, 5.0, 6.0))
    assert (found.flip, found.dtype, found.max_unreadable) == (False, "float32", 0.0)
    assert found.options.data_dir == "elsewhere"
    assert found.preprocessing()["crop"] == 1.0


def test_networks_of_one_channel_see_the_complete_image():
    grey = cases.weights(image_shape=(8, 8, 1), mean=(70.0,), std=(90.0,))
    found = settings_of(grey, None, {"source": "folder:x"})
    assert (found.options.evaluation_crop, found.options.resampling) == (1.0, "antialias")
    assert found.label_smoothing == 0.0


@pytest.mark.parametrize(
    ("flags", "flag"),
    [
        ({"image_size": 0}, "--image_size=0"),
        ({"mean": (1.0,)}, "--mean"),
        ({"std": (50.0, 50.0, 0.0)}, "--std=50,50,0"),
        ({"mean": (0.485, 0.456, 0.406)}, r"--mean=123\.675,116\.28,"),
        ({"max_unreadable": 2.0}, "--max_unreadable=2"),
    ],
)
def test_mistakes(flags, flag):
    with pytest.raises(ConfigError, match=flag):
        settings_of(OF, None, flags)


def test_weights_that_do_not_state_their_data_or_side():
    foreign = cases.weights()
    with pytest.raises(DataError, match="--source"):
        check_source(settings_of(foreign, None, {}), foreign, ())
    with pytest.raises(ConfigError, match="--image_size"):
        settings_of(cases.weights(image_shape=(24, 32, 3)), None, {})
