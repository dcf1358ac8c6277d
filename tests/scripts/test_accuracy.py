"""scripts/plots/accuracy.py."""

import json

import numpy as np
import pytest
from plots import accuracy


def write(path, top1):
    path.parent.mkdir(exist_ok=True)
    rows = [{"step": i, "epoch": i / 2, "loss": 1.0} for i in range(9)]
    for step, value in top1.items():
        rows[step]["validation/top1"] = value
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_evaluations_of_all_runs(tmp_path):
    write(tmp_path / "record" / "metrics_0.jsonl", {2: 0.25, 4: 0.5, 8: 0.75})
    write(tmp_path / "record" / "metrics_1.jsonl", {2: 0.125, 8: 0.5})
    write(tmp_path / "run" / "metrics.jsonl", {8: 0.25, 2: 0.0})
    epochs, top1, final = accuracy.read([tmp_path / "record", tmp_path / "run"])
    np.testing.assert_array_equal(epochs, [1, 4])
    np.testing.assert_array_equal(top1, [[0.25, 0.75], [0.125, 0.5], [0, 0.25]])
    np.testing.assert_array_equal(final, [0.75, 0.5, 0.25])


def test_the_legend_has_the_last_evaluation_of_each_run(tmp_path):
    write(tmp_path / "a" / "metrics.jsonl", {2: 0.25, 7: 0.5})
    write(tmp_path / "b" / "metrics.jsonl", {2: 0.75, 8: 0.25})
    (axes,) = accuracy.draw({"x": [tmp_path / "a", tmp_path / "b"]}).axes
    assert [line.get_label() for line in axes.lines] == ["x, 2 seeds: 37.5 %"]


def test_curves_are_means_over_runs(tmp_path):
    write(tmp_path / "a" / "metrics.jsonl", {2: 0.25, 8: 0.75})
    write(tmp_path / "b" / "metrics.jsonl", {2: 0.75, 8: 0.25})
    (axes,) = accuracy.draw({"x": [tmp_path / "a", tmp_path / "b"], "y": [tmp_path / "a"]}).axes
    mean, one = axes.lines
    np.testing.assert_array_equal(mean.get_ydata(), [50, 50])
    np.testing.assert_array_equal(one.get_ydata(), [25, 75])
    assert [line.get_label() for line in axes.lines] == ["x, 2 seeds: 50.0 %", "y: 75.0 %"]
    assert len(axes.collections) == 1  # one band of deviations


def test_command(tmp_path):
    write(tmp_path / "run" / "metrics.jsonl", {2: 0.25, 8: 0.75})
    out = tmp_path / "image.png"
    assert accuracy.main([f"--out={out}", f"batch=64={tmp_path / 'run'}"]) == 0
    assert out.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("curve", ["run", "name=missing"])
def test_wrong_curves(curve, tmp_path, capsys):
    assert accuracy.main([f"--out={tmp_path / 'x.png'}", curve]) == 2
    assert curve.rpartition("=")[2] in capsys.readouterr().err


def test_two_curves_of_one_name(tmp_path, capsys):
    write(tmp_path / "run" / "metrics.jsonl", {2: 0.25})
    curve = f"a={tmp_path / 'run'}"
    assert accuracy.main([f"--out={tmp_path / 'x.png'}", curve, curve]) == 2
    assert "'a' names two curves" in capsys.readouterr().err
