"""Writing, interruption, and the check of a dataset."""

import errno
import io
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from largebatch.data import SourceOptions, imagenet, images
from largebatch.data.prepare import jobs, records
from largebatch.data.prepare import run as run_module
from largebatch.data.prepare.image_files import find_images, find_tars
from largebatch.data.prepare.manifest import verify
from largebatch.data.prepare.run import prepare
from largebatch.data.source import open_source
from largebatch.errors import ConfigError, DataError
from scripts import prepare_imagenet
from tests.data import forms
from tests.data.prepare import fakes

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = str(ROOT / "scripts" / "prepare_imagenet.py")
REPAIRED = (fakes.PNG, fakes.CMYK)


def go(out, tars, shards=3, **options):
    return prepare(find_tars(tars, partial=True, shards=shards), out, **options)


@pytest.fixture(scope="module")
def tars(tmp_path_factory):
    return fakes.write_tars(tmp_path_factory.mktemp("tars"))


# ---- what is written


def test_tfds_reads_imagenet_byte_for_byte(tmp_path, tars):
    import tensorflow_datasets as tfds

    go(tmp_path, tars, shards=7)
    decoders = {"image": tfds.decode.SkipDecoding()}
    for split, files in (("train", fakes.train()), ("validation", fakes.validation())):
        found = tfds.data_source("imagenet2012", data_dir=tmp_path, split=split, decoders=decoders)
        kept = {each["file_name"].decode(): each["image"] for each in found}
        assert kept.keys() == files.keys()
        changed = {name for name in files if kept[name] != files[name]}
        assert changed == (set(REPAIRED) if split == "train" else set())
        assert [each["label"] for each in found] == [
            imagenet.image_label(each["file_name"].decode(), "") for each in found
        ]


def test_only_the_dataset_is_left_and_the_same_command_changes_nothing(tmp_path, tars, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    folder = go(tmp_path / "out", tars, shards=2)
    assert list((tmp_path / "temporary").iterdir()) == []
    made = fakes.contents(tmp_path / "out")
    beside = {"dataset_info.json", "features.json", "label.labels.txt", "manifest.json"}
    assert {path.name for path in folder.iterdir() if "-of-00002" not in path.name} == beside
    go(tmp_path / "out", tars, shards=2)
    with pytest.raises(DataError, match="train"):
        go(tmp_path / "out", tars, shards=3)
    with pytest.raises(DataError, match="images"):
        go(tmp_path / "out", tars, shards=2, side=24)
    assert fakes.contents(tmp_path / "out") == made


def size_of(data):
    picture = images.Picture(data)
    return picture.height, picture.width


def luminance(image):
    """0.299 R + 0.587 G + 0.114 B, float64 (h, w)."""
    return np.asarray(image).astype(float) @ (0.299, 0.587, 0.114)


def test_images_that_tfds_repairs_look_the_same():
    for name in REPAIRED:
        data = fakes.train()[name]
        kept = records.as_tfds(name, data)
        assert records.as_tfds(name, kept) is kept  # repaired once
        image = Image.open(io.BytesIO(kept))
        assert (image.format, image.mode) == ("JPEG", "RGB")
        # Quality 100 rounds coefficients to integers: one level of luminance.
        expected = luminance(images.Picture(data).pixels())
        assert np.abs(luminance(image) - expected).max() <= 2


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((40, 56), (24, 34)), ((56, 40), (34, 24)), ((100, 24), None)],
)
def test_only_larger_images_are_shrunk(shape, expected):
    data = fakes.photo(5, *shape)
    kept = records.shrunk(data, 24)
    if expected is None:
        assert kept is data
        return
    assert size_of(kept) == expected
    exact = images.resize(images.Picture(data).pixels(), expected, "antialias")
    # Quality 90 divides coefficients by 2 to 24: a few levels.
    assert np.abs(luminance(exact) - luminance(images.Picture(kept).pixels())).mean() < 2


def test_side_shrinks_any_dataset(tmp_path, tars):
    go(tmp_path / "a", tars, side=24)
    verify(tmp_path / "a")
    source = Path(forms.folder(tmp_path / "from").partition(":")[2])
    (source / "train" / "bee" / "000000.jpg").write_bytes(b"no image")  # training reports it
    out = prepare(find_images(source), tmp_path / "out", side=16)
    found = open_source(f"arrayrecord:{out}", "train", SourceOptions()).read(np.arange(9))[0]
    assert found[0] == b"no image"
    assert {min(size_of(image)) for image in found[1:]} == {16}
    with pytest.raises(DataError, match=r"1 problems: images-train.*: bee/000000\.jpg"):
        verify(out)
    with pytest.raises(ConfigError, match="--side"):
        prepare(find_images(source), tmp_path / "new", side=4)


# ---- interruption


@pytest.fixture
def interruptible():
    """Processes take SIGINT, which those in the background of a shell script ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def command(*flags):
    return [sys.executable, SCRIPT, *map(str, flags)]


@pytest.mark.multiprocess
@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGINT])
def test_a_command_that_is_ended_continues(tmp_path, kind, interruptible):
    images = {f"{name}_{i}.JPEG": fakes.photo(i) for name in fakes.CLASSES for i in range(45)}
    tars = fakes.write_tars(tmp_path, images, fakes.validation(45))
    flags = ["--tars", tars, "--allow_partial", "--shards=45", "--processes=2"]
    run = subprocess.Popen(
        command(*flags, "--out", tmp_path / "ended"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    while not list(tmp_path.glob("ended/imagenet2012/*/*record*")):
        assert run.poll() is None
        time.sleep(0.001)
    for _ in range(2):  # a user presses Ctrl-C twice
        run.send_signal(kind)
        time.sleep(0.1)
    said = run.communicate(timeout=60)[1]
    if kind == signal.SIGINT:
        assert b"interrupted; " in said
        assert b"Traceback" not in said
        assert run.returncode == 130
    with pytest.raises(DataError, match="unfinished"):
        verify(tmp_path / "ended")
    for name in ("ended", "whole"):
        go(tmp_path / name, tars, shards=45)
    assert fakes.contents(tmp_path / "ended") == fakes.contents(tmp_path / "whole")


class Faults:
    """Calls of the operating system, the n-th of which fails."""

    def __init__(self, patch, number):
        self.left = number
        for owner, name in (
            (os, "fsync"),
            (os, "replace"),
            (Path, "open"),
            (Path, "mkdir"),
            (Path, "read_bytes"),
        ):
            patch.setattr(owner, name, self._counting(getattr(owner, name)))

    def _counting(self, function):
        def counting(*args, **options):
            self.left -= 1
            if self.left == 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return function(*args, **options)

        return counting


def test_after_an_error_of_the_system_the_same_command_continues(tmp_path, monkeypatch):
    source = fakes.write_tars(tmp_path / "tars", dict(list(fakes.train().items())[:3]))

    def run(out):
        flags = ["--allow_partial", "--processes=1", "--shards=2"]
        try:
            prepare_imagenet.run([f"--tars={source}", *flags, f"--out={out}"])
        except DataError as error:
            return str(error)
        return None

    whole = tmp_path / "whole"
    assert run(whole) is None
    for number in range(1, 1000):
        with monkeypatch.context() as patch:
            faults = Faults(patch, number)
            said = run(tmp_path / f"{number}")
        if faults.left > 0:
            break
        assert "Input/output error" in said
        assert "\n" not in said
    assert number > 20  # the folder, the lock, the plan, four shards and their records, metadata
    for failed in range(1, number, 5):
        assert run(tmp_path / f"{failed}") is None
        assert fakes.contents(tmp_path / f"{failed}") == fakes.contents(whole)


def test_too_little_space_stops_before_anything_is_written(tmp_path, tars, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(run_module.shutil, "disk_usage", lambda path: usage(0, 0, 100_000))
    with pytest.raises(DataError, match=str(tmp_path)):
        go(tmp_path, tars)
    assert not list(tmp_path.rglob("imagenet2012-*"))


def test_two_at_once_are_refused(tmp_path, tars, monkeypatch):
    def interfere(*args):
        with pytest.raises(DataError, match=f"another process prepares {tmp_path}"):
            go(tmp_path, tars)

    monkeypatch.setattr(run_module, "_check_space", interfere)
    go(tmp_path, tars)
    verify(tmp_path)


def test_files_of_others_are_kept(tmp_path, tars):
    place = tmp_path / "imagenet2012" / "5.1.0"
    place.mkdir(parents=True)
    (place / "dataset_info.json").write_text("{}")
    with pytest.raises(DataError, match=str(place)):
        go(tmp_path, tars)
    assert fakes.contents(tmp_path) == {"imagenet2012/5.1.0/dataset_info.json": b"{}"}


def test_a_changed_source_is_refused(tmp_path):
    source = Path(forms.folder(tmp_path / "from").partition(":")[2])
    out = tmp_path / "out"
    prepare(find_images(source, shards=2), out)
    (out / "images-train.array_record-00000-of-00002").unlink()
    before = fakes.contents(out)
    image = source / "train" / "bee" / "000000.jpg"
    whole = image.read_bytes()
    for change in (lambda: image.write_bytes(whole + b"x"), image.unlink):
        change()
        with pytest.raises(DataError, match="another preparation: train"):
            prepare(find_images(source, shards=2), out)
    assert fakes.contents(out) == before
    image.write_bytes(whole)
    prepare(find_images(source, shards=2), out)
    verify(out)


def test_corrupt_images_of_imagenet_are_all_named_and_written_after_they_are_replaced(tmp_path):
    folder = fakes.write_folders(tmp_path / "folder")
    broken = [
        folder / "train" / "n01440764" / "n01440764_12.JPEG",
        folder / "train" / "n02105855" / "n02105855_13.JPEG",
        folder / "val" / "ILSVRC2012_val_00000004.JPEG",
    ]
    good = [path.read_bytes() for path in broken]
    for path, data in zip(broken, (good[0][:-40], b"not an image", good[2][:30]), strict=True):
        path.write_bytes(data)

    def again():
        return prepare(find_images(folder, partial=True, shards=4), tmp_path / "out")

    with pytest.raises(DataError, match="3 corrupt images") as caught:
        again()
    assert all(str(path) in str(caught.value) for path in broken)
    (listed,) = (tmp_path / "out").rglob("corrupt.txt")
    assert len(listed.read_text().splitlines()) == 3
    with pytest.raises(DataError, match="manifest"):
        verify(tmp_path / "out")
    for path, data in zip(broken, good, strict=True):
        path.write_bytes(data)
    again()
    repaired = fakes.contents(tmp_path / "out")
    prepare(find_images(folder, partial=True, shards=4), tmp_path / "whole")
    assert repaired == fakes.contents(tmp_path / "whole")


# ---- verification


@pytest.fixture(scope="module")
def finished(tmp_path_factory, tars):
    out = tmp_path_factory.mktemp("finished")
    go(out, tars)
    return out


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_a_flipped_bit_is_found(finished, data):
    paths = sorted(path for path in finished.rglob("*") if path.is_file())
    path = data.draw(st.sampled_from([path for path in paths if path.name != "manifest.json"]))
    whole = path.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    changed = bytearray(whole)
    changed[at] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(changed)
    try:
        with pytest.raises(DataError, match=path.name):
            verify(finished)
    finally:
        path.write_bytes(whole)


def test_missing_and_changed_files_are_named_and_written_again(finished, tars):
    whole = fakes.contents(finished)
    paths = sorted(path for path in finished.rglob("*") if path.is_file())
    for path in paths:
        if path.name == "manifest.json":
            continue
        data = path.read_bytes()
        for changed in (None, data[:-1]):
            path.unlink()
            if changed:
                path.write_bytes(changed)
            with pytest.raises(DataError, match=f"1 problems: {path.name}"):
                verify(finished)
            go(finished, tars)
            assert fakes.contents(finished) == whole


# ---- the command


def test_the_command_prepares_and_verifies_without_tensorflow(tmp_path, tars):
    flags = ["--out", str(tmp_path / "out"), "--processes", "1"]
    code = (
        "import sys\n"
        "from scripts.prepare_imagenet import main\n"
        f"assert main(['--tars', {str(tars)!r}, '--allow-partial', *{flags!r}]) == 0\n"
        f"assert main(['--verify', *{flags!r}]) == 0\n"
        "assert 'tensorflow_datasets' in sys.modules and 'tensorflow' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, cwd=ROOT, capture_output=True, text=True
    )
    assert "40 images" in done.stdout


@pytest.mark.parametrize(
    "flags",
    [
        ["--tars=nowhere"],
        ["--images=nowhere"],
        ["--from=nowhere"],
        ["--verify"],
        ["--verify", "--side=256"],
        ["--tars=nowhere", "--validation=0.1"],
        ["--from=digits", "--allow_partial"],
        ["--images=nowhere", "--classes=3"],
        ["--tars=nowhere", "--processes=0"],
    ],
)
def test_mistakes_are_one_line(tmp_path, capsys, flags):
    assert prepare_imagenet.main([*flags, f"--out={tmp_path / 'out'}"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert ";" in said


@pytest.mark.multiprocess
def test_a_process_that_dies_is_an_error_and_not_a_wait():
    with pytest.raises(DataError, match="--processes"), jobs.run(os._exit, [9], 2) as results:
        list(results)
