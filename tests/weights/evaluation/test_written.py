"""The files and tables of an evaluation, read again and compared with what they are of."""

import csv
import dataclasses
import json

import numpy as np
import pytest
from PIL import Image

from largebatch.data import Unreadable
from largebatch.weights.evaluation import tables
from largebatch.weights.evaluation.class_names import Matching
from largebatch.weights.evaluation.results import Report
from largebatch.weights.evaluation.written import write
from tests.weights.evaluation import networks
from tests.weights.evaluation.cases import logits_and_labels, outcomes_of


def report(classes=7, own=None, images=400):
    """Of 400 images; with ``own`` the data have only so many of the classes, from the last but one
    down."""
    logits, labels = logits_and_labels(images, classes)
    if own:
        labels = (classes - 2 - labels % own).astype(np.int32)
    outputs = np.arange(classes - 2, classes - 2 - own, -1) if own else np.arange(classes)
    names = tuple(f"kind {n}, [x]" for n in range(classes))
    account = Unreadable("validation", images, 0.01)
    account.add([3], lambda example: (f"file {example}", "cut short"))
    return Report(
        weights="random",
        data="drawn",
        split="validation",
        settings=networks.settings(networks.weights(), label_smoothing=0.1),
        matching=Matching(names, outputs.astype(np.int32), ""),
        outcomes=outcomes_of(logits, labels, 0.1),
        unreadable=account,
        seconds=2.0,
    )


def read(path):
    with path.open(newline="") as stream:
        return list(csv.reader(stream))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    made, out = report(), tmp_path_factory.mktemp("out") / "found"
    return made, out, write(made, out, lambda example: f"p/{example},jpg", {"device": "cpu"})


def test_the_summary(whole):
    made, out, paths = whole
    assert sorted(paths) == sorted(out.iterdir())
    kept = json.loads((out / "summary.json").read_text())
    right = int(made.outcomes.kept.top1.sum())
    assert (kept["images"], kept["top1_count"], kept["top1"]) == (400, right, right / 400)
    assert kept["top1_interval"][0] < kept["top1"] < kept["top1_interval"][1]
    assert kept["loss"] == pytest.approx(float(made.outcomes.kept.loss.mean(dtype=np.float64)))
    assert kept["smoothed_loss"] != kept["loss"]
    assert kept["unreadable"] == [{"name": "file 3", "reason": "cut short"}]
    assert kept["preprocessing"]["side"] == 24
    assert kept["environment"] == {"device": "cpu"}
    assert kept["expected_calibration_error"] == made.reliability.expected_error


def test_the_tables_add_up(whole):
    made, out, _ = whole
    header, *rows = read(out / "predictions.csv")
    assert len(rows) == 400
    columns = dict(zip(header, zip(*rows, strict=True), strict=True))
    assert columns["name"][7] == "p/7,jpg"
    assert [int(n) for n in columns["id"]] == list(range(400))
    names = made.matching.classes
    assert list(columns["top1"]) == [names[label] for label in made.outcomes.predicted]
    assert list(columns["class"]) == [names[label] for label in made.outcomes.labels]
    assert [cell == "1" for cell in columns["right"]] == made.outcomes.kept.top1.tolist()
    assert [i for i, cell in enumerate(columns["unreadable"]) if cell == "1"] == [3]
    # Seven digits of a float32.
    np.testing.assert_allclose(
        np.array(columns["top2_probability"], float), made.outcomes.kept.probabilities[:, 1], 1e-6
    )
    np.testing.assert_allclose(np.array(columns["loss"], float), made.outcomes.kept.loss, 1e-6)

    header, *rows = read(out / "confusion.csv")
    assert header[1:] == list(names)
    np.testing.assert_array_equal([list(map(int, row[1:])) for row in rows], made.matrix)

    header, *rows = read(out / "classes.csv")
    columns = dict(zip(header, zip(*rows, strict=True), strict=True))
    assert sum(map(int, columns["support"])) == sum(map(int, columns["predicted"])) == 400
    assert columns["precision"][0] == ""  # never predicted
    assert columns["recall"][6] == ""  # absent
    assert float(columns["f1"][3]) == pytest.approx(made.per_class.f1[3], rel=1e-6)


def test_an_image_without_probabilities_has_no_classes(tmp_path):
    logits, labels = logits_and_labels()
    logits[4] = np.nan
    made = dataclasses.replace(report(), outcomes=outcomes_of(logits, labels, 0.1))
    write(made, tmp_path, str, {})
    header, *rows = read(tmp_path / "predictions.csv")
    assert set(rows[4][header.index("loss") :]) == {""}
    assert (rows[4][header.index("right")], "" in rows[5]) == ("0", False)
    header, *rows = read(tmp_path / "confusion.csv")
    assert sum(int(cell) for row in rows for cell in row[1:]) == 399
    kept = json.loads((tmp_path / "summary.json").read_text())
    assert kept["not_finite"] == 1


def test_a_set_of_few_of_the_classes(tmp_path):
    made = report(own=2)
    write(made, tmp_path, str, {})
    header, *rows = read(tmp_path / "confusion.csv")
    assert [row[0] for row in rows] == ["kind 5, [x]", "kind 4, [x]"]
    assert header[1:3] == ["kind 5, [x]", "kind 4, [x]"]
    assert sum(int(cell) for row in rows for cell in row[1:]) == 400
    assert made.among == "2 classes, predicted among 7"
    assert len(read(tmp_path / "classes.csv")) == 3


@pytest.mark.parametrize(("classes", "own"), [(7, 2), (120, None)])
def test_the_pictures_are_drawn(tmp_path, classes, own):
    from largebatch.weights.evaluation.figures import confusion_png, reliability_png

    made = report(classes, own)
    for draw in (confusion_png, reliability_png):
        path = tmp_path / f"{draw.__name__}.png"
        draw(made, path)
        with Image.open(path) as picture:
            assert min(picture.size) > 300
            pixels = np.asarray(picture.convert("RGB"))
        blue = (pixels[..., 2].astype(int) - pixels[..., 0]) > 60
        assert blue.mean() > 0.005  # bars or cells, not an empty frame


def test_a_diverged_network_is_reported_too(tmp_path):
    logits, labels = logits_and_labels()
    made = dataclasses.replace(report(), outcomes=outcomes_of(logits * np.nan, labels, 0.1))
    write(made, tmp_path, str, {})
    kept = json.loads((tmp_path / "summary.json").read_text())
    assert (kept["top1"], kept["top5"], kept["not_finite"]) == (0, 0, 400)
    for name in ("loss", "brier", "expected_calibration_error", "mean_confidence"):
        assert kept[name] is None
    assert dict(tables.headline(made))["not finite"] == "400 images, counted as wrong"


def test_the_screen(whole, capsys):
    made, _, _ = whole
    screen = tables.screen()
    screen.print(tables.worst_classes(made))
    screen.print(tables.confused_pairs(made))
    printed = capsys.readouterr().out
    assert "kind 0, [x]" in printed  # brackets are no markup
    label = made.per_class.worst(1)[0]
    line = next(
        line for line in printed.splitlines() if line.startswith(made.matching.classes[label])
    )
    assert f"{made.per_class.recall[label]:.1%}" in line
    rows = dict(tables.headline(made))
    assert f"({made.figures.top1.count} of 400; 95 % interval " in rows["top-1"]
    assert "labels smoothed by 0.1" in rows["loss"]
    assert rows["unreadable"] == "1 images, seen as grey"
    assert "matching" not in rows
