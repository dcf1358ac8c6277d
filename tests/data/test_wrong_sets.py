"""Wrong, incomplete and damaged datasets are refused when they are opened, with the fix."""

import shutil
from pathlib import Path

import pytest
from PIL import Image

from largebatch.config.facts import KNOWN_SETS, KnownSet
from largebatch.data import SourceOptions, identity, open_source
from largebatch.data.open import facts_of
from largebatch.data.prepare import names
from largebatch.data.prepare.run import Options, prepare
from largebatch.data.sources import holds, nearby
from tests.data import decoded_stores, stores
from tests.data.prepare import fakes

SHARDS = "birds-{split}.array_record-{{i:05}}-of-{{n:05}}"


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """One dataset of each kind, in `folder`, `tfds`, `arrayrecord`, `decoded` and `imagenet`."""
    root = tmp_path_factory.mktemp("sets")
    for path in ("train/a/1", "train/b/2", "val/a/3", "val/b/4"):
        place = root / "folder" / f"{path}.JPEG"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 8)).save(place)
    pairs = {"train": stores.pictures(6, 3), "validation": stores.pictures(3, 3, first=50)}
    stores.prepare(root / "tfds", pairs, ["cat", "dog", "eel"], shards=2)
    for split, found in pairs.items():
        examples = [stores.example(*pair) for pair in found]
        pattern = SHARDS.format(split=split)
        stores.write_shards(root / "arrayrecord" / "deep", pattern, examples, 2)
    (root / "arrayrecord" / "deep" / "labels.txt").write_text("cat\ndog\neel\n")
    (root / "decoded").mkdir()
    decoded_stores.make(root / "decoded" / "store")
    tars = fakes.write_tars(root / "tars")
    prepare(Options(out=root / "imagenet", tars=tars, partial=True, shards=2), lambda line: None)
    return root


@pytest.fixture
def own(sets, tmp_path):
    """A copy that a test may change."""
    for name in ("folder", "tfds", "arrayrecord", "decoded", "imagenet"):
        shutil.copytree(sets / name, tmp_path / name)
    return tmp_path


PETS = "tfds/pets/1.0.0"
IMAGENET = "imagenet/imagenet2012/5.1.0"


def removed(*paths):
    def spoil(root):
        for path in paths:
            for found in sorted(root.glob(path)):
                shutil.rmtree(found) if found.is_dir() else found.unlink()

    return spoil


def moved(path, to):
    return lambda root: (root / path).rename(root / to)


def copied(path, to):
    return lambda root: shutil.copy(next(root.glob(path)), next(root.glob(to)))


def cut(path):
    def spoil(root):
        found = next(root.glob(path))
        found.write_bytes(found.read_bytes()[:-1000])

    return spoil


def edited(path, change):
    return lambda root: stores.edit(root / path, change)


def relabelled(path, order):
    def spoil(root):
        lines = (root / path).read_text().split()
        (root / path).write_text("\n".join(order(lines)) + "\n")

    return spoil


def swapped(lines):
    lines[3], lines[4] = lines[4], lines[3]
    return lines


def untouched(root):
    pass


NOTHING = {}
FOLDER = "folder:{root}/folder"
DEEP = "arrayrecord:{root}/arrayrecord/deep"
STORE = "decoded:{root}/decoded/store"
IN_PART = {"data_dir": "{root}/imagenet", "examples": 30}
RIGHT_FOLDER = "write folder:{root}/folder"
RIGHT_DIRECTORY = "set data.data_dir={root}/tfds"
SHARD = "pets-train.array_record-00001-of-00002"

# The damage, the specification, the options, and parts of the message in their order.
TABLE = {
    "folder absent": (untouched, "folder:{root}/foldr/x", NOTHING, "does not exist", "correct"),
    "folder misspelt": (untouched, "folder:{root}/foldr", NOTHING, "does not exist", RIGHT_FOLDER),
    "folder one level too high": (
        untouched, "folder:{root}", NOTHING, "no folder train in {root}", "5 entries", RIGHT_FOLDER
    ),
    "folder one level too low": (
        untouched, "folder:{root}/folder/train", NOTHING, "2 entries: a, b", RIGHT_FOLDER
    ),
    "folder two levels too low": (
        untouched, "folder:{root}/folder/train/a", NOTHING, "1 entries: 1.JPEG", RIGHT_FOLDER
    ),
    "folder without the split": (
        removed("folder/train"), FOLDER, NOTHING, "no folder train", "entries: val", "put the train"
    ),
    "folder with an empty split": (
        removed("folder/train/*"), FOLDER, NOTHING, "{root}/folder/train has no class", "is empty"
    ),
    "folder without images": (
        removed("folder/train/*/*"), FOLDER, NOTHING, "{root}/folder/train: 2 of 2", "e.g. a"
    ),
    "folder of other classes": (
        moved("folder/val/b", "folder/val/c"), FOLDER, NOTHING, "1 is in train alone, e.g. b"
    ),
    "other number of examples": (
        untouched, FOLDER, {"examples": 3}, "data.examples: expected 0 or 2", "got 3"
    ),
    "other number of classes": (
        untouched, "tfds:pets", {"classes": 4}, "data.classes: expected 0 or 3", "got 4"
    ),
    "tfds absent": (
        removed("tfds"), "tfds:pets", NOTHING, "no 'pets' in {root}/tfds; does not exist",
        "set data.data_dir", "data.source=folder:PATH",
    ),
    "tfds within the version": (
        untouched, "tfds:pets", {"data_dir": "{root}/" + PETS}, "no 'pets'", RIGHT_DIRECTORY
    ),
    "tfds within the set": (
        untouched, "tfds:pets", {"data_dir": "{root}/tfds/pets"}, "known: 1.0.0", RIGHT_DIRECTORY
    ),
    "tfds too high": (
        untouched, "tfds:pets", {"data_dir": "{root}"}, "arrayrecord, decoded", RIGHT_DIRECTORY
    ),
    "tfds of another version": (
        untouched, "tfds:pets:2.0.0", NOTHING, "{root}/tfds/pets has 1.0.0 but not 2.0.0"
    ),
    "tfds without the split": (
        edited(f"{PETS}/dataset_info.json", lambda info: info["splits"].pop(0)),
        "tfds:pets", NOTHING, "no examples", "train", "validation (3)",
    ),
    "tfds with an empty split": (
        edited(
            f"{PETS}/dataset_info.json",
            lambda info: info["splits"][0].update(shardLengths=["0"], numBytes="0"),
        ),
        "tfds:pets", NOTHING, "no examples", "train (0), validation (3)",
    ),
    "tfds lacks a shard": (
        removed(f"{PETS}/{SHARD}"), "tfds:pets", NOTHING, f"lacks {SHARD} of 2 shards"
    ),
    "tfds lacks records": (
        copied(f"{PETS}/*validation*-00000-*", f"{PETS}/*train*-00001-*"),
        "tfds:pets", NOTHING, f"{SHARD} holds 2 records", "3",
    ),
    "tfds cut off": (
        cut(f"{PETS}/*train*-00001-*"), "tfds:pets", NOTHING, SHARD, "ArrayRecord file: "
    ),
    "tfds without labels": (
        edited(f"{PETS}/features.json", lambda x: x["featuresDict"]["features"].pop("label")),
        "tfds:pets", NOTHING, "0 ClassLabel features (file_name, image)", "'label'",
    ),
    "imagenet in part": (
        untouched, "tfds:imagenet2012", {"data_dir": "{root}/imagenet"},
        "{root}/" + IMAGENET + " has 30 train", "1,281,167", "data.examples=30",
    ),
    "imagenet in another order": (
        relabelled(f"{IMAGENET}/label.labels.txt", swapped), "tfds:imagenet2012", IN_PART,
        f"number 3 {names.classes()[4]!r} and {names.classes()[3]!r}", "label.labels.txt",
    ),
    "imagenet with fewer names": (
        relabelled(f"{IMAGENET}/label.labels.txt", lambda lines: lines[:-1]),
        "arrayrecord:{root}/" + IMAGENET, {"examples": 30}, "999 and 1,000 classes",
    ),
    "array records absent": (
        untouched, "arrayrecord:{root}/arrayrecord/dep", NOTHING, "no directory", "write " + DEEP
    ),
    "array records too high": (
        untouched, "arrayrecord:{root}/arrayrecord", NOTHING, "['deep']", "write " + DEEP
    ),
    "array records without the split": (
        removed("arrayrecord/deep/*train*"), DEEP, NOTHING, "train: it holds 2 of validation"
    ),
    "array records that lack one": (
        removed("arrayrecord/deep/*train*-00000-*"), DEEP, NOTHING,
        "lacks birds-train.array_record-00000-of-00002 of 2 shards",
    ),
    "array records of unknown classes": (
        removed("arrayrecord/deep/labels.txt"), DEEP, NOTHING, "labels.txt", "data.classes"
    ),
    "store absent": (
        removed("decoded/store"), STORE, NOTHING, "{root}/decoded/store/index.json is absent"
    ),
    "store too high": (
        untouched, "decoded:{root}/decoded", NOTHING, "1 entries: store", "write " + STORE
    ),
    "store of another layout": (
        edited("decoded/store/index.json", lambda index: index.update(version=2)),
        STORE, NOTHING, "{root}/decoded/store/index.json", "'version': 1", "'version': 2",
    ),
    "store without the split": (
        edited("decoded/store/index.json", lambda index: index["splits"].pop("train")),
        STORE, NOTHING, "{root}/decoded/store has no train images, only validation",
    ),
    "store of smaller images": (
        untouched, STORE, {"image_size": 64}, "48×48", "data.image_size=64", "data.image_size=48"
    ),
    "store of smaller images than by default": (
        untouched, STORE, NOTHING, "data.image_size=224 (the default)", "data.image_size=48 or less"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TABLE)
def test_a_wrong_set_is_refused_when_it_is_opened(own, case):
    spoil, spec, options, *parts = TABLE[case]
    spoil(own)
    options = {"data_dir": "{root}/tfds"} | options
    options["data_dir"] = options["data_dir"].format(root=own)
    said = stores.complaint(open_source, spec.format(root=own), "train", SourceOptions(**options))
    assert "\n" not in said
    at = 0
    for part in parts:
        part = part if "{'" in part else part.replace("{root}", str(own))
        assert part in said[at:], f"{part!r} is not in {said!r}"
        at = said.index(part, at) + len(part)


def test_the_same_sets_are_opened_without_damage(sets):
    for spec, options in (
        (f"folder:{sets}/folder", {}),
        ("tfds:pets", {"data_dir": f"{sets}/tfds"}),
        (f"arrayrecord:{sets}/arrayrecord/deep", {}),
        (f"decoded:{sets}/decoded/store", {"image_size": 48}),
        ("tfds:imagenet2012", {"data_dir": f"{sets}/imagenet", "examples": 30}),
    ):
        for split in ("train", "validation"):
            assert len(open_source(spec, split, SourceOptions(**options))) > 0


def test_a_validation_split_in_part_is_refused_too(sets, monkeypatch):
    options = SourceOptions(data_dir=f"{sets}/imagenet")
    said = stores.complaint(open_source, "tfds:imagenet2012", "validation", options)
    assert "10 validation" in said
    assert "data.examples=30" in said
    # A set with the published counts needs no option.
    monkeypatch.setitem(KNOWN_SETS, "tfds:pets", KnownSet(6, 3, 3, 224))
    assert len(open_source("tfds:pets", "train", SourceOptions(data_dir=f"{sets}/tfds"))) == 6


def test_splits_of_other_classes_are_refused(sets):
    train = open_source(f"folder:{sets}/folder", "train")
    validation = open_source("tfds:pets", "validation", SourceOptions(data_dir=f"{sets}/tfds"))
    said = stores.complaint(facts_of, train, validation, 1, 1)
    assert "2 and 3 classes, number 0 'a' and 'cat'" in said


def test_nearby_directories_are_proposed(tmp_path):
    wanted = tmp_path / "x" / "y" / "set"
    wanted.mkdir(parents=True)

    def fits(path):
        return Path(path) == wanted

    assert nearby(str(wanted / "a" / "b"), fits) == str(wanted)
    assert nearby(str(wanted.parent), fits) == str(wanted)
    assert nearby(str(wanted.parent / "st"), fits) == str(wanted)
    assert nearby(str(tmp_path / "x"), fits) is None  # two levels too high
    assert nearby("/", lambda path: False) is None
    assert holds(str(wanted)) == "is empty"
    (wanted / "file").touch()
    assert holds(str(wanted / "file")) == "cannot be listed (Not a directory)"


def test_a_set_that_has_changed_has_another_identity(own, tmp_path_factory):
    """With the same number of examples and classes, in any directory."""
    specs = {
        "folder": "folder:{}/folder",
        "arrayrecord": "arrayrecord:{}/arrayrecord/deep",
        "decoded": "decoded:{}/decoded/store",
        "tfds": "tfds:pets",
    }

    def identities(root):
        options = SourceOptions(image_size=48, data_dir=f"{root}/tfds")
        return {
            kind: identity(open_source(spec.format(root), "train", options))
            for kind, spec in specs.items()
        }

    before = identities(own)
    assert len(set(before.values())) == len(specs)
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "sets"
    shutil.copytree(own, elsewhere)
    assert identities(elsewhere) == before
    moved("folder/train/a/1.JPEG", "folder/train/a/0.JPEG")(own)
    relabelled("arrayrecord/deep/labels.txt", lambda lines: lines[::-1])(own)
    stores.edit(
        own / "decoded/store/index.json",
        lambda index: index["splits"]["train"][0].update(sha256="0" * 64),
    )
    relabelled(f"{PETS}/label.labels.txt", lambda lines: lines[::-1])(own)
    after = identities(own)
    assert all(after[kind] != before[kind] for kind in specs)
    digits = [open_source("digits", split) for split in ("train", "validation", "train")]
    assert identity(digits[0]) == identity(digits[2]) != identity(digits[1])
