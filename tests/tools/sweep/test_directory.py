"""What a sweep leaves: settings, results, figures, the command of the winner."""

import csv
import dataclasses
import math
import shlex

import pytest

from largebatch.cli import split_overrides
from largebatch.config import load
from largebatch.errors import ConfigError, DataError
from largebatch.files import write_json
from largebatch.tools.sweep import seeds, view
from largebatch.tools.sweep.directory import best_command, keep, keep_results, pasteable
from largebatch.tools.sweep.space import from_text
from largebatch.tools.sweep.study import Study
from largebatch.tools.sweep.trial import Outcome, Trial, ranked
from tests.tools.sweep.test_space import ROOT

AXES = (from_text("schedule.peak=log:0.5:8"), from_text("schedule.warmup=5 epochs,40 %"))
COMPLETE = {"state": "complete", "step": 9}
TRIALS = [
    Trial(number, {"schedule.peak": peak, "schedule.warmup": warmup}, **rest)
    for number, (peak, warmup, rest) in enumerate(
        [
            ("1", "5 epochs", COMPLETE | {"value": 0.5, "top1": 0.5, "seconds": 61.0}),
            ("2", "40 %", COMPLETE | {"value": 0.75, "top1": 0.75, "seconds": 62.0}),
            ("8", "40 %", {"state": "diverged", "value": 0.0, "error": "no, it's ill"}),
            ("0.5", "40 %", {"state": "pruned", "top1": 0.2}),
            ("4", "40 %", {"state": "running", "top1": 0.1, "step": 3}),
        ]
    )
]


def about(**settings):
    return {
        "recipe": str(ROOT / "configs" / "digits.py"),
        "overrides": (("model.width", "4"), ("run.seed", "1")),
        "objective": "top1",
        "settings": {"--search": "grid", "--sweep": " ".join(map(str, AXES)), "--seed": 0}
        | settings,
    }


def test_the_command_of_the_winner_reads_back(tmp_path):
    """A shell splits it into what train.py reads, quotes, blanks and all."""
    keep(tmp_path, about())
    keep_results(tmp_path, TRIALS, 6)
    command, ended, total = best_command(tmp_path)
    assert (ended, total) == (4, 6)
    words = shlex.split(command)
    assert words[:2] == ["python", "train.py"]
    assert words[2:4] == [f"--config={ROOT}/configs/digits.py", f"--workdir={tmp_path}/best"]
    config = load(ROOT / "configs" / "digits.py", split_overrides(words[4:])[0])
    assert (config.model.width, config.run.seed) == (4, 1)
    assert (config.schedule.peak, config.schedule.warmup) == (2.0, "40 %")
    odd = ("--config=a b/it's.py", "--workdir=$HOME", "--config.data.source=folder:x;y")
    assert tuple(shlex.split(pasteable(odd))[2:]) == odd


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"--search": "tpe"}, "--search was grid, now tpe"),
        ({"--config.run.seed": "1"}, "--config.run.seed was not given, now 1"),
        ({"--sweep": str(AXES[0])}, "40 %, now schedule.peak=log:0.5:8;"),
    ],
)
def test_another_sweep_is_refused_with_what_differs(tmp_path, settings, named):
    assert not keep(tmp_path, about())
    assert keep(tmp_path, about())
    with pytest.raises(ConfigError) as error:
        keep(tmp_path, about(**settings))
    assert named in str(error.value)


def test_damaged_files(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        best_command(tmp_path)
    keep(tmp_path, about())
    keep_results(tmp_path, TRIALS[2:], 6)
    with pytest.raises(DataError, match="none of the 3 trials"):
        best_command(tmp_path)
    write_json(tmp_path / "results.json", {"trials": [{"x": 1}]})
    with pytest.raises(DataError, match="damaged"):
        best_command(tmp_path)
    for text in ("{", "{}"):
        (tmp_path / "sweep.json").write_text(text)
        with pytest.raises(DataError, match="damaged"):
            keep(tmp_path, about())
    (tmp_path / "sweep.json").unlink()
    (tmp_path / "study.db").touch()
    with pytest.raises(DataError, match="missing"):
        keep(tmp_path, about())


def test_the_table_and_the_file(tmp_path, capsys):
    order = ranked(TRIALS, "top1")
    view.print_table(order, AXES, "top1")
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines[1:6]] == ["1", "0", "2", "3", "4"]
    assert "ill" in lines[6]
    view.write_csv(tmp_path / "results.csv", order, AXES)
    rows = list(csv.DictReader((tmp_path / "results.csv").read_text().splitlines()))
    assert [row["trial"] for row in rows] == ["1", "0", "2", "3", "4"]
    assert rows[0]["schedule.warmup"] == "40 %"
    assert float(rows[0]["value"]) == 0.75
    assert rows[2]["error"] == "no, it's ill"
    assert rows[3]["value"] == ""


def test_the_winner_is_the_same_when_it_is_read_again(tmp_path):
    losses = {("a", "0"): 0.5, ("a", "1"): math.inf, ("b", "0"): 0.6, ("b", "1"): 0.6}
    trials = [
        Trial(i, dict(zip(("x", "run.seed"), key, strict=True)), "complete", value)
        for i, (key, value) in enumerate(losses.items())
    ]
    trials[1] = dataclasses.replace(trials[1], state="diverged")
    assert seeds.best(trials, "loss").number == 2
    keep(tmp_path, about() | {"objective": "loss"})
    keep_results(tmp_path, trials, 4)
    assert "x=b" in best_command(tmp_path)[0]


def test_the_table_and_the_file_of_seeds(tmp_path, capsys):
    axes = [from_text("x=a,b"), from_text("run.seed=0,1")]
    values = {("a", "0"): 0.5, ("a", "1"): 0.7, ("b", "0"): 0.9}
    trials = [
        Trial(i, dict(zip(("x", "run.seed"), key, strict=True)), "complete", value)
        for i, (key, value) in enumerate(values.items())
    ]
    groups = seeds.groups(trials, "top1")
    view.print_seeds(groups, axes, "top1")
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[1:] == [["a", "2", "60.00", "%", "14.14", "%"], ["b", "1", "90.00", "%"]]
    view.write_seeds(tmp_path / "seeds.csv", groups, axes)
    rows = list(csv.DictReader((tmp_path / "seeds.csv").read_text().splitlines()))
    assert [(row["x"], row["seeds"], row["deviation"] == "") for row in rows] == [
        ("a", "2", False),
        ("b", "1", True),
    ]


def test_figures_are_drawn_of_enough_trials(tmp_path):
    pytest.importorskip("optuna")
    study, drawn = Study(None, AXES, "target_s"), []
    ends = [Outcome("failed"), Outcome("complete", float("inf"))]
    ends += [Outcome("complete", value) for value in (1.0, 2.0, 0.5, 3.0)]
    for trial, end in zip([*TRIALS, TRIALS[0]], ends, strict=True):
        study.tell(study.begin(trial.values), end)
        drawn.append(study.draw(tmp_path))
    assert drawn == [[], [], *[["parallel.png"]] * 3, ["parallel.png", "importance.png"]]
    for name in drawn[-1]:
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
