"""Data sets that are not what was meant: what was found, what was expected, and what to do."""

import shutil
from pathlib import Path

import pytest
from PIL import Image

from largebatch.config.known_sets import KNOWN_SETS, KnownSet
from largebatch.data import SourceOptions, identity, open_source
from largebatch.data.nearby import holds, nearby
from largebatch.data.open import facts_of
from largebatch.data.prepare import names
from largebatch.data.prepare.run import Options, prepare
from largebatch.errors import DataError
from tests.data import decoded_stores, stores
from tests.data.prepare import fakes

SHARDS = "birds-{split}.array_record-{{i:05}}-of-{{n:05}}"


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """One set of each kind, in `folder`, `tfds`, `arrayrecord`, `decoded` and `imagenet`."""
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


# What was done to the set, the specification, options, and all of the message.
TABLE = {
    "folder absent": (
        untouched,
        "folder:{root}/foldr/x",
        {},
        "data.source: folder:{root}/foldr/x: no folder train in {root}/foldr/x, which does not "
        "exist; expected train/CLASS/*.JPEG and val/CLASS/*.JPEG; correct the path",
    ),
    "folder misspelt": (
        untouched,
        "folder:{root}/foldr",
        {},
        "…, which does not exist; expected … looks right: write folder:{root}/folder",
    ),
    "folder one level too high": (
        untouched,
        "folder:{root}",
        {},
        "data.source: folder:{root}: no folder train in {root}, which holds 5 entries: "
        "arrayrecord, decoded, folder, …; expected train/CLASS/*.JPEG and val/CLASS/*.JPEG; "
        "{root}/folder looks right: write folder:{root}/folder",
    ),
    "folder one level too low": (
        untouched,
        "folder:{root}/folder/train",
        {},
        "…which holds 2 entries: a, b; expected … {root}/folder looks right: write "
        "folder:{root}/folder",
    ),
    "folder two levels too low": (
        untouched,
        "folder:{root}/folder/train/a",
        {},
        "…which holds 1 entries: 1.JPEG; expected …; {root}/folder looks right: write folder:…",
    ),
    "folder without the split": (
        removed("folder/train"),
        "folder:{root}/folder",
        {},
        "…no folder train in {root}/folder, which holds 1 entries: val; expected …; put the train "
        "images there",
    ),
    "folder with an empty split": (
        removed("folder/train/*"),
        "folder:{root}/folder",
        {},
        "{root}/folder/train has no class folders: it is empty; move each picture into the folder "
        "of its class",
    ),
    "folder without pictures": (
        removed("folder/train/*/*"),
        "folder:{root}/folder",
        {},
        "{root}/folder/train: 2 of 2 class folders have no picture, e.g. a; fill or remove them …",
    ),
    "folder of other classes": (
        moved("folder/val/b", "folder/val/c"),
        "folder:{root}/folder",
        {},
        "{root}/folder: the splits have different classes: 1 is in train alone, e.g. b; both need "
        "the same class folders",
    ),
    "other counts than asked for": (
        untouched,
        "folder:{root}/folder",
        {"examples": 3},
        "data.examples is 3 but folder:{root}/folder has 2; set it to 0 or use another source",
    ),
    "other classes than asked for": (
        untouched,
        "tfds:pets",
        {"classes": 4},
        "data.classes is 4 but tfds:pets has 3; set it to 0 or use another source",
    ),
    "tfds absent": (
        removed("tfds"),
        "tfds:pets",
        {},
        "data.source: tfds:pets: no 'pets' in {root}/tfds; does not exist; set data.data_dir to "
        "the folder that holds pets/, or prepare it where TensorFlow is installed …"
        "data.source=folder:PATH",
    ),
    "tfds within the version": (
        untouched,
        "tfds:pets",
        {"data_dir": "{root}/" + PETS},
        "data.source: tfds:pets: no 'pets' in {root}/tfds/pets/1.0.0; holds …; {root}/tfds looks "
        "right: set data.data_dir={root}/tfds",
    ),
    "tfds within the set": (
        untouched,
        "tfds:pets",
        {"data_dir": "{root}/tfds/pets"},
        "…; known: 1.0.0; {root}/tfds looks right: set data.data_dir={root}/tfds",
    ),
    "tfds too high": (
        untouched,
        "tfds:pets",
        {"data_dir": "{root}"},
        "…; known: arrayrecord, decoded, folder, imagenet, tfds; {root}/tfds looks right: …",
    ),
    "tfds of another version": (
        untouched,
        "tfds:pets:2.0.0",
        {},
        "data.source: tfds:pets:2.0.0: {root}/tfds/pets has 1.0.0 but not 2.0.0; name one that is "
        "there or prepare it",
    ),
    "tfds without the split": (
        edited(f"{PETS}/dataset_info.json", lambda info: info["splits"].pop(0)),
        "tfds:pets",
        {},
        "{root}/" + PETS + " has no examples to use for train: it has validation (3), and train is "
        "needed; prepare it",
    ),
    "tfds with an empty split": (
        edited(
            f"{PETS}/dataset_info.json",
            lambda info: info["splits"][0].update(shardLengths=["0"], numBytes="0"),
        ),
        "tfds:pets",
        {},
        "…has no examples to use for train: it has train (0), validation (3), and train is …",
    ),
    "tfds lacks a shard": (
        removed(f"{PETS}/pets-train.array_record-00001-of-00002"),
        "tfds:pets",
        {},
        "{root}/" + PETS + " lacks pets-train.array_record-00001-of-00002 of 2 shards; restore the "
        "files or prepare the data set anew",
    ),
    "tfds lacks records": (
        copied(f"{PETS}/*validation*-00000-*", f"{PETS}/*train*-00001-*"),
        "tfds:pets",
        {},
        "{root}/" + PETS + "/pets-train.array_record-00001-of-00002 holds 2 records, and "
        "dataset_info.json says 3; restore the file or prepare the data set anew",
    ),
    "tfds cut off": (
        cut(f"{PETS}/*train*-00001-*"),
        "tfds:pets",
        {},
        "{root}/" + PETS + "/pets-train.array_record-00001-of-00002 cannot be opened as an "
        "ArrayRecord file: …; restore it or prepare the data set anew",
    ),
    "tfds without labels": (
        edited(f"{PETS}/features.json", lambda x: x["featuresDict"]["features"].pop("label")),
        "tfds:pets",
        {},
        "{root}/" + PETS + " has 0 ClassLabel features (file_name, image); one is needed, or one "
        "named 'label'; use another set",
    ),
    "imagenet in part": (
        untouched,
        "tfds:imagenet2012",
        {"data_dir": "{root}/imagenet"},
        "{root}/" + IMAGENET + " has 30 train examples, and imagenet2012 has 1,281,167; finish its "
        "preparation, or set data.examples=30 if a part of it is meant",
    ),
    "imagenet in another order": (
        relabelled(f"{IMAGENET}/label.labels.txt", swapped),
        "tfds:imagenet2012",
        {"data_dir": "{root}/imagenet", "examples": 30},
        "{root}/" + IMAGENET + " and imagenet2012 as published have 1,000 and 1,000 classes, "
        f"number 3 {names.classes()[4]!r} and {names.classes()[3]!r}; restore label.labels.txt or "
        "prepare the data set anew",
    ),
    "imagenet with fewer names": (
        relabelled(f"{IMAGENET}/label.labels.txt", lambda lines: lines[:-1]),
        "arrayrecord:{root}/" + IMAGENET,
        {"examples": 30},
        "{root}/" + IMAGENET + " and imagenet2012 as published have 999 and 1,000 classes; restore "
        "label.labels.txt or prepare the data set anew",
    ),
    "array records absent": (
        untouched,
        "arrayrecord:{root}/arrayrecord/dep",
        {},
        "data.source: arrayrecord:{root}/arrayrecord/dep: no directory {root}/arrayrecord/dep; "
        "{root}/arrayrecord/deep looks right: write arrayrecord:{root}/arrayrecord/deep",
    ),
    "array records too high": (
        untouched,
        "arrayrecord:{root}/arrayrecord",
        {},
        "{root}/arrayrecord has no ArrayRecord files of train: it holds 1 other entries, such as "
        "['deep']; expected e.g. train.array_record-00000-of-00004; {root}/arrayrecord/deep looks "
        "right: write arrayrecord:{root}/arrayrecord/deep",
    ),
    "array records without the split": (
        removed("arrayrecord/deep/*train*"),
        "arrayrecord:{root}/arrayrecord/deep",
        {},
        "{root}/arrayrecord/deep has no ArrayRecord files of train: it holds 2 of validation; "
        "expected e.g. train.array_record-00000-of-00004; add them",
    ),
    "array records that lack one": (
        removed("arrayrecord/deep/*train*-00000-*"),
        "arrayrecord:{root}/arrayrecord/deep",
        {},
        "{root}/arrayrecord/deep lacks birds-train.array_record-00000-of-00002 of 2 shards; …",
    ),
    "array records of unknown classes": (
        removed("arrayrecord/deep/labels.txt"),
        "arrayrecord:{root}/arrayrecord/deep",
        {},
        "{root}/arrayrecord/deep does not say how many classes there are; write labels.txt, one …",
    ),
    "store absent": (
        removed("decoded/store"),
        "decoded:{root}/decoded/store",
        {},
        "{root}/decoded/store/index.json is absent: this is no decoded store or an unfinished one; "
        "correct the path or run its preparation to the end",
    ),
    "store too high": (
        untouched,
        "decoded:{root}/decoded",
        {},
        "{root}/decoded/index.json is absent: {root}/decoded holds 1 entries: store; "
        "{root}/decoded/store looks right: write decoded:{root}/decoded/store",
    ),
    "store of another layout": (
        edited("decoded/store/index.json", lambda index: index.update(version=2)),
        "decoded:{root}/decoded/store",
        {},
        "{root}/decoded/store/index.json says {{'format': 'largebatch decoded images', 'version': "
        "2}} but {{'format': 'largebatch decoded images', 'version': 1}} is read; prepare the "
        "store anew",
    ),
    "store without the split": (
        edited("decoded/store/index.json", lambda index: index["splits"].pop("train")),
        "decoded:{root}/decoded/store",
        {},
        "{root}/decoded/store has no train images, only validation; prepare that split too",
    ),
    "store of smaller pictures": (
        untouched,
        "decoded:{root}/decoded/store",
        {"image_size": 64},
        "{root}/decoded/store holds pictures of 48×48, fewer pixels than data.image_size=64; set "
        "data.image_size=48 or less, or prepare a store with --size 64",
    ),
    "store of smaller pictures than is usual": (
        untouched,
        "decoded:{root}/decoded/store",
        {},
        "…fewer pixels than data.image_size=224 (the default); set data.image_size=48 or less, …",
    ),
}


@pytest.mark.parametrize("case", TABLE)
def test_a_wrong_set_is_refused_when_it_is_opened(own, case):
    spoil, spec, options, expected = TABLE[case]
    spoil(own)
    options = {"data_dir": "{root}/tfds"} | options
    options["data_dir"] = options["data_dir"].format(root=own)
    with pytest.raises(DataError) as caught:
        open_source(spec.format(root=own), "train", SourceOptions(**options))
    said = str(caught.value)
    assert "\n" not in said
    at = 0
    for part in expected.format(root=own).split("…"):
        assert part in said[at:], f"{part!r} is not in {said!r}"
        at = said.index(part, at) + len(part)
    assert at == len(said) or expected.endswith("…")
    assert said.startswith(expected.format(root=own).split("…")[0])


def test_the_same_sets_are_opened_where_nothing_is_wrong(sets):
    """So the refusals above are of what was done to them."""
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
    assert "has 10 validation examples, and imagenet2012 has 50,000; finish its" in said
    assert said.endswith("set data.examples=30 if a part of it is meant")
    # A set whose counts are those that are known needs no word.
    monkeypatch.setitem(KNOWN_SETS, "tfds:pets", KnownSet(6, 3, 3, 224))
    assert len(open_source("tfds:pets", "train", SourceOptions(data_dir=f"{sets}/tfds"))) == 6


def test_splits_of_other_classes_do_not_belong_together(sets):
    train = open_source(f"folder:{sets}/folder", "train")
    validation = open_source("tfds:pets", "validation", SourceOptions(data_dir=f"{sets}/tfds"))
    said = stores.complaint(facts_of, train, validation, 1, 1)
    assert said == (
        f"folder:{sets}/folder: training and validation have 2 and 3 classes, number 0 'a' and "
        "'cat'; prepare both alike"
    )


def test_a_glance_is_no_search(tmp_path):
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
    """With as many examples and classes as before, wherever it lies."""
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
