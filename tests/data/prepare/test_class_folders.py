"""Class folders, or a tar of them, prepared without TensorFlow, and training on the result."""

import io
import tarfile

import numpy as np
import pytest
from PIL import Image

from largebatch.data import SourceOptions, open_source
from largebatch.data.prepare.class_folders import prepare_class_folders
from largebatch.errors import ConfigError, DataError
from scripts import prepare_imagenet

CLASSES = ("Ä hund", "cat", "zebra")  # the first is sorted last
OPTIONS = SourceOptions(image_size=8)


def image(seed):
    pixels = np.random.default_rng(seed).integers(0, 256, (20, 24, 3), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG")
    return stream.getvalue()


def files(splits=("train", "val"), count=8):
    return {
        f"{split}/{name}/{number}.jpg": image(100 * i + 10 * j + number)
        for i, split in enumerate(splits)
        for j, name in enumerate(CLASSES)
        for number in range(count)
    }


def folder(place, contents):
    for name, data in contents.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return place


def packed(path, contents, mode="w:gz", root="pets/"):
    with tarfile.open(path, mode) as archive:
        for name, data in contents.items():
            info = tarfile.TarInfo(root + name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def stored(directory, split):
    """Label and bytes of every image, in order, and the names of the classes."""
    source = open_source(f"arrayrecord:{directory}", split, OPTIONS)
    images, labels = source._records.read(np.arange(len(source)))
    return sorted(zip(labels.tolist(), images, strict=True)), source.classes


def expected(contents, split):
    return sorted(
        (CLASSES.index(name.split("/")[1]), data)
        for name, data in contents.items()
        if name.startswith(split)
    )


@pytest.mark.parametrize("form", ["folder", "w", "w:xz"])
def test_every_image_is_stored_with_its_class_and_no_other_file(tmp_path, form):
    contents = files()
    others = {
        "train/cat/notes.txt": b"x",
        "train/cat/._0.jpg": b"of macOS",
        "train/loose.jpg": image(2),
        "test/cat/9.jpg": image(3),  # val has precedence
    }
    if form == "folder":
        source = folder(tmp_path / "pets", contents | others)
    else:
        others["../../escaped.jpg"] = image(1)
        source = packed(tmp_path / "pets.tar", contents | others, form)
    out = prepare_class_folders(source, tmp_path / "in" / "out")
    order = sorted(CLASSES)
    for split, own in (("train", "train"), ("validation", "val")):
        found, classes = stored(out, split)
        assert classes == tuple(order)
        named = sorted((order[label], data) for label, data in found)
        wanted = sorted((CLASSES[label], data) for label, data in expected(contents, own))
        assert named == wanted
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    assert not list(tmp_path.rglob("escaped*"))


@pytest.mark.parametrize("prefix", ["train/", ""])
def test_a_share_of_each_class_becomes_validation(tmp_path, prefix):
    contents = {prefix + k.removeprefix("train/"): v for k, v in files(("train",)).items()}
    outs = [
        prepare_class_folders(source, tmp_path / name, validation=0.25)
        for name, source in {
            "a": packed(tmp_path / "p.tgz", contents, root=""),
            "b": folder(tmp_path / "p", contents),
        }.items()
    ]
    for out in outs:
        found = {split: stored(out, split)[0] for split in ("train", "validation")}
        assert [label for label, _ in found["train"]] == sorted(6 * [0, 1, 2])
        assert [label for label, _ in found["validation"]] == sorted(2 * [0, 1, 2])
        both = found["train"] + found["validation"]
        assert sorted(data for _, data in both) == sorted(contents.values())
    assert stored(outs[0], "validation") == stored(outs[1], "validation")  # chosen by name


@pytest.mark.parametrize(
    ("splits", "change", "share", "error", "word"),
    [
        (("train",), {}, 0.0, DataError, "--validation=0.1"),
        (("train", "val"), {}, 0.1, ConfigError, "--validation"),
        (("train", "val"), {}, 1.0, ConfigError, "--validation"),
        (("val",), {}, 0.0, DataError, "train/CLASS/"),
        (("train", "val"), {"train/cow/1.jpg": b"x"}, 0.0, DataError, "cow"),
        (("train", "val"), {"train/a\nb/1.jpg": b"x"}, 0.0, DataError, "a.*nb"),
        (("train",), {"train/cow/1.jpg": b"x"}, 0.1, DataError, "cow"),
        (("train", "val"), {"Valid/cow/1.jpg": b"x"}, 0.0, DataError, "Valid"),
        ((), {f"train/all/{c}/{i}.jpg": b"x" for c in "ab" for i in "12"}, 0.5, DataError, "all"),
        ((), {"readme.txt": b"x"}, 0.0, DataError, r"pets\.tgz"),
    ],
)
def test_other_sources_are_refused(tmp_path, splits, change, share, error, word):
    source = packed(tmp_path / "pets.tgz", files(splits) | change)
    with pytest.raises(error, match=word):
        prepare_class_folders(source, tmp_path / "out", validation=share)
    assert [path.name for path in tmp_path.iterdir()] == ["pets.tgz"]


def test_damaged_sources_and_existing_datasets_are_refused(tmp_path):
    whole = packed(tmp_path / "pets.tgz", files())
    (tmp_path / "cut.tgz").write_bytes(whole.read_bytes()[:20_000])
    (tmp_path / "text.tgz").write_text("404 not found")
    packed(packed(tmp_path / "twice.tar", files(), "w"), {"train/cat/1.jpg": b"x"}, "a")
    for name in ("cut.tgz", "text.tgz", "none.tgz", "twice.tar"):
        with pytest.raises(DataError, match=name):
            prepare_class_folders(tmp_path / name, tmp_path / "out")
    out = prepare_class_folders(whole, tmp_path / "out")
    with pytest.raises(DataError, match=str(out)):
        prepare_class_folders(whole, out)


@pytest.mark.parametrize("flag", ["--shorter=8", "--check=full", "--md5"])
def test_flags_of_imagenet_are_refused(tmp_path, capsys, flag):
    source = folder(tmp_path / "pets", files())
    assert prepare_imagenet.main([f"--images={source}", f"--out={tmp_path}/out", flag]) == 2
    assert flag.partition("=")[0] in capsys.readouterr().err
    assert prepare_imagenet.main(["--verify", "--validation=0.1", f"--out={tmp_path}/out"]) == 2
