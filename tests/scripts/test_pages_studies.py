"""The tables and the figure of docs/studies.md."""

import csv
import math
from pathlib import Path

import pytest
from pages import studies
from plots import batch_size

from largebatch.config.recipe_file import execute
from largebatch.planning.studies.batch_size import EXAMPLES, IMAGES, RULES, ended_trials

ROOT = Path(__file__).parents[2]


def test_the_page_has_the_tables_of_the_records_and_every_figure():
    page = (ROOT / "docs" / "studies.md").read_text()
    assert page == studies.page(page, ROOT)
    assert all(str(f) in page for f in (studies.SYNCHRONY, studies.BATCH_SIZE, studies.TECHNIQUES))
    named = [part.partition(")")[0] for part in page.split("](images/")[1:]]
    assert len(named) == 5
    for name in named:
        assert (ROOT / "docs" / "images" / name).read_bytes().startswith(b"\x89PNG")


def _trial(name, workers, seed, top1, state="complete"):
    row = {"optimizer.name": name, "batch.workers": str(workers), "run.seed": str(seed)}
    return row | {"state": state, "top1": top1, "step": str(640 // workers)}


TRIALS = [
    _trial("sgd", 2, 0, "0.50"),
    _trial("sgd", 2, 1, "0.52"),
    _trial("sgd", 8, 0, "0.30"),
    _trial("sgd", 8, 1, "", "diverged"),
    _trial("lars", 2, 0, "0.60"),
    _trial("lars", 8, 0, "", "diverged"),
]
NOT_ENDED = _trial("lars", 8, 1, "0.90", "running")


def test_the_tables_are_of_the_recipe_that_the_study_sweeps():
    config, recipe = execute(ROOT / "configs" / "imagenette_batch.py")
    assert config.batch.images_per_worker == IMAGES
    ((keys, values),) = recipe.sweep().items()
    points = [dict(zip(keys, each, strict=True)) for each in values]
    assert {point["optimizer.name"] for point in points} == set(RULES)
    for point in points:
        images = point["batch.workers"] * IMAGES
        assert images < EXAMPLES
        # Statistics are of about as many images at every batch.
        assert 8192 <= images * point["norm.precise_batches"] <= 9216


def test_the_table_of_batches_has_a_cell_for_each_optimizer_and_batch():
    assert studies.batch_size_table(TRIALS).splitlines() == [
        "| batch (of the training images) | 64 (0.7 %) | 256 (2.7 %) |",
        "|---|---|---|",
        "| steps | 320 | 80 |",
        "| SGD, linear scaling | 51.0 ± 1.4 | 30.0, 1 of 2 diverged |",
        "| LARS, √ scaling | 60.0 | diverged |",
        "| LAMB, √ scaling | – | – |",
    ]


def test_the_table_of_techniques_begins_with_the_recipe():
    trials = [
        {"schedule.warmup": warm, "loss.label_smoothing": smooth, "norm.span": span}
        | {"state": "complete", "top1": top1}
        for warm, smooth, span, top1 in [
            ("0 epochs", "0.1", "all", "0.4"),
            ("128 steps", "0.1", "1", "0.5"),
            ("128 steps", "0.0", "1", "0.3"),
        ]
    ]
    assert studies.technique_table(trials).splitlines()[2:] == [
        "| yes | yes | each worker | 50.0 |",
        "| yes | no | each worker | 30.0 |",
        "| no | yes | the batch | 40.0 |",
    ]


def test_the_figure_has_a_point_for_each_optimizer_and_batch(tmp_path):
    (axes,) = batch_size.draw(TRIALS).axes
    drawn = {line.get_label(): line for line in axes.containers}
    crosses = [line.get_xdata().tolist() for line in axes.lines if line.get_marker() == "x"]
    assert crosses == [[256], [256], []]
    assert list(drawn) == list(RULES.values())
    points = {name: line.lines[0].get_xydata().tolist() for name, line in drawn.items()}
    assert points["SGD, linear scaling"] == [[64, pytest.approx(51)], [256, pytest.approx(30)]]
    (first, lost) = points["LARS, √ scaling"]
    assert first == [64, pytest.approx(60)]
    assert lost == [256, pytest.approx(math.nan, nan_ok=True)]
    for seed in (0, 1):
        with (tmp_path / f"results_{seed}.csv").open("w", newline="") as file:
            rows = [trial for trial in [*TRIALS, NOT_ENDED] if trial["run.seed"] == str(seed)]
            (writer := csv.DictWriter(file, rows[0])).writeheader()
            writer.writerows(rows)
    assert ended_trials(tmp_path) == sorted(TRIALS, key=lambda row: row["run.seed"])
    assert batch_size.main([str(tmp_path), f"--out={tmp_path / 'a.png'}"]) == 0
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_a_directory_without_trials_is_one_line(tmp_path, capsys):
    assert batch_size.main([str(tmp_path), f"--out={tmp_path / 'a.png'}"]) == 2
    assert capsys.readouterr().err.startswith(f"error: {tmp_path}: expected results.csv")
    (tmp_path / "results.csv").write_text("state,top1,schedule.peak\ncomplete,0.5,1\n")
    assert batch_size.main([str(tmp_path), f"--out={tmp_path / 'a.png'}"]) == 2
    assert "without batch.workers, optimizer.name" in capsys.readouterr().err
