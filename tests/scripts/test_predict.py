"""scripts/predict.py: what evaluation sees, in a table or as JSON; all kinds of files."""

import csv
import io
import json
from pathlib import Path

import evaluate
import numpy as np
import predict
import pytest
from PIL import Image

from largebatch import weights
from tests.weights.evaluation import cases
from tests.weights.evaluation.devices import one_quick_device

CLASSES = ("ant", "bee", "cow", "[dog]", "eel", "fox", "gnu")


@pytest.fixture(scope="module", autouse=True)
def _one_device():
    with one_quick_device():
        yield


@pytest.fixture
def _reads(monkeypatch):
    """Random weights of seven classes, whatever the path."""
    made = cases.weights(CLASSES)
    monkeypatch.setattr(weights, "read", lambda path, **_: made)


@pytest.fixture(scope="module")
def kinds(tmp_path_factory):
    """A folder of class folders: JPEG, CMYK, grey, PNG, 16 bits, wrong suffix, transparent."""
    place = tmp_path_factory.mktemp("kinds")
    pixels = np.random.default_rng(1).normal(120, 70, (50, 70, 3)).clip(0, 255).astype(np.uint8)
    image = Image.fromarray(pixels)
    deep = Image.fromarray(pixels[..., 0].astype(np.uint16) << 8)
    for label, (name, picture, kind) in enumerate(
        (
            ("plain.jpg", image, "JPEG"),
            ("cmyk.jpeg", image.convert("CMYK"), "JPEG"),
            ("grey.JPG", image.convert("L"), "JPEG"),
            ("named.jpg", image, "PNG"),
            ("deep.png", deep, "PNG"),
            ("seen through.png", image.convert("RGBA"), "PNG"),
            ("other.webp", image, "WEBP"),
        )
    ):
        path = place / "val" / CLASSES[label] / name
        path.parent.mkdir(parents=True)
        picture.save(path, kind)
    return place


def lines(capsys, *arguments, code=0):
    """The JSON lines of a call, and its standard error."""
    assert predict.main([str(a) for a in ("x", *arguments, "--json")]) == code
    captured = capsys.readouterr()
    return [json.loads(line) for line in captured.out.splitlines()], captured.err


@pytest.mark.usefixtures("_reads")
def test_each_picture_gets_what_evaluation_gives_it(kinds, tmp_path, capsys):
    assert evaluate.main(["x", f"--source=folder:{kinds}", f"--out={tmp_path}"]) == 0
    capsys.readouterr()
    with (tmp_path / "predictions.csv").open(newline="") as stream:
        theirs = {row["name"]: row for row in csv.DictReader(stream)}
    ours, told = lines(capsys, kinds)
    assert told == ""
    assert [each["file"] for each in ours] == sorted(str(path) for path in kinds.rglob("*.*"))
    assert len(ours) == len(theirs) == 7
    first = [each["top"][0]["probability"] for each in ours]
    assert max(first) < 0.999
    assert max(first) - min(first) > 0.001
    for each in ours:
        row = theirs[each["file"]]
        for rank, guess in enumerate(each["top"], 1):
            assert guess["class"] == row[f"top{rank}"]
            assert guess["label"] == CLASSES.index(guess["class"])
            # To the bit, but for the seven digits that the table is written with.
            assert f"{guess['probability']:.7g}" == row[f"top{rank}_probability"]


@pytest.mark.usefixtures("_reads")
def test_what_cannot_be_read_is_named_and_the_rest_predicted(kinds, tmp_path, capsys):
    (tmp_path / "text.jpg").write_text("no picture")
    (tmp_path / "empty.png").write_bytes(b"")
    stream = io.BytesIO()
    Image.effect_noise((64, 64), 90).save(stream, "JPEG")
    (tmp_path / "cut.jpg").write_bytes(stream.getvalue()[:-800])
    good = kinds / "val" / "ant" / "plain.jpg"
    ours, told = lines(capsys, tmp_path, good, tmp_path / "absent.jpg", "--batch=2", code=2)
    named = [Path(each["file"]).name for each in ours]
    assert named == ["cut.jpg", "empty.png", "text.jpg", "plain.jpg", "absent.jpg"]
    assert ["error" in each for each in ours] == [True, True, True, False, True]
    *warnings, last = told.splitlines()
    for name, warning in zip((*named[:3], named[4]), warnings, strict=True):
        assert f"/{name}: " in warning
    assert last.startswith("error: 4 of 5 files")


@pytest.mark.usefixtures("_reads")
def test_a_table_and_json_in_a_file_or_on_standard_output(kinds, tmp_path, capsys):
    picture, target = str(kinds / "val" / "ant" / "plain.jpg"), tmp_path / "found.jsonl"
    assert predict.main(["x", picture, f"--json={target}"]) == 0
    _, row, *_ = capsys.readouterr().out.splitlines()
    assert row.startswith(picture)
    (written,) = map(json.loads, target.read_text().splitlines())
    assert written["file"] == picture
    for words in (["x", picture, "--json"], ["--json", "x", picture], ["x", "--json", picture]):
        assert predict.main(words) == 0
        assert json.loads(capsys.readouterr().out) == written
