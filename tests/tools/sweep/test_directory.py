"""What a sweep prints and leaves: lines, files, figures, the command of the winner."""

import csv
import dataclasses
import shlex

import pytest

from largebatch.cli import split_overrides
from largebatch.config import changed, load
from largebatch.errors import ConfigError, DataError
from largebatch.files import write_json
from largebatch.tools.sweep import study, view
from largebatch.tools.sweep.directory import best_command, keep, keep_results, pasteable
from largebatch.tools.sweep.space import from_text
from largebatch.tools.sweep.trial import Trial, ranked
from tests.tools.sweep.test_space import DIGITS, ROOT

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


def about(axes=AXES, config=DIGITS, **changes):
    return {
        "recipe": str(ROOT / "configs" / "digits.py"),
        "overrides": (("model.width", "4"), ("run.seed", "1")),
        "axes": [dataclasses.asdict(axis) for axis in axes],
        "search": "grid",
        "objective": "top1",
        "seed": 0,
        "options": changed(config),
    } | changes


def test_the_command_of_the_winner_reads_back(tmp_path):
    """A shell splits it into what train.py reads, quotes, blanks and all."""
    keep(tmp_path, about())
    keep_results(tmp_path, TRIALS, 6)
    command, ended, total = best_command(tmp_path)
    assert (ended, total) == (4, 6)
    words = shlex.split(command)
    assert words[:2] == ["python", "train.py"]
    assert words[2:4] == [f"--config={ROOT}/configs/digits.py", f"--workdir={tmp_path}/best"]
    pairs, _ = split_overrides(words[4:])
    assert dict(pairs) == {
        "model.width": "4",
        "run.seed": "1",
        "schedule.peak": "2",
        "schedule.warmup": "40 %",
    }
    config = load(ROOT / "configs" / "digits.py", pairs)
    assert (config.model.width, config.schedule.peak, config.schedule.warmup) == (4, 2.0, "40 %")
    odd = ("--config=a b/it's.py", "--workdir=$HOME", "--config.data.source=folder:x;y")
    assert tuple(shlex.split(pasteable(odd))[2:]) == odd


LONGER = load(ROOT / "configs" / "digits.py", [("schedule.length", "30 epochs")])


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"search": "tpe"}, "--search was grid, now tpe"),
        ({"seed": 3}, "--seed was 0, now 3"),
        ({"overrides": [["model.width", "4"]]}, "--config.run.seed was 1, now not given"),
        ({"overrides": [["model.width", "8"], ["run.seed", "1"]]}, "was 4, now 8"),
        ({"axes": AXES[:1]}, "--sweep was"),
        ({"axes": AXES[::-1]}, "--sweep was"),
        ({"config": LONGER}, "schedule.length was 40 epochs, now 30 epochs"),
    ],
)
def test_another_sweep_is_refused_with_what_differs(tmp_path, changes, named):
    assert not keep(tmp_path, about())
    assert keep(tmp_path, about())
    assert keep(tmp_path, about(overrides=[["run.seed", "1"], ["model.width", "4"]]))
    with pytest.raises(ConfigError) as error:
        keep(tmp_path, about(**changes))
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


def test_each_change_is_printed_once():
    said, now = [], [0.0]
    show = view.Progress(TRIALS, "top1", 6, said.append, lambda: now[0])
    assert show(TRIALS)  # those that had ended are not printed
    assert said == ["trial 4 running: schedule.peak=4, schedule.warmup=40 %"]
    assert not show(TRIALS)
    now[0] = 61.0
    show(TRIALS)
    assert said[1:] == ["2 complete, 1 diverged, 1 pruned, 1 running, 1 to come"]
    assert show([*TRIALS[:4], Trial(4, TRIALS[4].values, "failed", error="words")])
    assert said[2:] == ["trial 4 failed: schedule.peak=4, schedule.warmup=40 %: words"]
    assert view.line(TRIALS[1], "top1").endswith(" → top-1 75.00 %, step 9, 0:01:02")


def test_the_table_and_the_file(tmp_path, capsys):
    order = ranked(TRIALS, "top1")
    view.print_table(order, AXES, "top1")
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["trial", "peak", "warmup", "state", "step", "top-1", "time"]
    assert [line[0] for line in lines[1:6]] == ["1", "0", "2", "3", "4"]
    assert lines[1][1:] == ["2", "40", "%", "complete", "9", "75.00", "%", "0:01:02"]
    assert "ill" in lines[6]
    view.write_csv(tmp_path / "results.csv", order, AXES)
    rows = list(csv.DictReader((tmp_path / "results.csv").read_text().splitlines()))
    assert [row["trial"] for row in rows] == ["1", "0", "2", "3", "4"]
    assert rows[0]["schedule.warmup"] == "40 %"
    assert float(rows[0]["value"]) == 0.75
    assert rows[2]["error"] == "no, it's ill"
    assert rows[3]["value"] == ""


def test_names_stay_apart():
    names = view.short_names(["optimizer.decay", "schedule.decay", "run.seed"])
    assert names == ["optimizer.decay", "schedule.decay", "seed"]


@pytest.mark.parametrize("objective", ["top1", "target_s"])
def test_figures_are_drawn(tmp_path, objective):
    pytest.importorskip("optuna")
    never = Trial(5, TRIALS[0].values, "complete", float("inf"))
    more = Trial(6, TRIALS[3].values, "complete", 0.25)
    drawn = study.draw(tmp_path, AXES, [*TRIALS, never, more], objective)
    assert drawn == ["parallel.png", "importance.png"]
    for name in drawn:
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    assert study.draw(tmp_path, AXES, TRIALS[:2], objective) == ["parallel.png"]
    assert study.draw(tmp_path, AXES, TRIALS[2:4], objective) == []
