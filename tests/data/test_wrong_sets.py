"""Wrong, incomplete and damaged datasets are refused when they are opened."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from largebatch.config.facts import KNOWN_SETS, KnownSet
from largebatch.data import SourceOptions, identity, imagenet, open_dataset, open_source
from largebatch.data.open import facts_of
from largebatch.data.prepare.image_files import find_tars
from largebatch.data.prepare.run import prepare
from tests.data import stores
from tests.data.prepare import fakes

ROOT = Path(__file__).parents[2]
SHARDS = "birds-{split}.array_record-{{i:05}}-of-{{n:05}}"


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """One dataset of each kind, in `folder`, `tfds`, `arrayrecord` and `imagenet`."""
    root = tmp_path_factory.mktemp("sets")
    for path in ("train/a/1", "train/b/2", "val/a/3", "val/b/4"):
        place = root / "folder" / f"{path}.JPEG"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 8)).save(place)
    pairs = {
        "train": stores.labelled_images(6, 3),
        "validation": stores.labelled_images(3, 3, first=50),
    }
    stores.prepare(root / "tfds", pairs, ["cat", "dog", "eel"], shards=2)
    for split, found in pairs.items():
        examples = [stores.example(*pair) for pair in found]
        pattern = SHARDS.format(split=split)
        stores.write_shards(root / "arrayrecord" / "deep", pattern, examples, 2)
    (root / "arrayrecord" / "deep" / "labels.txt").write_text("cat\ndog\neel\n")
    found = find_tars(fakes.write_tars(root / "tars"), partial=True, shards=2)
    prepare(found, root / "imagenet")
    return root


@pytest.fixture
def own(sets, tmp_path):
    """A copy that a test may change."""
    for name in ("folder", "tfds", "arrayrecord", "imagenet"):
        shutil.copytree(sets / name, tmp_path / name)
    return tmp_path


PETS = "tfds/pets/1.0.0"
IMAGENET = "imagenet/imagenet2012/5.1.0"


def removed(*paths):
    def damage(root):
        for path in paths:
            for found in sorted(root.glob(path)):
                shutil.rmtree(found) if found.is_dir() else found.unlink()

    return damage


def moved(path, to):
    return lambda root: (root / path).rename(root / to)


def copied(path, to):
    """Copy a file over another one, or to a new one."""
    return lambda root: shutil.copy(next(root.glob(path)), next(root.glob(to), root / to))


def written(path, text):
    return lambda root: (root / path).write_text(text)


def cut(path):
    def damage(root):
        found = next(root.glob(path))
        found.write_bytes(found.read_bytes()[:-1000])

    return damage


def edited(path, change):
    return lambda root: stores.edit(root / path, change)


def relabelled(path, order):
    def damage(root):
        lines = (root / path).read_text().split()
        (root / path).write_text("\n".join(order(lines)) + "\n")

    return damage


def swapped(lines):
    lines[3], lines[4] = lines[4], lines[3]
    return lines


def features(change):
    """Edit the features in TFDS's metadata."""
    return edited(f"{PETS}/features.json", lambda x: change(x["featuresDict"]["features"]))


def two_images(named):
    named["photo"] = named["thumbnail"] = named.pop("image")


def floats(named):
    named["image"]["image"].update(dtype="float32", shape={"dimensions": ["-1", "-1", "1"]})


FOLDER = "folder:{root}/folder"
DEEP = "arrayrecord:{root}/arrayrecord/deep"
PARTIAL = {"data_dir": "{root}/imagenet"}
INFO = f"{PETS}/dataset_info.json"
SHARD = "pets-train.array_record-00001-of-00002"

# The damage, the specification, the options, and names and values in the message.
TABLE = {
    "folder without a path": (None, "folder", {}, "folder:PATH"),
    "folder absent": (None, "folder:{root}/foldr/x", {}, "{root}/foldr/x"),
    "folder misspelt": (None, "folder:{root}/foldr", {}, "{root}/foldr;"),
    "folder one level too low": (
        None, "folder:{root}/folder/train", {}, "train/ and val/", "data.validation_split"
    ),
    "folder one level too high": (None, "folder:{root}", {}, "no folder train in {root}"),
    "folder without the split": (removed("folder/train"), FOLDER, {}, "{root}/folder", "train"),
    "folder with an empty split": (removed("folder/train/*"), FOLDER, {}, "{root}/folder/train"),
    "folder without images": (removed("folder/train/*/*"), FOLDER, {}, "{root}/folder/train"),
    "folder of other classes": (moved("folder/val/b", "folder/val/c"), FOLDER, {}, "train", " b;"),
    "other number of examples": (None, FOLDER, {"examples": 3}, "data.examples", "got 3"),
    "other number of classes": (None, "tfds:pets", {"classes": 4}, "data.classes", "got 4"),
    "tfds of another form": (None, "tfds:pets/a/b", {}, "tfds:NAME[:CONFIG][:VERSION]"),
    "tfds absent": (removed("tfds"), "tfds:pets", {}, "{root}/tfds", "data.source=folder:PATH"),
    "tfds misspelt": (None, "tfds:pet", {}, "'pets'"),
    "tfds of a known set": (None, "tfds:imagenette", {}, "folder:imagenette2-320"),
    "tfds within the version": (
        None, "tfds:pets", {"data_dir": "{root}/" + PETS}, "data.data_dir", "pets/"
    ),
    "tfds too high": (None, "tfds:pets", {"data_dir": "{root}"}, "data.data_dir", "pets/"),
    "tfds of another version": (None, "tfds:pets:2.0.0", {}, "1.0.0", "2.0.0"),
    "tfds unfinished": (removed(INFO), "tfds:pets", {}, "{root}/" + PETS, "dataset_info.json"),
    "tfds with bad metadata": (written(INFO, "{"), "tfds:pets", {}, "{root}/" + PETS),
    "tfds in another format": (
        edited(INFO, lambda info: info.update(fileFormat="riegeli")), "tfds:pets", {}, "riegeli"
    ),
    "tfds without the split": (
        edited(INFO, lambda info: info["splits"].pop(0)), "tfds:pets", {}, "train", "validation (3)"
    ),
    "tfds with an empty split": (
        edited(INFO, lambda info: info["splits"][0].update(shardLengths=["0"], numBytes="0")),
        "tfds:pets", {}, "train (0)",
    ),
    "tfds lacks a shard": (removed(f"{PETS}/{SHARD}"), "tfds:pets", {}, SHARD),
    "tfds lacks records": (
        copied(f"{PETS}/*validation*-00000-*", f"{PETS}/*train*-00001-*"), "tfds:pets", {}, SHARD
    ),
    "tfds cut off": (cut(f"{PETS}/*train*-00001-*"), "tfds:pets", {}, SHARD),
    "tfds without labels": (features(lambda x: x.pop("label")), "tfds:pets", {}, "ClassLabel"),
    "tfds with two images": (features(two_images), "tfds:pets", {}, "photo, thumbnail"),
    "tfds with floats": (features(floats), "tfds:pets", {}, "'image'"),
    "imagenet in part": (None, "tfds:imagenet2012", PARTIAL, "1,281,167", "data.examples=30"),
    "imagenet in another order": (
        relabelled(f"{IMAGENET}/label.labels.txt", swapped),
        "tfds:imagenet2012", PARTIAL | {"examples": 30}, imagenet.classes()[4], "label.labels.txt",
    ),
    "imagenet with fewer names": (
        relabelled(f"{IMAGENET}/label.labels.txt", lambda lines: lines[:-1]),
        "arrayrecord:{root}/" + IMAGENET, {"examples": 30}, "999", "1,000",
    ),
    "array records absent": (None, "arrayrecord:{root}/gone/dep", {}, "{root}/gone/dep"),
    "array records without the split": (
        removed("arrayrecord/deep/*train*"), DEEP, {}, "train", "2 of validation"
    ),
    "array records that lack one": (
        removed("arrayrecord/deep/*train*-00000-*"), DEEP, {},
        "birds-train.array_record-00000-of-00002",
    ),
    "array records of two series": (
        copied("arrayrecord/deep/*train*-00000-*", "arrayrecord/deep/x-train.array_record"),
        DEEP, {}, "x-train.array_record",
    ),
    "array records cut off": (
        cut("arrayrecord/deep/*train*-00001-*"), DEEP, {}, "birds-train.array_record-00001-of-00002"
    ),
    "array records of unknown classes": (
        removed("arrayrecord/deep/labels.txt"), DEEP, {}, "labels.txt", "data.classes"
    ),
    "array records with an empty name": (
        written("arrayrecord/deep/labels.txt", "cat\n\ndog\n"), DEEP, {}, "labels.txt: line 2"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TABLE)
def test_a_wrong_dataset_is_refused_when_it_is_opened(own, case):
    damage, spec, options, *words = TABLE[case]
    if damage:
        damage(own)
    options = {"data_dir": "{root}/tfds"} | options
    options["data_dir"] = options["data_dir"].format(root=own)
    said = stores.complaint(open_source, spec.format(root=own), "train", SourceOptions(**options))
    for word in words:
        assert word.replace("{root}", str(own)) in said


def specifications(root):
    """Specifications and options of the valid datasets."""
    return (
        (f"folder:{root}/folder", {}),
        ("tfds:pets", {"data_dir": f"{root}/tfds"}),
        (f"arrayrecord:{root}/arrayrecord/deep", {}),
        ("tfds:imagenet2012", {"data_dir": f"{root}/imagenet", "examples": 30}),
    )


def test_valid_datasets_are_read_without_tensorflow_and_scikit_learn(sets):
    code = f"""
import sys
import numpy as np
from largebatch.data import SourceOptions, open_source
for spec, options in {specifications(sets)!r}:
    for split in "train", "validation":
        source = open_source(spec, split, SourceOptions(**options))
        source.read(np.arange(2))
assert not {{"tensorflow", "sklearn"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_a_validation_split_in_part_is_refused_too(sets, monkeypatch):
    options = SourceOptions(data_dir=f"{sets}/imagenet")
    said = stores.complaint(open_source, "tfds:imagenet2012", "validation", options)
    assert "data.examples=30" in said
    # A dataset with the published counts needs no option.
    monkeypatch.setitem(KNOWN_SETS, "tfds:pets", KnownSet(6, 3, 3, 224))
    assert len(open_source("tfds:pets", "train", SourceOptions(data_dir=f"{sets}/tfds"))) == 6


def test_splits_of_other_classes_are_refused(sets):
    train = open_dataset(f"folder:{sets}/folder", "train")
    validation = open_dataset("tfds:pets", "validation", SourceOptions(data_dir=f"{sets}/tfds"))
    assert "'cat'" in stores.complaint(facts_of, train, validation, 1, 1)


def test_a_dataset_that_has_changed_has_another_identity(own, tmp_path_factory):
    """The numbers of examples and classes stay; the directory is not a part of the identity."""

    def identities(root):
        return [
            identity(open_source(spec, "train", SourceOptions(**options)))
            for spec, options in specifications(root)[:3]
        ]

    before = identities(own)
    assert len(set(before)) == 3
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "sets"
    shutil.copytree(own, elsewhere)
    assert identities(elsewhere) == before
    moved("folder/train/a/1.JPEG", "folder/train/a/0.JPEG")(own)
    relabelled("arrayrecord/deep/labels.txt", lambda lines: lines[::-1])(own)
    relabelled(f"{PETS}/label.labels.txt", lambda lines: lines[::-1])(own)
    after = identities(own)
    assert all(a != b for a, b in zip(after, before, strict=True))
    digits = [open_source("digits", split) for split in ("train", "validation", "train")]
    assert identity(digits[0]) == identity(digits[2]) != identity(digits[1])
