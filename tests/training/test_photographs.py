"""Whole runs on photographs, read from files."""

import shutil

import jax
import numpy as np
import pytest
from PIL import Image

from largebatch.errors import CheckpointError
from largebatch.tracking import Console
from largebatch.training.evaluation import evaluate, precise_statistics
from tests.training import worlds

CLASSES = ("ant", "bee", "cow", "dog")
TRAIN, VALIDATION, STEPS = 37, 11, 4


def pictures(count, seed):
    """Pictures of several shapes whose colours tell their class."""
    draw = np.random.default_rng(seed)
    for index in range(count):
        height, width = draw.integers(36, 90, 2)
        label = index % len(CLASSES)
        colour = np.array([60 * label, 255 - 60 * label, 120])
        pixels = np.clip(colour + draw.normal(0, 40, (height, width, 3)), 0, 255)
        yield label, Image.fromarray(pixels.astype(np.uint8))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("pictures")
    for split, count, seed in (("train", TRAIN, 0), ("val", VALIDATION, 1)):
        for index, (label, picture) in enumerate(pictures(count, seed)):
            directory = place / split / CLASSES[label]
            directory.mkdir(parents=True, exist_ok=True)
            picture.save(directory / f"{index}.jpg", quality=90)
    return f"folder:{place}"


def config(source, **options):
    made = worlds.digits(
        STEPS,
        2,
        model=worlds.SMALL | {"name": "tests.training.own_models:small_colour"},
        batch={"workers": 4, "images_per_worker": 4},
        data={"source": source, "image_size": 32, "flip": True},
    )
    return worlds.changed(made, **options)


def train(config, workdir, devices):
    worlds.train(config, workdir, devices)
    return worlds.rows(workdir)


@pytest.fixture(scope="module")
def trained(folder, tmp_path_factory):
    return train(config(folder), tmp_path_factory.mktemp("trained") / "run", 1)


def test_a_run_from_files_is_the_same_on_any_devices(folder, trained, tmp_path):
    other = train(config(folder), tmp_path / "run", 4)
    assert len(trained) == len(other) == STEPS
    for one, four in zip(trained, other, strict=True):
        assert one["fingerprint"] == four["fingerprint"]
        assert one["loss"] == pytest.approx(four["loss"], rel=1e-4)  # f32, sums in another order
    assert one["validation/top1"] == four["validation/top1"]


AUGMENT = {"augment__mixup": "0.5", "augment__cutmix": "1", "augment__erase": "0.5"}


@pytest.mark.slow
def test_an_augmented_run_is_the_same_on_any_devices(folder, trained, tmp_path):
    """With operations on the host, and erasing and mixing on the device."""
    made = config(folder, augment__policy="rand-m9-mstd0.5-inc1", **AUGMENT)
    one, four = (train(made, tmp_path / str(devices), devices) for devices in (1, 4))
    for row, other, plain in zip(one, four, trained, strict=True):
        assert row["fingerprint"] == other["fingerprint"] == plain["fingerprint"]
        assert row["loss"] == pytest.approx(other["loss"], rel=1e-4)  # as above
        assert row["loss"] != pytest.approx(plain["loss"], rel=1e-3)
    assert row["validation/top1"] == other["validation/top1"]


def test_rectangular_evaluation_is_that_of_each_picture_at_its_aspect(folder):
    # One image a worker, so that no batch mixes shapes and padding.
    wide = config(folder, data__rectangular="true", data__image_size="64")
    made = worlds.build(wide, Console(quiet=True), jax.devices()[:2]).first_stage
    state = made.init(np.int32(0))
    shapes = [view.shape for view in made.views_of_sets["validation"]]
    assert len(shapes) > 2
    result = evaluate(made, state)
    assert result.images == VALIDATION
    right, steps = 0, made.steps
    for view in made.views_of_sets["validation"]:
        images, labels, _ = made.splits.validation.read_centres(view.ids, view.shape)
        logits = steps.model.apply(state.params, state.stats, steps.objective.pixels(images))
        right += int((np.asarray(logits).argmax(-1) == labels).sum())
    assert round(result.top1 * VALIDATION) == right


def test_precise_statistics_and_a_dry_run_of_augmented_images(folder, tmp_path):
    made = config(folder, norm__statistics="precise", **AUGMENT)
    assert worlds.train(made, tmp_path / "run", dry_run=True) is None
    assert list(tmp_path.iterdir()) == []
    stage = worlds.build(made, Console(quiet=True), jax.devices()[:2]).first_stage
    state = stage.init(np.int32(0))
    assert np.isfinite(precise_statistics(stage, state, 16)["norm"]["mean"]).all()


@pytest.fixture(scope="module")
def begun(folder, tmp_path_factory):
    """A run of two steps."""
    workdir = tmp_path_factory.mktemp("begun") / "run"
    train(config(folder, run__stop_after="2 steps"), workdir, 1)
    return workdir


def same(copied):
    """Change nothing."""


def other_pixels(copied):
    first = copied / "train/ant/0.jpg"
    with Image.open(first) as picture:
        picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(first)


def other_labels(copied):
    one, other, aside = (copied / path for path in ("train/ant/0.jpg", "train/bee/1.jpg", "x.jpg"))
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


@pytest.mark.parametrize("change", [same, other_pixels, other_labels])
def test_a_resume_compares_the_images_and_not_their_path(folder, trained, begun, change, tmp_path):
    copied, workdir = tmp_path / "pictures", tmp_path / "run"
    shutil.copytree(folder.removeprefix("folder:"), copied)
    shutil.copytree(begun, workdir)
    change(copied)
    if change is same:
        found = train(config(f"folder:{copied}"), workdir, 1)
        assert [row["loss"] for row in found] == [row["loss"] for row in trained]
    else:
        with pytest.raises(CheckpointError, match=r"data\.source"):
            train(config(f"folder:{copied}"), workdir, 1)
