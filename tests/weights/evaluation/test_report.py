"""The files and tables of an evaluation, read again."""

import csv
import json

import numpy as np
import pytest

from largebatch.weights.evaluation import report
from tests.weights.evaluation.cases import evaluation, logits_and_labels


def read(path):
    with path.open(newline="") as stream:
        header, *rows = csv.reader(stream)
    return header, rows, dict(zip(header, zip(*rows, strict=True), strict=True))


def test_the_files(tmp_path):
    logits, labels = logits_and_labels()
    logits[4] = np.nan
    found = evaluation(logits, labels, smoothing=0.1)
    out = tmp_path / "found"
    paths = report.write(found, out, lambda example: f"p/{example},jpg", {"device": "cpu"})
    assert sorted(paths) == sorted(out.iterdir())
    summary = json.loads((out / "summary.json").read_text())
    assert summary["top1_interval"][0] < summary["top1"] < summary["top1_interval"][1]
    assert (summary["environment"], summary["loss"]) == ({"device": "cpu"}, None)
    assert summary["preprocessing"]["side"] == 24

    _, rows, columns = read(out / "predictions.csv")
    names, outputs = found.matching.classes, found.outputs
    assert columns["name"][7] == "p/7,jpg"
    assert [int(n) for n in columns["id"]] == list(range(400))
    predicted = found.outputs.predicted
    assert list(columns["top1"]) == [names[k] if k >= 0 else "" for k in predicted]
    assert list(columns["class"]) == [names[label] for label in labels]
    assert [cell == "1" for cell in columns["right"]] == outputs.top1.tolist()
    assert [i for i, cell in enumerate(columns["unreadable"]) if cell == "1"] == [3]
    assert {rows[4][i] for i in range(6, len(rows[4]))} == {""}
    good = np.arange(400) != 4
    for name, expected in (
        ("top2_probability", outputs.probabilities[:, 1]),
        ("loss", outputs.loss),
    ):  # seven digits of a float32
        got = np.array(columns[name])[good].astype(float)
        np.testing.assert_allclose(got, expected[good], 1e-6)

    assert [each.title for each in report.tables(found)] == ["worst classes", "most confused"]
    header, rows, _ = read(out / "confusion.csv")
    assert header[1:] == list(names)
    np.testing.assert_array_equal([list(map(int, row[1:])) for row in rows], found.matrix)

    _, _, columns = read(out / "classes.csv")
    assert sum(map(int, columns["support"])) == 400
    assert sum(map(int, columns["predicted"])) == 399
    assert columns["precision"][0] == columns["recall"][6] == ""  # never predicted, no images
    assert float(columns["f1"][3]) == pytest.approx(found.per_class.f1[3], rel=1e-6)


def test_data_of_a_few_of_the_classes(tmp_path):
    logits, labels = logits_and_labels()
    found = evaluation(logits, (5 - labels % 2).astype(np.int32), own=[5, 4])
    report.write(found, tmp_path, str, {})
    header, rows, _ = read(tmp_path / "confusion.csv")
    assert [row[0] for row in rows] == header[1:3] == ["kind 5, [x]", "kind 4, [x]"]
    assert sum(int(cell) for row in rows for cell in row[1:]) == 400
    assert len(read(tmp_path / "classes.csv")[1]) == 2
    assert dict(report.headline(found))["classes"] == "2 classes, predicted among 7"
